"""Times of squares by the guard's parts: emulated, refused by the guard, the guard alone, native, cuBLASLt.

Ordinary inputs are normal numbers. Those that the guard refuses are spread over 2**200, which it sees in few lines, or
have a large element in more contiguous rows than it computes natively (refused late), or as many pairs of lines whose
sum of magnitudes is small (refused last). Unseen are the same in lines that it does not look at before all others. With
a large element in ``--lines`` rows (1) the product is emulated but for these. Times are of CUDA graphs over rotating
buffers, interleaved: those of emulation by themselves and cuBLASLt's next, as the power that emulation needs lowers the
clock for what comes after it. The native kernel is timed for each of the inputs, on which its power depends too. What
the choice between emulation and the native kernel is fitted to. ``--refusals`` times ordinary inputs and refusals only,
so many times in turns with the native kernel and cuBLASLt. Needs a Hopper GPU, PyTorch and the compiler.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from config_times import Timer
from untuned_choices import Operands, Pool, jobs_of

from gemmule.compiler.pool import compile_all
from gemmule.core.dtype import Precision, dtype_named
from gemmule.core.errors import CompileError, UnsupportedError, WrongResultError
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.rates_table import rates_for
from gemmule.kernels.complex.complex64.spec import SPEC as COMPLEX64_GEMM
from gemmule.kernels.complex.complex128.spec import SPEC as COMPLEX128_GEMM
from gemmule.kernels.emulation.decision import WORDS, decision_choice
from gemmule.kernels.emulation.guard import NATIVE_SHARE
from gemmule.kernels.emulation.ozaki_complex.spec import SPEC as OZAKI_COMPLEX
from gemmule.kernels.emulation.ozaki_config import EARLY_PERIOD, PAIR_SIDE, ScalesConfig
from gemmule.kernels.emulation.ozaki_gemm.spec import SPEC as OZAKI
from gemmule.kernels.float64.gemm.spec import SPEC as NATIVE
from gemmule.lab.experiment import experiment
from gemmule.lab.gemm_operation import named
from gemmule.lab.products import gemm_problem
from gemmule.lab.records import RecordFile
from gemmule.runtime.bench import BenchGpu, bench_gpu
from gemmule.runtime.device import get_device

#: The guarded and the native kernel, and squares.
KERNELS = {
    "float64": (OZAKI, NATIVE),
    "complex128": (OZAKI_COMPLEX, COMPLEX128_GEMM),
    "complex64": (OZAKI_COMPLEX, COMPLEX64_GEMM),
}
SIDES = {
    "float64": (2048, 1024, 4096, 1536, 512, 256, 2560, 3072, 1792),
    "complex128": (8192, 2048, 4096, 1024, 1536),
    "complex64": (8192, 2048, 4096, 1024, 768),
}
#: Algorithms of cuBLASLt that are timed, those that its heuristic names first.
_ALGORITHMS = 4
#: Powers of two of the inputs that the guard refuses, the large element, and small ones; seconds of load before the
#: first product.
_SPAN, _LARGE, _SMALL, _WARM_UP = 100, 2.0**80, 2.0**-60, 1.5
#: Inputs, of names that others end with first, and those that the guard refuses.
_INPUTS = ("unseen_late", "unseen_last", "refused", "late", "last", "lines")
_REFUSED = ("refused", "late", "last", "unseen_late", "unseen_last")
#: What is timed of refusals: the guard, and the whole product between the native kernel before and after.
_GUARDS = tuple(f"guard_{inputs}" for inputs in _REFUSED)
_REFUSALS = ("native_late", "refused", *(f"refused_{inputs}" for inputs in _REFUSED[1:]), "native_last")


def problem_of(side: int, dtype: str) -> GemmProblem:
    """Return a guarded square product."""
    plain = gemm_problem(side, side, side, dtype, dtype, "nn")
    return dataclasses.replace(plain, precision=Precision.OZAKI)


def choices_of(problem: GemmProblem, device: Any) -> dict[str, tuple[GemmProblem, Choice]]:
    """Return what is timed, by name."""
    rates = rates_for(device.name, device.multiprocessors)
    plain = dataclasses.replace(problem, precision=Precision.IEEE)
    spec, native_spec = KERNELS[problem.a.dtype.name]
    native = native_spec.cheapest(plain, device.arch, rates)
    assert native is not None
    guarded, alone = (
        (problem, Choice(spec, spec.default, gpu=rates)),
        (plain, Choice(native_spec, native[0], gpu=rates)),
    )
    found = {"emulated": guarded, "native": alone, "guard": (problem, decision_choice(problem, rates))}
    for inputs in _INPUTS:
        whole = {"refused": "refused", "lines": "emulated_lines"}.get(inputs, f"refused_{inputs}")
        found |= {f"guard_{inputs}": found["guard"], whole: guarded, f"native_{inputs}": alone}
    return found


def inputs_of(name: str) -> str:
    """Return the name of the inputs of what is timed."""
    return next((inputs for inputs in _INPUTS if name.endswith(inputs)), "emulated")


def spread(pool: Pool, dtype: str) -> None:
    """Multiply all inputs by random powers of two."""
    real = getattr(torch, dtype_named(dtype).part.name)
    for part in pool.inputs.view(real).split(1 << 26):
        part.mul_(torch.exp2(torch.randint(-_SPAN, _SPAN, part.shape, device="cuda").to(real)))
    torch.cuda.synchronize()


def runs_of(side: int, count: int, *, is_unseen: bool) -> list[tuple[int, int]]:
    """Return runs of lines that are changed, first ones and sizes: one, or all between those that the guard reads."""
    begin, found = side // 2 + 37, list[tuple[int, int]]()
    if not is_unseen:
        return [(begin, count)]
    together = ScalesConfig().together
    places = PAIR_SIDE // 2
    seen = {number // 2 * side // places // 2 * 2 + number % 2 for number in range(PAIR_SIDE)}
    lines = [x for x in range(begin, side) if x not in seen and x // together % EARLY_PERIOD][:count]
    for line in lines:
        if found and line == sum(found[-1]):
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((line, 1))
    return found


@contextlib.contextmanager
def changed(pool: Pool, operands: Operands, problem: GemmProblem, inputs: str, count: int) -> Iterator[None]:
    """Make inputs of ordinary ones: at no place along K that the guard's first look reads.

    For late ones an element in each of `count` rows of A is large, for those of lines too; for last ones half of the
    rows is small, and the other half of as many columns of B.
    """
    side, parts = problem.m, list[tuple[torch.Tensor, float]]()
    for index in range(operands.sets):
        places = operands.addresses(index)
        a, b = (pool.view(pool.inputs, x, places[name]) for name, x in (("a", problem.a), ("b", problem.b)))
        for first, size in runs_of(side, count, is_unseen=inputs.startswith("unseen")):
            lines = slice(first, first + size)
            if inputs.endswith("last"):
                parts += [(a[lines, side // 2 :], _SMALL), (b[: side // 2, lines], _SMALL)]
            else:
                place = side // 48 * 16 + 16 * (side // 48 % 2 == 0)
                parts.append((a[lines, place : place + 1], _LARGE))
    for part, factor in parts:
        part.mul_(factor)
    torch.cuda.synchronize()
    yield
    # Powers of two: as they were.
    for part, factor in parts:
        part.div_(factor)
    torch.cuda.synchronize()


def measured(
    gpu: BenchGpu, lt: Any, timer: Timer, pools: dict[str, Pool], problem: GemmProblem, given: argparse.Namespace
) -> dict[str, Any]:
    """Return the record of a square."""
    choices, works, refusals = choices_of(problem, get_device()), dict[str, Any](), given.refusals
    if refusals:
        choices = {name: choices[name] for name in ("emulated", *_GUARDS, *_REFUSALS)}
    ready = set[str]()
    with contextlib.ExitStack() as stack:
        for name, (product, choice) in choices.items():
            inputs = inputs_of(name)
            pool = pools[inputs]
            workspaces = stack.enter_context(gpu.workspaces())
            sets = max(1, math.ceil(2 * gpu.l2_bytes / problem.bytes_min))
            operands = Operands(product, sets, pool.inputs.data_ptr(), pool.outputs.data_ptr(), workspaces)
            if inputs not in ("emulated", "refused") and inputs not in ready:
                count = given.lines if inputs == "lines" else problem.m // NATIVE_SHARE + 1
                stack.enter_context(changed(pool, operands, product, inputs, count))
                ready.add(inputs)
            works[name] = gpu.kernel(product, choice, operands)  # type: ignore[arg-type]
            works[name]()
            if name in (*_GUARDS, "guard_lines"):
                gpu.wait()
                decision = pool.outputs[: 4 * WORDS].view(torch.int32).tolist()
                lines = given.lines if name == "guard_lines" else 0
                if decision[1:] != [lines, 0] or (name in _GUARDS and decision[0]):
                    raise WrongResultError(f"the guard decides {decision} for inputs of {name}")
            if name == ("native_late" if refusals else "native"):
                for number, one in enumerate(stack.enter_context(lt.algorithms(product, operands))[:_ALGORITHMS]):
                    with contextlib.suppress(UnsupportedError):
                        one.work()
                        works[f"cublaslt {number}"] = one.work
        expected = problem.flop / 5e7 + 10
        samples: dict[str, list[float]] = {name: [] for name in works}
        apart = [name for name in works if name.startswith(("emulated", "guard"))]
        rest = [name for name in reversed(works) if name not in apart]
        for names in [apart, rest] * max(refusals, 1):
            times = timer([works[name] for name in names], [expected] * len(names), operands.sets)
            for name, us in zip(names, times, strict=True):
                samples[name].append(us)
        medians = {name: statistics.median(times) for name, times in samples.items()}
        gpu.wait()
    of_lt = [us for name, us in medians.items() if name.startswith("cublaslt")]
    own = {name: us for name, us in medians.items() if not name.startswith("cublaslt")}
    config = choices["native_late"][1].config.as_dict()
    found = {"record": "guard_times", **named(problem), "times_us": own, "native_config": config, "cublaslt_us": of_lt}
    found["lines"] = given.lines
    return found | ({"samples_us": samples} if refusals else {})


def main() -> None:
    """Compile, measure, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=KERNELS, default="float64")
    parser.add_argument("--sides", type=int, nargs="*")
    parser.add_argument("--refusals", type=int, default=0, help="refusals only, so many times beside cuBLASLt")
    parser.add_argument(
        "--lines", type=int, default=1, help="rows with a large element, which the native kernel computes"
    )
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args()
    device, problems = get_device(), [problem_of(side, given.dtype) for side in given.sides or SIDES[given.dtype]]
    jobs = {
        str(job): job
        for problem in problems
        for name, (product, choice) in choices_of(problem, device).items()
        if not given.refusals or name in ("emulated", *_GUARDS, *_REFUSALS)
        for job in jobs_of(product, choice, device.arch)
    }
    for job, result in compile_all(jobs.values()):
        if isinstance(result, CompileError):
            print(f"left out: {job}: {str(result)[:200]}", flush=True)
    command = f"python benchmarks/experiments/guard_times.py --dtype {given.dtype} --refusals {given.refusals}"
    block = experiment(command, device.pci_bus_id)
    with RecordFile(given.record, block) as file, bench_gpu() as gpu, gpu.cublaslt() as lt:
        kinds = ("emulated", *(_REFUSED if given.refusals else _INPUTS))
        pools, timer = {name: Pool() for name in kinds}, Timer(gpu)
        for pool in pools.values():
            pool.fill(given.dtype)
        spread(pools["refused"], given.dtype)
        warm, short = time.time(), argparse.Namespace(refusals=min(given.refusals, 1), lines=given.lines)
        while time.time() - warm < _WARM_UP:
            measured(gpu, lt, timer, pools, problems[-1], short)
        for problem in problems:
            found = measured(gpu, lt, timer, pools, problem, given)
            file.write(found)
            print(problem.m, found["times_us"], found["cublaslt_us"], flush=True)


if __name__ == "__main__":
    main()
