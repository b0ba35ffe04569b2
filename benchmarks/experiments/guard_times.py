"""Times of squares by the guard's parts: emulated, refused by the guard, the guard alone, native, cuBLASLt.

Ordinary inputs are normal numbers. Those that the guard refuses are spread over 2**200, which it sees in few lines, or
have one large element, which it does not (refused late). Times are of CUDA graphs over rotating buffers, interleaved:
those of emulation by themselves and cuBLASLt's next, as the power that emulation needs lowers the clock for what comes
after it. The native kernel is timed for each of the inputs, on which its power depends too. What the choice between
emulation and the native kernel is fitted to. Needs a Hopper GPU, PyTorch and the compiler.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import torch
from config_times import Timer
from untuned_choices import Operands, Pool, jobs_of

from gemmule.compiler.pool import compile_all
from gemmule.core.dtype import Precision, dtype_named
from gemmule.core.errors import CompileError, UnsupportedError
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.rates_table import rates_for
from gemmule.kernels.complex.complex64.spec import SPEC as COMPLEX64_GEMM
from gemmule.kernels.complex.complex128.spec import SPEC as COMPLEX128_GEMM
from gemmule.kernels.emulation.decision import decision_choice
from gemmule.kernels.emulation.ozaki_complex.spec import SPEC as OZAKI_COMPLEX
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
#: Powers of two of the inputs that the guard refuses, and the large element; seconds of load before the first product.
_SPAN, _LARGE, _WARM_UP = 100, 2.0**80, 1.5
#: What is timed apart from the rest, and the inputs of what has others than normal numbers.
_EMULATION = ("emulated", "guard")
_INPUTS = {"refused": "refused", "native_refused": "refused", "refused_late": "late", "native_late": "late"}


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
    return {
        "emulated": guarded,
        "refused": guarded,
        "native_refused": alone,
        "refused_late": guarded,
        "native_late": alone,
        "guard": (problem, decision_choice(problem, rates)),
        "native": alone,
    }


def spread(pool: Pool, dtype: str) -> None:
    """Multiply all inputs by random powers of two."""
    real = getattr(torch, dtype_named(dtype).part.name)
    for part in pool.inputs.view(real).split(1 << 26):
        part.mul_(torch.exp2(torch.randint(-_SPAN, _SPAN, part.shape, device="cuda").to(real)))
    torch.cuda.synchronize()


def enlarge(pool: Pool, operands: Operands, problem: GemmProblem) -> None:
    """Make an element of each A large, in no line and at no place along K that the guard's first look reads."""
    side = problem.m
    for index in range(operands.sets):
        a = pool.view(pool.inputs, problem.a, operands.addresses(index)["a"])
        a[side // 2 + 37, side // 48 * 16 + 16 * (side // 48 % 2 == 0)] = _LARGE
    torch.cuda.synchronize()


def measured(gpu: BenchGpu, lt: Any, timer: Timer, pools: dict[str, Pool], problem: GemmProblem) -> dict[str, Any]:
    """Return the record of a square."""
    choices, works = choices_of(problem, get_device()), dict[str, Any]()
    with contextlib.ExitStack() as stack:
        for name, (product, choice) in choices.items():
            pool = pools[_INPUTS.get(name, "emulated")]
            workspaces = stack.enter_context(gpu.workspaces())
            sets = max(1, math.ceil(2 * gpu.l2_bytes / problem.bytes_min))
            operands = Operands(product, sets, pool.inputs.data_ptr(), pool.outputs.data_ptr(), workspaces)
            if pool is pools["late"]:
                enlarge(pool, operands, product)
            works[name] = gpu.kernel(product, choice, operands)  # type: ignore[arg-type]
            works[name]()
            if name == "native":
                for number, one in enumerate(stack.enter_context(lt.algorithms(product, operands))[:_ALGORITHMS]):
                    with contextlib.suppress(UnsupportedError):
                        one.work()
                        works[f"cublaslt {number}"] = one.work
        expected, found = problem.flop / 5e7 + 10, dict[str, float]()
        for names in (_EMULATION, [name for name in reversed(works) if name not in _EMULATION]):
            times = timer([works[name] for name in names], [expected] * len(names), operands.sets)
            found |= dict(zip(names, times, strict=True))
        gpu.wait()
    of_lt = [us for name, us in found.items() if name.startswith("cublaslt")]
    own = {name: us for name, us in found.items() if not name.startswith("cublaslt")}
    config = choices["native"][1].config.as_dict()
    return {"record": "guard_times", **named(problem), "times_us": own, "native_config": config, "cublaslt_us": of_lt}


def main() -> None:
    """Compile, measure, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=KERNELS, default="float64")
    parser.add_argument("--sides", type=int, nargs="*")
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args()
    device, problems = get_device(), [problem_of(side, given.dtype) for side in given.sides or SIDES[given.dtype]]
    jobs = {
        str(job): job
        for problem in problems
        for product, choice in choices_of(problem, device).values()
        for job in jobs_of(product, choice, device.arch)
    }
    for job, result in compile_all(jobs.values()):
        if isinstance(result, CompileError):
            print(f"left out: {job}: {str(result)[:200]}", flush=True)
    block = experiment(f"python benchmarks/experiments/guard_times.py --dtype {given.dtype}", device.pci_bus_id)
    with RecordFile(given.record, block) as file, bench_gpu() as gpu, gpu.cublaslt() as lt:
        pools, timer = {name: Pool() for name in dict.fromkeys(("emulated", *_INPUTS.values()))}, Timer(gpu)
        for pool in pools.values():
            pool.fill(given.dtype)
        spread(pools["refused"], given.dtype)
        warm = time.time()
        while time.time() - warm < _WARM_UP:
            measured(gpu, lt, timer, pools, problems[-1])
        for problem in problems:
            found = measured(gpu, lt, timer, pools, problem)
            file.write(found)
            print(problem.m, found["times_us"], found["cublaslt_us"], flush=True)


if __name__ == "__main__":
    main()
