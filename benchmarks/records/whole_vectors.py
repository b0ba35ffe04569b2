"""Transposes of rows of whole 16 bytes that end within sectors of 32: t12, which moves vectors, beside t14.

python benchmarks/records/whole_vectors.py --record benchmarks/results

t14 refuses the smaller of these matrices because of what is measured here, and is made to take them for it.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gemmule.commands import gpu
from gemmule.core.problem import TransposeProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose
from gemmule.lab.bench_plan import BenchPlan
from gemmule.lab.experiment import experiment
from gemmule.lab.records import write_records
from gemmule.lab.transpose_bench import TransposeBench
from gemmule.lab.transposes import transpose_of

#: Rows and columns of the sources, and bytes of an element. 16 bytes are an odd number of times in a row.
SIZES = (
    (1002, 1002, 8), (8190, 8194, 8), (1420, 1420, 4), (8188, 8196, 4), (2008, 2008, 2), (4088, 4104, 2),
    (2832, 2832, 1), (4080, 4112, 1), (8176, 8208, 1),
)  # fmt: skip


def _takes_all(problem: TransposeProblem, arch: Any, config: Any) -> str | None:
    """Say nothing against a problem."""


def choices(problem: TransposeProblem, arch: Any, multiprocessors: int) -> Iterator[Choice]:
    """Yield t12 and t14, each in the config that it would have."""
    for name in ("transpose_tiled", "transpose_whole_sectors"):
        spec = next(spec for spec in REGISTRY if spec.name == name)
        willing = spec if name == "transpose_tiled" else dataclasses.replace(spec, why_not=_takes_all)
        yield choose(problem, arch, (willing,), multiprocessors=multiprocessors)


def main() -> None:
    """Measure, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--seconds", type=float, default=0.15)
    options = parser.parse_args()
    words = (Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:])
    command = " ".join(["python", "benchmarks/records/whole_vectors.py", *words])
    records: list[dict[str, Any]] = []
    with gpu.open_gpu(baseline=False) as (device, _):
        chip = gpu.known_chip(device.name)
        for number, (m, n, itemsize) in enumerate(SIZES):
            problem = transpose_of(m, n, itemsize)
            plan = BenchPlan(
                (problem,), tuple(choices(problem, device.arch, device.multiprocessors)), seconds=options.seconds,
                warm_up_seconds=2.0 if number == 0 else 0.1,
            )  # fmt: skip
            bench = TransposeBench(plan, device, chip, peers=False)
            records += bench.records()
        print(write_records(options.record, experiment(command, device.pci_bus_id) | bench.about(), records))


if __name__ == "__main__":
    main()
