"""How long kernels take on the virtual GPU: ``python benchmarks/records/vgpu_speed.py --record benchmarks/results``.

Products of 512 x 512 x 512, compiled beforehand, in one process, on one core: alone, with all checks, with these under
the random schedule, with counts, and with counts and the cache model. The shortest of some runs is kept, by the
processor's clock, since other programs only ever add to it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gemmule.compiler.cache import artifact_for
from gemmule.core.dtype import accumulator, dtype_named
from gemmule.core.spec import KernelSpec
from gemmule.dispatch.registry import REGISTRY
from gemmule.lab.experiment import experiment
from gemmule.lab.products import gemm_problem
from gemmule.lab.records import write_records
from gemmule.vgpu import Counter, Options, launch
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.numeric.compiled import loops

SIDE = 512
#: How often a launch is timed, and how long a slow way goes on.
RUNS, ENOUGH_SECONDS = 3, 5.0
WAYS: dict[str, Callable[[], dict[str, Any]]] = {
    "seconds": lambda: {"options": Options()},
    "checks_seconds": lambda: {"options": Options(checks=True)},
    "random_seconds": lambda: {"options": Options(checks=True, schedule="random")},
    "counts_seconds": lambda: {"options": Options(), "observers": (Counter(),)},
    "caches_seconds": lambda: {"options": Options(), "observers": (Counter(with_caches=True),)},
}


def dtype_of(spec: KernelSpec) -> str | None:
    """Return the first type that the kernel multiplies in these shapes, fast ones first."""
    for dtype in ("float16", "float32", "float64"):
        if spec.why_not(gemm_problem(SIDE, SIDE, SIDE, dtype, dtype, "nn"), virtual_arch(), spec.default) is None:
            return dtype
    return None


def measured(spec: KernelSpec, dtype: str) -> dict[str, Any]:
    """Return the record of a kernel."""
    random = np.random.default_rng()
    kind = dtype_named(dtype).numpy()
    a, b = (random.standard_normal((SIDE, SIDE)).astype(kind) for _ in range(2))
    problem = gemm_problem(SIDE, SIDE, SIDE, dtype, dtype, "nn")
    artifact = artifact_for(spec, spec.default, spec.signature(problem, spec.default), virtual_arch(), with_ptx=True)
    found = {}
    for name, way in WAYS.items():
        samples: list[float] = []
        while len(samples) < RUNS and sum(samples) < ENOUGH_SECONDS:
            d = np.full((SIDE, SIDE), np.nan, kind)
            begun = time.process_time()
            launch(artifact, spec.launch(problem, spec.default), {"a": a, "b": b, "d": d}, **way())
            samples.append(time.process_time() - begun)
            assert np.isfinite(d.astype(np.float64)).all()
        found[name] = round(min(samples), 3)
    return {
        "record": "virtual_gpu",
        "kernel": spec.name,
        "config": spec.default.as_dict(),
        "dtype": dtype,
        "accumulator": accumulator(dtype_named(dtype), dtype_named(dtype)).name,
        "shape": [SIDE, SIDE, SIDE],
        "fma": "numba" if loops() else "numpy",
        **found,
    }


def main() -> None:
    """Measure, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--kernels", nargs="+", default=[], metavar="NAME", help="these only")
    options = parser.parse_args()
    records = []
    for spec in [spec for spec in REGISTRY if spec.name in options.kernels] or REGISTRY:
        if spec.operation == "gemm" and (dtype := dtype_of(spec)):
            records.append(measured(spec, dtype))
            print(records[-1])
    command = " ".join(["python", "benchmarks/records/vgpu_speed.py", *sys.argv[1:]])
    print(write_records(options.record, experiment(command), records))


if __name__ == "__main__":
    main()
