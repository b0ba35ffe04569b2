"""Kernels without a synchronisation instruction whose removal no check of the virtual GPU finds, on a GPU.

python benchmarks/unseen_removals.py benchmarks/results/FILE.jsonl ... --record benchmarks/results

Needs a Hopper GPU and the kernel compiler. The files are records of removals. Each kernel is launched without each of
the instructions again and again, on the product of the record and on one that fills the chip; where a result has other
bits than that of the whole kernel, the instruction is not as harmless as its reason says.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from forms import SNIPPETS

from gemmule.core.arch import Arch
from gemmule.dispatch.registry import REGISTRY

ARCH = Arch.parse("sm_90a")
#: A product that fills the chip several times, and that no tile divides.
LARGE = (2056, 2072, 1112)
LAUNCHES = 50
_TESTS = str(Path(SNIPPETS).parent)
if _TESTS not in sys.path:
    sys.path.append(_TESTS)


def compiled(kernel: str) -> tuple[Any, Any]:
    """Return a kernel's artifact as the record has it, and its config."""
    from test_hopper_mutations import Subject

    spec = next(spec for spec in REGISTRY if spec.name == kernel)
    subject = Subject(spec, np.random.default_rng(0))
    return subject.artifact, subject.config


def launches(kernel: str, config: Any, shape: tuple[int, int, int]) -> tuple[Any, dict[str, Any]]:
    """Return the recipe of a product, and its operands: A and B in rows, of ordinary numbers."""
    from test_hopper_mutations import problem_of, random_matrix, types_of

    spec = next(spec for spec in REGISTRY if spec.name == kernel)
    if shape == LARGE and hasattr(config, "ctas"):
        # How many CTAs share the tiles is no part of the kernel's code.
        config = dataclasses.replace(config, ctas=spec.default.as_dict()["ctas"])
    dtype, out = types_of(spec)[0]
    m, n, k = shape
    rng = np.random.default_rng(k)
    a, b = random_matrix(rng, dtype, (m, k)), random_matrix(rng, dtype, (k, n))
    d = np.zeros((m, n), out.numpy())
    return spec.launch(problem_of(a, b, d), config), {"a": a, "b": b, "d": d}


def results(code: Any, recipe: Any, arrays: dict[str, Any], count: int) -> Iterator[bytes]:
    """Yield the result of each launch on the GPU, of a poisoned output."""
    from gemmule.runtime.device import current
    from gemmule.runtime.driver import call
    from gemmule.runtime.launch import LoadedKernel
    from gemmule.runtime.memory import DeviceBuffer

    with current(0):
        kernel = LoadedKernel(code, 0)
        sizes = {name: x.nbytes for name, x in arrays.items()}
        buffers = {name: DeviceBuffer(size, 0, 0) for name, size in sizes.items()}
        pointers = {name: buffer.address for name, buffer in buffers.items()}
        for name in ("a", "b"):
            buffers[name].upload(arrays[name])
        out = np.empty(sizes["d"], np.uint8)
        for _ in range(count):
            buffers["d"].upload(np.full(sizes["d"], 0xFF, np.uint8))
            kernel.launch(recipe, pointers, 0)
            buffers["d"].download(out)
            call("cuStreamSynchronize", 0)
            yield out.tobytes()
        for buffer in buffers.values():
            buffer.free()


def tried(kernel: str, unseen: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a record for each instruction of a kernel, and each of the two products."""
    from test_hopper_mutations import SHAPE, SHAPES
    from twin import Text

    artifact, config = compiled(kernel)
    lines = artifact.ptx.split("\n")
    wanted = [(shape, *launches(kernel, config, shape)) for shape in (SHAPES.get(kernel, SHAPE), LARGE)]
    whole = [next(results(artifact, recipe, arrays, 1)) for _, recipe, arrays in wanted]
    found = []
    for one in unseen:
        place = one["line"] - 1
        if one["text"].split()[0] not in lines[place]:
            sys.exit(f"line {one['line']} of {kernel} is not {one['text']!r} but {lines[place]!r}; record the removals")
        text = "\n".join([*lines[:place], "", *lines[place + 1 :]])
        code = Text(kernel, artifact.entry, text.encode() + b"\0")
        for (shape, recipe, arrays), right in zip(wanted, whole, strict=True):
            equal = sum(result == right for result in results(code, recipe, arrays, LAUNCHES))
            found.append({"record": "unseen", "kernel": kernel, **one, "shape": list(shape), "launches": LAUNCHES,
                          "equal": equal})  # fmt: skip
    return found


def main() -> None:
    """Launch, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("removals", nargs="+", type=Path, metavar="FILE", help="records of removals")
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    from gemmule.lab.experiment import experiment
    from gemmule.lab.records import read_records, write_records
    from gemmule.runtime.device import get_device

    runs = [r for path in options.removals for r in read_records(path) if r["record"] == "removals"]
    with concurrent.futures.ProcessPoolExecutor(len(runs)) as pool:
        parts = list(pool.map(tried, [r["kernel"] for r in runs], [r["unseen"] for r in runs]))
    found = [record for part in parts for record in part]
    command = " ".join(["python benchmarks/unseen_removals.py", *(path.name for path in options.removals)])
    print(write_records(options.record, experiment(command, get_device().pci_bus_id), found))
    for r in found:
        if r["equal"] != r["launches"]:
            print(r)


if __name__ == "__main__":
    main()
