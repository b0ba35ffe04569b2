"""Host time of choosing a kernel and its config: of products that are new to the process, and of the same ones again.

Writes a record that ``docs/notebook/dispatch.md`` shows. Needs an NVIDIA GPU, which names the tuned table, no
compiler.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from gemmule.core.dtype import Precision
from gemmule.core.problem import GemmProblem
from gemmule.dispatch.select import choose
from gemmule.lab.experiment import experiment
from gemmule.lab.products import gemm_problem
from gemmule.lab.records import RecordFile
from gemmule.runtime.device import Device, get_device

#: Extents, types, precisions and layouts.
SHAPES = (
    ((4096, 4096, 4096), "bfloat16", "ieee", "nn"),
    ((2047, 2047, 2047), "bfloat16", "ieee", "nn"),
    ((2047, 2047, 2047), "float16", "ieee", "tn"),
    ((205, 361, 363), "bfloat16", "ieee", "nt"),
    ((2048, 2048, 2048), "float32", "tf32", "nn"),
    ((2047, 2047, 2047), "float32", "tf32", "nn"),
    ((2047, 2047, 2047), "float32", "tf32", "nt"),
    ((4096, 4096, 4096), "float32", "ieee", "nn"),
    ((4095, 4095, 4095), "float32", "ieee", "nt"),
    ((4096, 4096, 4096), "float64", "ieee", "nn"),
)
#: Products of each, and how many rows each has more than the one before.
_COUNT, _STEP = 200, 8


def host_us(products: Sequence[GemmProblem], device: Device) -> list[float]:
    """Return how long each choice took."""
    found, arch = [], device.arch
    for product in products:
        began = time.perf_counter()
        choose(product, arch, multiprocessors=device.multiprocessors, chip=device.name)
        found.append((time.perf_counter() - began) * 1e6)
    return found


def main() -> None:
    """Measure, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args()
    device = get_device()
    with RecordFile(given.record, experiment("python benchmarks/records/choice_times.py", device.pci_bus_id)) as file:
        for (m, n, k), dtype, precision, layout in SHAPES:
            # One more in front, for what only the first choice of a process brings.
            products = [
                dataclasses.replace(
                    gemm_problem(m + _STEP * i, n, k, dtype, dtype, layout), precision=Precision.parse(precision)
                )
                for i in range(_COUNT + 1)
            ]
            host_us(products[-1:], device)
            for path in ("choose_first", "choose_again"):
                times = sorted(host_us(products[:-1], device))
                low, *_, high = statistics.quantiles(times, n=10)
                median = statistics.median(times)
                file.write({
                    "record": "overhead", "path": path, "dtype": dtype, "shape": [m, n, k],
                    "precision": precision, "layout": layout,
                    "host_us": round(median, 3), "host_us_low": round(low, 3), "host_us_high": round(high, 3),
                    "calls": _COUNT,
                })  # fmt: skip
                print(f"{m} x {n} x {k} {dtype} {precision} {layout} {path}: {median:.1f} us, {low:.1f} to {high:.1f}")


if __name__ == "__main__":
    main()
