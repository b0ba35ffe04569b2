"""Few rows by 8-bit weights beside PyTorch's, which are cuBLASLt's: ``python benchmarks/records/few_rows.py FOLDER``.

A in rows, B in columns, float8_e4m3fn of normal(0, 1), bfloat16 results; timed as `float8_products.py` does:
`hopper_gemm_w8a16` in the config that is chosen, `hopper_gemm_upcast`, and cuBLASLt, by default and with
``use_fast_accum``. With ``--search N`` the N configs that are expected to be fastest are timed, too. With ``--rows
bfloat16`` A is of that type, which cuBLASLt does not take. ``compile`` instead of a folder only compiles what will run.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from float8_products import HOPPER
from graph_times import fields, graph_of, interleaved

from gemmule.compiler.pool import Job, compile_all
from gemmule.core.dtype import dtype_named
from gemmule.core.gpu_rates import H200_RATES
from gemmule.core.layout import contiguous
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice, KernelSpec
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose
from gemmule.kernels.hopper.gemm_w8a16.spec import SPEC as MIXED
from gemmule.kernels.hopper.gemm_w8a16.spec import costs
from gemmule.lab.products import gemm_problem

SHAPES = [(n, k) for n, k in ((4096, 4096), (14336, 4096), (4096, 14336), (28672, 8192))]
ROWS = (1, 4, 16, 32, 64, 128, 256, 512, 1024)
#: Bytes that operands of all sets have, rounds, bytes of weights that a graph reads about.
_BEYOND_L2, _ROUNDS, _GRAPH = 200e6, 4, 1e9
#: An error that rounding does not make.
_WRONG = 1e-6


def chosen(spec: KernelSpec, problem: GemmProblem) -> Choice:
    """Return a kernel in the config that it would be launched in."""
    return choose(problem, HOPPER, (spec,), multiprocessors=132)


def problem_of(size: tuple[int, int, int], rows: str) -> GemmProblem:
    """Return a product of rows of that type by 8-bit weights."""
    m, _, k = size
    problem = gemm_problem(*size, "float8_e4m3fn", "bfloat16", "nt")
    return dataclasses.replace(problem, a=contiguous(dtype_named(rows), m, k))


def ways(problem: GemmProblem, search: int) -> dict[str, Choice]:
    """Return what gemmule runs, by name."""
    widened = next(spec for spec in REGISTRY if spec.name == "hopper_gemm_upcast")
    found = {"mixed": chosen(MIXED, problem), "widened": chosen(widened, problem)}
    able = [config for config in MIXED.configs if MIXED.why_not(problem, HOPPER, config) is None]
    order = sorted(zip(costs(problem, able, H200_RATES), range(len(able)), strict=True))
    for _, number in order[:search]:
        found[str(able[number])] = Choice(MIXED, able[number])
    return found


def measured(size: tuple[int, int, int], rows: str, search: int) -> dict[str, Any]:
    """Return the record of one product."""
    import torch

    from gemmule.runtime.execute import run_kernel

    m, n, k = size
    problem = problem_of(size, rows)
    sets = max(2, min(64, int(_BEYOND_L2 / (m * k + n * k)) + 1))
    a = [torch.randn(m, k, device="cuda").to(getattr(torch, rows)) for _ in range(sets)]
    b = [torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn) for _ in range(sets)]
    d, one = torch.empty(m, n, device="cuda", dtype=torch.bfloat16), torch.ones((), device="cuda")
    calls = sets * max(1, int(_GRAPH / (sets * n * k)))

    def ours(choice: Choice) -> Callable[[int], None]:
        def work(number: int) -> None:
            at = {"a": a[number % sets].data_ptr(), "b": b[number % sets].data_ptr(), "d": d.data_ptr()}
            run_kernel(problem, choice, at, 0, torch.cuda.current_stream().cuda_stream)

        return work

    def theirs(fast: bool) -> Callable[[int], None]:
        def work(number: int) -> None:
            torch._scaled_mm(a[number % sets], b[number % sets].t(), one, one, out_dtype=torch.bfloat16,
                             use_fast_accum=fast, out=d)  # fmt: skip

        return work

    found: dict[str, Any] = {"record": "few_rows", "rows": rows, "m": m, "n": n, "k": k}
    replays = {}
    exact, size_of = a[0].double() @ b[0].double().t(), a[0].double().abs() @ b[0].double().abs().t()

    def errors() -> Any:
        # The last rounding apart.
        return ((d.double() - exact).abs() - exact.abs() / 256).clamp(min=0) / size_of

    for name, choice in ways(problem, search).items():
        if name in ("mixed", "widened"):
            found[f"{name}_config"] = choice.config.as_dict()
        d.fill_(float("nan"))
        run_kernel(problem, choice, {"a": a[0].data_ptr(), "b": b[0].data_ptr(), "d": d.data_ptr()}, 0,
                   torch.cuda.current_stream().cuda_stream)  # fmt: skip
        found[f"{name}_error"] = error = float(errors().max())
        if not error < _WRONG:
            at = (errors() >= _WRONG).nonzero()
            print(*size, name, "is wrong by", error, "and at", len(at), "elements", at[:4].tolist(), at[-4:].tolist())
        replays[name] = graph_of(ours(choice), calls)
    for name, fast in (("cublaslt", False), ("cublaslt_fast", True)) if problem.a.dtype == problem.b.dtype else ():
        replays[name] = graph_of(theirs(fast), calls)
    return found | fields(interleaved(replays, _ROUNDS))


def main() -> None:
    """Compile, or measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--search", type=int, default=0)
    parser.add_argument("--rows", default="float8_e4m3fn", choices=["float8_e4m3fn", "float16", "bfloat16"])
    given = parser.parse_args()
    sizes = [(m, n, k) for n, k in SHAPES for m in ROWS]
    if given.folder == "compile":
        jobs = []
        for size in sizes:
            problem = problem_of(size, given.rows)
            for choice in ways(problem, given.search).values():
                jobs.append(Job(choice.spec, choice.config, choice.signature(problem), HOPPER))
                if (then := choice.next_kernel(problem)) is not None:
                    jobs.append(Job(then.spec, then.config, then.spec.signature(then.problem, then.config), HOPPER))
        list(compile_all(list(dict.fromkeys(jobs))))
        return
    from gemmule.lab.experiment import experiment
    from gemmule.lab.records import RecordFile
    from gemmule.runtime.device import get_device

    # Every capture of a graph collects garbage first.
    gc.freeze()
    with RecordFile(Path(given.folder), experiment(" ".join(sys.argv), get_device(0).pci_bus_id)) as file:
        for size in sizes:
            record = measured(size, given.rows, given.search)
            file.write(record)
            times = {name[:-3]: us for name, us in record.items() if name.endswith("_us") and "samples" not in name}
            print(*size, *(f"{name}:{us}" for name, us in sorted(times.items(), key=lambda x: x[1])[:9]), flush=True)


if __name__ == "__main__":
    main()
