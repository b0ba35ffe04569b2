"""Products with the kernels and configs to try for each, measured in one run: questions that no search asks.

python benchmarks/records/planned_cells.py benchmarks/records/plans/layouts.jsonl --record benchmarks/results

Needs an NVIDIA GPU and cuBLASLt. A plan has a JSON object on each line: m, n, k, and perhaps dtype, precision, layout
and late, as `gemmule bench gemm` knows them, and `kernels`, a list of [name, fields of its config, and perhaps the
bytes that the L2 cache fetches at once for the copy engine, or an object: fields of the config of the kernel that runs
behind it, or "overlaps": a launch may begin before the one in front of it has ended]. What a call without a tuned table
would take is measured beside them.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gemmule.commands.gpu import known_chip, open_gpu
from gemmule.commands.tune_compile import compiled
from gemmule.core.arch import Arch
from gemmule.core.dtype import Precision
from gemmule.core.launch import Launch, TensorMapParam
from gemmule.core.spec import Choice, KernelSpec, NextKernel
from gemmule.dispatch.former_names import current_fields, current_names
from gemmule.dispatch.rates_table import rates_for
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose
from gemmule.lab.bench_plan import BenchPlan
from gemmule.lab.experiment import experiment
from gemmule.lab.products import gemm_problem, output_type
from gemmule.lab.records import RecordFile
from gemmule.lab.tuning.tuner import Search, Tuner

SPECS = {spec.name: spec for spec in REGISTRY}


def promoted(spec: KernelSpec, promotion: int | None = None) -> KernelSpec:
    """Return a kernel whose tensor maps let the L2 cache fetch so many bytes at once; 0 for no more than is asked."""
    if promotion is None:
        return spec

    launch = functools.partial(promoted_launch, spec.launch, promotion)
    next_kernel = spec.next_kernel and functools.partial(promoted_next, spec.next_kernel, promotion)
    return dataclasses.replace(spec, name=f"{spec.name}_l2_{promotion}", launch=launch, next_kernel=next_kernel)


def promoted_next(next_kernel: Callable[..., NextKernel], promotion: int, *given: Any) -> NextKernel:
    """Return what runs behind a kernel's launch, with other tensor maps."""
    found = next_kernel(*given)
    return dataclasses.replace(found, spec=promoted(found.spec, promotion))


def followed(spec: KernelSpec, fields: dict[str, Any]) -> KernelSpec:
    """Return a kernel behind which another runs in a config that is given; its name ends in what was given."""
    assert spec.next_kernel is not None
    given = "_".join(f"{name}_{value}" for name, value in fields.items())
    next_kernel = functools.partial(replaced_next, spec.next_kernel, fields)
    return dataclasses.replace(spec, name=f"{spec.name}_then_{given}", next_kernel=next_kernel)


def replaced_next(next_kernel: Callable[..., NextKernel], fields: dict[str, Any], *given: Any) -> Any:
    """Return what runs behind a kernel's launch, in another config."""
    found = next_kernel(*given)
    return dataclasses.replace(found, config=type(found.config)(**(found.config.as_dict() | fields)))


def promoted_launch(launch: Callable[..., Launch], promotion: int, problem: Any, config: Any) -> Launch:
    """Return a launch recipe with other tensor maps; a function by itself, so that other processes find it."""
    found = launch(problem, config)
    params = (
        dataclasses.replace(one, promotion=promotion) if isinstance(one, TensorMapParam) else one
        for one in found.params
    )
    return dataclasses.replace(found, params=tuple(params))


def overlapping(spec: KernelSpec) -> KernelSpec:
    """Return a kernel whose launches may begin before the one in front has ended."""
    return dataclasses.replace(
        spec, name=f"{spec.name}_overlapping", launch=functools.partial(overlapping_launch, spec.launch)
    )


def overlapping_launch(launch: Callable[..., Launch], problem: Any, config: Any) -> Launch:
    """Return a launch recipe that may overlap."""
    return dataclasses.replace(launch(problem, config), overlaps=True)


def variant(spec: KernelSpec, other: int | str | dict[str, Any] | None = None) -> KernelSpec:
    """Return a kernel with what a plan asks for beside its config."""
    if isinstance(other, dict):
        return followed(spec, other)
    if isinstance(other, str):
        if other != "overlaps":
            raise SystemExit(f"{other!r}: a plan may ask for 'overlaps', a number of bytes, or fields of a config")
        return overlapping(spec)
    return promoted(spec, other)


def searches(plan: Path, arch: Arch, chip: str, multiprocessors: int) -> list[Search]:
    """Return what a plan asks for: each product with the kernels and configs that take it."""
    found, gpu = [], rates_for(chip, multiprocessors)
    for line in filter(None, plan.read_text(encoding="utf-8").splitlines()):
        asked: dict[str, Any] = json.loads(line)
        dtype = asked.get("dtype", "bfloat16")
        size, late = (asked["m"], asked["n"], asked["k"]), asked.get("late", False)
        problem = gemm_problem(*size, dtype, output_type(dtype, None), asked.get("layout", "nn"), misaligned=late)
        problem = dataclasses.replace(problem, precision=Precision.parse(asked.get("precision")))
        tried = []
        for given, fields, *other in asked["kernels"]:
            name = current_names(given)
            spec = variant(SPECS[name], *other)
            config = spec.default.of_record(spec.default.as_dict() | current_fields(name, fields))
            if reason := spec.why_not(problem, arch, config):
                print(f"left out: {name}[{config}]: {reason}")
            else:
                tried.append(Choice(spec, config, gpu=gpu))
        taken = choose(problem, arch, REGISTRY, multiprocessors=multiprocessors, chip=chip, tuned=False)
        found.append(Search(problem, tuple(tried), Choice(taken.spec, taken.config, gpu=gpu)))
    return found


def measure(plan: Path, wanted: Sequence[Search], gpu: Any, library: Any, options: argparse.Namespace) -> None:
    """Measure the products of a plan, and write a record file."""
    bench = BenchPlan((), (wanted[0].taken,), seconds=options.seconds, warm_up_seconds=1.5)
    tuner = Tuner(wanted, bench, gpu, known_chip(gpu.name), library, keep=options.keep)
    command = f"python benchmarks/records/planned_cells.py benchmarks/records/plans/{plan.name} --keep {options.keep}"
    with RecordFile(options.record, experiment(command, gpu.pci_bus_id) | tuner.about()) as file:
        for cell in tuner.cells():
            problem = cell.search.problem
            print(f"{problem.m} x {problem.n} x {problem.k} {problem.a.dtype} {problem.layout}", flush=True)
            for one in cell.records:
                file.write(one)
                if "ratio" in one:
                    config = " ".join(f"{name}={value}" for name, value in one["config"].items())
                    print(f"  {one['median_us']:9.1f} us {one['ratio']:.3f} {one['kernel']} {config}")
                elif "reason" in one:
                    print(f"  {one['record']}: {one.get('what', one.get('kernel'))}: {one['reason']}")
            if time.monotonic() > options.end:
                print("stopped")
                break
    print(file.path)


def main() -> None:
    """Compile what is asked for, and measure it, plan after plan."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plans", type=Path, nargs="+", metavar="PLAN")
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--seconds", type=float, default=0.1, help="time for each measurement")
    parser.add_argument("--keep", type=int, default=100, help="configs that are timed after a survey of all")
    parser.add_argument("--limit", type=float, default=600.0, help="end each plan after so many seconds from the start")
    parser.add_argument("--workers", type=int, help="processes that compile; one for each CPU by default")
    parser.add_argument("--compile", action="store_true", help="compile, and measure nothing")
    options = parser.parse_args()
    options.end = time.monotonic() + options.limit
    with open_gpu(baseline=not options.compile) as (gpu, library):
        for plan in options.plans:
            wanted = compiled(searches(plan, gpu.arch, gpu.name, gpu.multiprocessors), gpu.arch, options.workers)
            if not options.compile and time.monotonic() < options.end:
                measure(plan, wanted, gpu, library, options)


if __name__ == "__main__":
    main()
