"""What calls run in every type, beside cuBLASLt's best: ``python benchmarks/records/glance.py FOLDER``.

The kernel is the one that dispatch takes; times are those of ``gemmule bench gemm --kernels chosen``. ``--only``
names kinds, so that several GPUs can share them. ``compile`` instead of a folder only compiles what will run on the
GPU that ``--chip`` names.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gemmule.commands import gpu
from gemmule.compiler.pool import compile_all, jobs_of
from gemmule.core.arch import Arch
from gemmule.core.dtype import Precision
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose
from gemmule.lab.bench_plan import BenchPlan
from gemmule.lab.experiment import experiment
from gemmule.lab.gemm_bench import GemmBench
from gemmule.lab.gemm_operation import named, product_of, size_text
from gemmule.lab.products import gemm_problem, output_type, own_product
from gemmule.lab.records import RecordFile

HOPPER, MULTIPROCESSORS = Arch(9, 0, True), 132
SQUARES = (1024, 2048, 4096, 8192)
#: By name: types, output, precision, layout, whether B is A transposed, and edges.
KINDS: dict[str, tuple[str, str | None, Precision, str, bool, tuple[int, ...]]] = {
    "bfloat16": ("bfloat16", None, Precision.IEEE, "nn", False, (*SQUARES, 4095)),
    "float16": ("float16", None, Precision.IEEE, "nn", False, SQUARES),
    "own": ("bfloat16", None, Precision.IEEE, "nt", True, SQUARES),
    "float8": ("float8_e4m3fn", "bfloat16", Precision.FLOAT8, "nt", False, SQUARES),
    "int8": ("int8", None, Precision.IEEE, "nt", False, SQUARES),
    "tf32": ("float32", None, Precision.TF32, "nn", False, SQUARES),
    "float32": ("float32", None, Precision.IEEE, "nn", False, (*SQUARES, 4095)),
    "bf16x6": ("float32", None, Precision.BF16X6, "nn", False, SQUARES),
    "float64": ("float64", None, Precision.IEEE, "nn", False, SQUARES),
    "ozaki-15": ("float64", None, Precision.OZAKI_15, "nn", False, SQUARES),
}


def problems(kind: str) -> tuple[GemmProblem, ...]:
    """Return the products of a kind."""
    dtype, out, precision, layout, own, edges = KINDS[kind]
    found = (gemm_problem(edge, edge, edge, dtype, output_type(dtype, out), layout) for edge in edges)
    asked = (dataclasses.replace(problem, precision=precision) for problem in found)
    return tuple(own_product(problem) if own else problem for problem in asked)


def kind_of(record: Mapping[str, Any]) -> str:
    """Return the kind of a record's product."""
    own = bool(record.get("own_transpose"))
    return next(
        kind
        for kind, (dtype, _, precision, layout, is_own, _) in KINDS.items()
        if (record["dtype"], record["precision"], record["layout"], own) == (dtype, precision.value, layout, is_own)
    )


def chosen(problem: GemmProblem, chip: str) -> Choice:
    """Return what a call would run on the GPU of that name."""
    return choose(problem, HOPPER, REGISTRY, multiprocessors=MULTIPROCESSORS, chip=chip)


def compiled(kinds: list[str], chip: str) -> None:
    """Compile all that will run."""
    jobs = []
    for kind in kinds:
        for problem in problems(kind):
            jobs += jobs_of(chosen(problem, chip), problem, HOPPER)
    list(compile_all(list(dict.fromkeys(jobs))))


def main() -> None:
    """Compile, or measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--chip", default="NVIDIA H200")
    parser.add_argument("--seconds", type=float, default=0.1)
    given = parser.parse_args()
    if given.folder == "compile":
        compiled(given.only, given.chip)
        return
    with gpu.open_gpu(baseline=True) as (device, library):
        every = tuple(problem for kind in given.only for problem in problems(kind))
        choices = {problem: chosen(problem, device.name) for problem in every}
        list(compile_all(dict.fromkeys(job for one in every for job in jobs_of(choices[one], one, HOPPER))))
        # The warm-up is a product of its own.
        plan = BenchPlan(
            every, (), seconds=given.seconds, chosen=lambda one: choices.get(one) or chosen(one, device.name)
        )
        bench = GemmBench(plan, device, None, library)
        tuned = {problem: choice.chosen_by == "tuned" for problem, choice in choices.items()}
        names = {product_of(named(problem)): tuned[problem] for problem in every}
        block = experiment(" ".join(sys.argv), device.pci_bus_id) | bench.about()
        with RecordFile(Path(given.folder), block) as file:
            for record in bench.records():
                # The table's rows are kinds.
                file.write(record | {"kind": kind_of(record), "tuned": names[product_of(record)]})
                print(kind_of(record), record["record"], size_text(record), record.get("ratio", ""), flush=True)


if __name__ == "__main__":
    main()
