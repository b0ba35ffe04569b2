"""Products of 8-bit floats compared with cuBLASLt's: ``python benchmarks/records/float8_products.py FOLDER``.

A in rows, B in columns, float8_e4m3fn of normal(0, 1), bfloat16 results. Timed in CUDA graphs, over operands of more
than the L2 cache, interleaved: gemmule with ``precision="float8"``, and as it is by default;
cuBLASLt (`torch._scaled_mm`) as it is by default, and with ``use_fast_accum``, whose sums keep 13 bits over all of K;
and `gemm_reference` where that does not take long. ``compile`` instead of a folder only compiles what will run.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graph_times import fields, graph_of, interleaved

from gemmule.compiler.pool import Job, compile_all
from gemmule.core.arch import Arch
from gemmule.core.dtype import Precision
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose
from gemmule.lab.products import gemm_problem

CUBES = [(edge, edge, edge) for edge in (512, 1024, 2048, 4096, 8192, 16384)]
#: Tokens, outputs and inputs of layers of language models.
LAYERS = [
    (1, 4096, 4096), (16, 7168, 4096), (64, 24576, 1536), (128, 14336, 4096), (512, 4096, 14336), (4096, 7168, 2048),
    (4096, 4096, 14336), (4096, 24576, 1536), (8192, 10240, 8192),
]  # fmt: skip
#: Operations of the largest product that the reference kernel is given; bytes that operands of all sets have.
_MOST_FOR_REFERENCE, _BEYOND_L2 = 2 * 2048**3, 200e6
#: Seconds that a graph takes about, its replays, and assumed operations a second.
_GRAPH_S, _ROUNDS, _RATE = 0.012, 6, 8e14
HOPPER = Arch.parse("sm_90a")


def ways(problem: GemmProblem) -> dict[str, tuple[GemmProblem, Choice]]:
    """Return what gemmule runs, by the name of its field."""
    fast = dataclasses.replace(problem, precision=Precision.FLOAT8)
    found = {"float8": (fast, choose(fast, HOPPER, multiprocessors=132)),
             "default": (problem, choose(problem, HOPPER, multiprocessors=132))}  # fmt: skip
    if problem.flop <= _MOST_FOR_REFERENCE:
        reference = next(spec for spec in REGISTRY if spec.name == "gemm_reference")
        found["reference"] = (problem, Choice(reference, reference.default))
    return found


def measured(size: tuple[int, int, int]) -> dict[str, Any]:
    """Return the record of one product."""
    import torch

    from gemmule.runtime.execute import run_kernel

    m, n, k = size
    problem = gemm_problem(m, n, k, "float8_e4m3fn", "bfloat16", "nt")
    sets = max(2, min(64, int(_BEYOND_L2 / (m * k + n * k)) + 1))
    a = [torch.randn(m, k, device="cuda").to(torch.float8_e4m3fn) for _ in range(sets)]
    b = [torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn) for _ in range(sets)]
    d, one = torch.empty(m, n, device="cuda", dtype=torch.bfloat16), torch.ones((), device="cuda")
    calls = max(3, sets, min(200, int(_GRAPH_S * _RATE / problem.flop)))

    def ours(what: GemmProblem, choice: Choice) -> Callable[[int], None]:
        def work(number: int) -> None:
            at = {"a": a[number % sets].data_ptr(), "b": b[number % sets].data_ptr(), "d": d.data_ptr()}
            run_kernel(what, choice, at, 0, torch.cuda.current_stream().cuda_stream)

        return work

    def theirs(fast: bool) -> Callable[[int], None]:
        def work(number: int) -> None:
            torch._scaled_mm(a[number % sets], b[number % sets].t(), one, one, out_dtype=torch.bfloat16,
                             use_fast_accum=fast, out=d)  # fmt: skip

        return work

    found: dict[str, Any] = {"record": "float8", "m": m, "n": n, "k": k}
    replays = {}
    for name, (what, choice) in ways(problem).items():
        found[f"{name}_kernel"], found[f"{name}_config"] = choice.spec.name, choice.config.as_dict()
        d.fill_(float("nan"))
        run_kernel(what, choice, {"a": a[0].data_ptr(), "b": b[0].data_ptr(), "d": d.data_ptr()}, 0,
                   torch.cuda.current_stream().cuda_stream)  # fmt: skip
        exact = a[0][:16].double() @ b[0].double().t()
        size_of = a[0][:16].double().abs() @ b[0].double().abs().t()
        # The last rounding apart.
        error = ((d[:16].double() - exact).abs() - exact.abs() / 256).clamp(min=0) / size_of
        found[f"{name}_error"] = float(error.max())
        replays[name] = graph_of(ours(what, choice), 3 if name == "reference" else calls)
    for name, fast in (("cublaslt", False), ("cublaslt_fast", True)):
        replays[name] = graph_of(theirs(fast), calls)
    return found | fields(interleaved(replays, _ROUNDS))


def main() -> None:
    """Compile, or measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    folder = parser.parse_args().folder
    if folder == "compile":
        jobs = []
        for size in CUBES + LAYERS:
            for what, choice in ways(gemm_problem(*size, "float8_e4m3fn", "bfloat16", "nt")).values():
                jobs.append(Job(choice.spec, choice.config, choice.signature(what), HOPPER))
                if (then := choice.next_kernel(what)) is not None:
                    jobs.append(Job(then.spec, then.config, then.spec.signature(then.problem, then.config), HOPPER))
        list(compile_all(list(dict.fromkeys(jobs))))
        return
    from gemmule.lab.experiment import experiment
    from gemmule.lab.records import RecordFile
    from gemmule.runtime.device import get_device

    with RecordFile(Path(folder), experiment(" ".join(sys.argv), get_device(0).pci_bus_id)) as file:
        for size in CUBES + LAYERS:
            record = measured(size)
            file.write(record)
            times = {name: us for name, us in record.items() if name.endswith("_us") and "samples" not in name}
            print(size, times, flush=True)


if __name__ == "__main__":
    main()
