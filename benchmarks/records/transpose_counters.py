"""Counters of the hardware for the transposes, through ncu.

python benchmarks/records/transpose_counters.py --record benchmarks/results
python benchmarks/records/transpose_counters.py --record benchmarks/results t14 t16    # kernels of these names

Every rung of the study at 4096 x 4096 elements of 4 bytes, and what calls run for other sizes of elements, odd pitches
and small matrices. Needs an NVIDIA GPU, ncu (Nsight Compute) and the right to read the GPU's counters.
"""

from __future__ import annotations

import argparse
import csv
import io
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hardware_counts import COUNTERS, number

from gemmule.core.arch import Arch
from gemmule.core.dtype import opaque_dtype
from gemmule.core.problem import TransposeProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY, TRANSPOSE_LADDER
from gemmule.dispatch.select import choose
from gemmule.lab.experiment import experiment
from gemmule.lab.records import write_records
from gemmule.lab.transposes import problem_for, random_matrix, transpose_of
from gemmule.runtime.device import get_device
from gemmule.runtime.execute import run_kernel
from gemmule.runtime.memory import DeviceBuffer

#: The size of the study, and others at which what a call would run is counted.
SOURCE = (4096, 4096, 4)
CHOSEN = (*((4096, 4096, item) for item in (1, 2, 8)), *((4095, 4097, item) for item in (1, 2, 4, 8)),
          (8191, 8193, 1), (384, 384, 1), (300, 301, 1), (383, 385, 1), (1000, 1001, 2))  # fmt: skip
#: Of the sectors that loads ask for, those that the L1 cache has.
L1_HITS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum"
# Nothing is computed, and what waits for what is another question.
_LEFT_OUT = ("thread_inst_executed", "pipe_f", "dispatch_stall", "math_pipe", "_wait_", "no_instruction", "selected")
ASKED = (*(name for name in COUNTERS if not any(word in name for word in _LEFT_OUT)), L1_HITS)


Launched = tuple[tuple[int, int, int], TransposeProblem, Choice]


def launches(arch: Arch, multiprocessors: int, names: Sequence[str] = ()) -> list[Launched]:
    """Return size, problem and kernel of every launch, or of those whose kernel's name begins with one of these."""
    found = list(_all_launches(arch, multiprocessors))
    return [one for one in found if not names or one[2].spec.name.startswith(tuple(names))]


def _all_launches(arch: Arch, multiprocessors: int) -> Iterator[Launched]:
    specs = {spec.name: spec for spec in REGISTRY}
    for name in TRANSPOSE_LADDER:
        choice = Choice(specs[name], specs[name].default)
        yield SOURCE, problem_for(choice.spec, choice.config, arch, transpose_of(*SOURCE)), choice
    for size in CHOSEN:
        problem = transpose_of(*size)
        yield size, problem, choose(problem, arch, multiprocessors=multiprocessors)


def run_all(names: Sequence[str]) -> None:
    """Run every launch once, and hold each result against the source."""
    device = get_device()
    for (m, n, item), problem, choice in launches(device.arch, device.multiprocessors, names):
        source = random_matrix(m, n, item, 0)
        buffers = {name: DeviceBuffer(source.nbytes, 0, 0) for name in ("a", "d")}
        result = np.full((m, n) if problem.source == problem.target else (n, m), 0x55, source.dtype)
        buffers["a"].upload(source)
        buffers["d"].upload(result)
        run_kernel(problem, choice, {name: buffer.address for name, buffer in buffers.items()}, 0, 0)
        buffers["d"].download(result)
        if not np.array_equal(result, source if problem.source == problem.target else source.T):
            sys.exit(f"{choice.spec.name} is wrong at {m} x {n} elements of {item} bytes")
        for buffer in buffers.values():
            buffer.free()


def table_of(output: str) -> list[dict[str, str]]:
    """Return the rows of ncu's table, a launch each."""
    lines = "".join(line + "\n" for line in output.splitlines() if line.startswith('"'))
    # The first row gives the units.
    return list(csv.DictReader(io.StringIO(lines)))[1:]


def records_of(row: Mapping[str, str], choice: Choice, size: tuple[int, int, int]) -> Iterator[dict[str, Any]]:
    """Yield a record for each counter of a launch; one that ncu gives no number for is absent."""
    m, n, item = size
    for counter in ASKED:
        if (value := number(row.get(counter, ""))) is not None:
            yield {
                "record": "counts",
                "kernel": choice.spec.name,
                "config": choice.config.as_dict(),
                "dtype": opaque_dtype(item).name,
                "shape": [m, n],
                "counter": counter,
                "hardware": value,
            }


def counts(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a record for each kernel and counter."""
    ncu = shutil.which("ncu")
    if ncu is None:
        sys.exit("ncu was not found; it comes with the CUDA toolkit and with Nsight Compute")
    # Counts do not depend on clocks, and not every machine lets them be set.
    command = [ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
               "--metrics", ",".join(ASKED), "-k", "regex:^t[01]",
               sys.executable, __file__, "--run", *names]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"ncu failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    device = get_device()
    rows, ran = table_of(done.stdout), launches(device.arch, device.multiprocessors, names)
    if len(rows) != len(ran):
        sys.exit(f"ncu saw {len(rows)} kernels of {len(ran)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    pairs = zip(rows, ran, strict=True)
    return [record for row, (size, _, choice) in pairs for record in records_of(row, choice, size)]


def main() -> None:
    """Count, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="beginnings of kernels' names; all by default")
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run_all(options.names)
        return
    words = (Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:])
    command = " ".join(["python", "benchmarks/records/transpose_counters.py", *words])
    print(write_records(options.record, experiment(command, get_device().pci_bus_id), counts(options.names)))


if __name__ == "__main__":
    main()
