"""What fused epilogues cost: ``python benchmarks/epilogues.py --record benchmarks/results``.

For bfloat16 products, times the product alone, with each epilogue, and PyTorch's way to the same result, in turns. Each
result is first held against float64 on some rows. Needs an NVIDIA GPU and PyTorch.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gemmule.api.epilogues import ending_of
from gemmule.compiler.pool import Job, compile_all
from gemmule.core.dtype import BFLOAT16
from gemmule.core.epilogue import Epilogue
from gemmule.core.errors import WrongResultError
from gemmule.core.layout import StridedMatrix, contiguous
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose
from gemmule.host.epilogue import apply
from gemmule.lab import protocol
from gemmule.lab.experiment import experiment
from gemmule.lab.gemm_records import all_us, circumstances, named, us
from gemmule.lab.products import as_matrix, gemm_problem, random_inputs
from gemmule.lab.records import RecordFile
from gemmule.lab.timing import load, measure
from gemmule.runtime.bench import BenchGpu, bench_gpu
from gemmule.runtime.rotation import OperandSets, Rotation

#: M, N, K and layout: a square, then the linear layers of language models, whose weights are stored as (N, K).
SHAPES = (
    (4096, 4096, 4096, "nn"),
    (4096, 14336, 4096, "nt"),
    (4096, 4096, 14336, "nt"),
    (2048, 4096, 4096, "nt"),
    (512, 14336, 4096, "nt"),
    (64, 4096, 4096, "nt"),
)
SEED, ROWS = 7, 32
#: Epilogues that are measured in several configs of the Hopper kernel, for the first product.
SEARCHED = ("bias_gelu", "bias_silu")
#: Seconds of samples of an epilogue.
BUDGET = 0.3

Shape = tuple[int, int, int, str]


@dataclasses.dataclass(frozen=True)
class Form:
    """An epilogue: what gemmule is told, and PyTorch's way.

    Attributes
    ----------
    epilogue : function or str or None
        As of `gemm`.
    bias, residual : bool
        Whether a bias of N elements is added, and whether a matrix goes in: C where there is no function.
    torch : callable
        ``torch(ops, d, a, b, bias, residual)`` queues PyTorch's operations.
    """

    epilogue: Any
    bias: bool
    residual: bool
    torch: Callable[..., None]


def _activated(name: str, **options: Any) -> Callable[..., None]:
    def queue(ops: Any, d: Any, a: Any, b: Any, bias: Any, residual: Any) -> None:
        del residual
        ops.addmm.out(bias, a, b, out=d)
        getattr(ops, name).out(d, **options, out=d)

    return queue


def _added(ops: Any, d: Any, a: Any, b: Any, bias: Any, residual: Any) -> None:
    ops.addmm.out(bias if residual is None else residual, a, b, out=d)


def _residual(ops: Any, d: Any, a: Any, b: Any, bias: Any, residual: Any) -> None:
    ops.addmm.out(bias, a, b, out=d)
    ops.add.out(d, residual, out=d)


FORMS = {
    "bias": Form(None, True, False, _added),
    "bias_relu": Form("relu", True, False, _activated("relu")),
    "bias_gelu": Form("gelu", True, False, _activated("gelu")),
    "bias_gelu_tanh": Form("gelu_tanh", True, False, _activated("gelu", approximate="tanh")),
    "bias_silu": Form("silu", True, False, _activated("silu")),
    "beta_c": Form(None, False, True, _added),
    "c": Form(lambda acc, c: acc + c, False, True, _added),
    "bias_residual": Form(lambda acc, c: acc + c, True, True, _residual),
}


def fused(problem: GemmProblem, form: Form) -> GemmProblem:
    """Return a product with an epilogue."""
    ending, _ = ending_of(form.epilogue, form.bias or None, form.residual or None, None)
    if ending is None:
        return dataclasses.replace(problem, c=contiguous(BFLOAT16, problem.m, problem.n), beta=1)
    bias = StridedMatrix(BFLOAT16, problem.m, problem.n, 0, 1)
    c = contiguous(BFLOAT16, problem.m, problem.n) if form.residual else None
    epilogue = Epilogue(ending.expression, (bias,) if form.bias else ())
    return dataclasses.replace(problem, c=c, epilogue=epilogue)


def torch_work(form: Form, problem: GemmProblem, operands: OperandSets, stream: int) -> Rotation:
    """Return PyTorch's operations on every buffer set in turn."""
    import torch

    def tensor(address: int, shape: tuple[int, ...]) -> Any:
        memory = type("Memory", (), {})()
        memory.__cuda_array_interface__ = {
            "version": 3, "shape": shape, "typestr": "<i2", "data": (address, False), "strides": None,
        }  # fmt: skip
        return torch.as_tensor(memory, device="cuda:0").view(torch.bfloat16)

    def lying(matrix: StridedMatrix, address: int) -> Any:
        if matrix.is_row_major:
            return tensor(address, (matrix.rows, matrix.cols))
        return tensor(address, (matrix.cols, matrix.rows)).t()

    ours = torch.cuda.ExternalStream(stream)

    def queued(index: int) -> Callable[[], None]:
        at = operands.addresses(index)
        a, b, d = lying(problem.a, at["a"]), lying(problem.b, at["b"]), lying(problem.d, at["d"])
        bias = tensor(at["e0"], (problem.n,)) if form.bias else None
        residual = lying(problem.d, at["c"]) if form.residual else None

        def queue() -> None:
            with torch.cuda.stream(ours):
                form.torch(torch.ops.aten, d, a, b, bias, residual)

        return queue

    return Rotation([queued(index) for index in range(operands.sets)])


class Rows:
    """Some rows of a product in float64, to hold results against.

    Parameters
    ----------
    problem : GemmProblem
        The product alone.
    inputs : dict of str to ndarray
        Its factors, C and the bias.
    """

    def __init__(self, problem: GemmProblem, inputs: dict[str, Any]) -> None:
        self.rows = np.unique(np.linspace(0, problem.m - 1, ROWS).astype(int))
        a, b = (as_matrix(inputs[name], matrix) for name, matrix in (("a", problem.a), ("b", problem.b)))
        some, wide = a[self.rows].astype(np.float64), b.astype(np.float32).astype(np.float64)
        self.product, self.size = some @ wide, np.abs(some) @ np.abs(wide)
        self.c, self.bias = inputs["c"][self.rows].astype(np.float64), inputs["e0"].astype(np.float64)

    def worst_error(self, problem: GemmProblem, out: Any) -> float:
        """Return the greatest error of a result as a share of its bound."""
        expected, size = self.product + self.c, self.size + np.abs(self.c) + np.abs(self.bias)
        if problem.epilogue is not None:
            matrices = [self.bias] if problem.epilogue.matrices else []
            expected = np.empty_like(self.product)
            apply(expected, self.product, problem.epilogue.expression, self.c, matrices, ())
        bound = BFLOAT16.unit_roundoff * np.abs(expected) * 1.01 + (problem.k + 16) * 2.0**-24 * size
        error = np.abs(out[self.rows].astype(np.float64) - expected) / bound
        return float(error.max()) if np.isfinite(error).all() else float("inf")


def measured(
    gpu: BenchGpu, stream: int, shape: Shape, names: Sequence[str], searched: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Measure epilogues of one product, in the config that dispatch takes or in those of the Hopper kernel."""
    plain = gemm_problem(*shape[:3], "bfloat16", "bfloat16", shape[3])
    plain_choice = choose(plain, gpu.arch, multiprocessors=gpu.multiprocessors, chip=gpu.name)
    inputs = random_inputs(plain, SEED)
    rng = np.random.default_rng(SEED)
    inputs |= {"c": rng.standard_normal((plain.m, plain.n), np.float32).astype(BFLOAT16.numpy())}
    inputs |= {"e0": rng.standard_normal(plain.n, np.float32).astype(BFLOAT16.numpy())}
    rows = Rows(plain, inputs)
    for name in names:
        problem = fused(plain, FORMS[name])
        own = {role: inputs[role] for role in problem.operands() if role != "d"}
        sets = protocol.buffer_sets(problem.bytes_min, gpu.l2_bytes)
        for choice in choices(problem, gpu, searched):
            with gpu.operands(problem, own, sets) as operands:
                operands.poison(0xFF)
                works = [
                    gpu.kernel(problem, choice, operands),
                    gpu.kernel(plain, plain_choice, operands),
                    torch_work(FORMS[name], problem, operands, stream),
                ]
                works[0]()
                error = rows.worst_error(problem, operands.output(0))
                if error > 1:
                    raise WrongResultError(f"{shape} {name} [{choice.config}]: error is {error:.3g} times its bound")
                for work in works[1:]:
                    work()
                timing = measure(gpu, works, sets, BUDGET)
                found = {
                    "record": "epilogue",
                    "kernel": choice.spec.name,
                    "config": choice.config.as_dict(),
                    "plain_config": plain_choice.config.as_dict(),
                    **named(problem),
                    "epilogue": name,
                    "chosen_by": "search" if searched else "dispatch",
                    **figures(timing.samples),
                    "timing": timing.method,
                    "error_of_bound": round(error, 4),
                    **circumstances(operands, timing, 0),
                }
            print(
                f"{'x'.join(map(str, shape))} {name} [{choice.config}]: {found['median_us']} us, over the product "
                f"alone {found['over_plain']}, torch {found['torch_ratio']}, error {found['error_of_bound']}",
                flush=True,
            )
            yield found


def figures(samples: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return the times of the epilogue, of the product alone and of PyTorch, and their paired ratios."""
    ours, alone, theirs = samples
    found: dict[str, Any] = {}
    for name, one in (("", ours), ("plain_", alone), ("torch_", theirs)):
        found[f"{name}median_us" if not name else f"{name}us"] = us(statistics.median(one))
        found[f"{name}samples_us"] = all_us(one)
    for name, first, second in (("over_plain", alone, ours), ("torch_ratio", ours, theirs)):
        ratio = protocol.paired_ratios(first, second)
        found |= {
            name: round(ratio.median, 4),
            f"{name}_low": round(ratio.low, 4),
            f"{name}_high": round(ratio.high, 4),
        }
    return found


def choices(problem: GemmProblem, gpu: BenchGpu, searched: Sequence[int]) -> list[Choice]:
    """Return what dispatch takes, or the Hopper kernel in configs of those numbers."""
    if not searched:
        return [choose(problem, gpu.arch, multiprocessors=gpu.multiprocessors, chip=gpu.name)]
    spec = next(spec for spec in REGISTRY if spec.name == "h09_production")
    configs = [spec.configs[number] for number in searched]
    return [Choice(spec, config) for config in configs if spec.why_not(problem, gpu.arch, config) is None]


def jobs(shapes: Sequence[Shape], names: Sequence[str], gpu: BenchGpu, searched: Sequence[int]) -> list[Job]:
    """Return what must be compiled, each kernel once."""
    found: dict[Any, Job] = {}
    for shape in shapes:
        plain = gemm_problem(*shape[:3], "bfloat16", "bfloat16", shape[3])
        for problem in (plain, *(fused(plain, FORMS[name]) for name in names)):
            for choice in choices(problem, gpu, searched if problem.epilogue else ()):
                job = Job(choice.spec, choice.config, choice.signature(problem), gpu.arch)
                found[job.spec.name, job.config, job.signature] = job
    return list(found.values())


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--record", type=Path, required=True, help="folder for the record file")
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help="how many of the shapes")
    parser.add_argument("--epilogues", nargs="*", default=list(FORMS), choices=list(FORMS))
    parser.add_argument("--search", nargs="*", type=int, default=[], help="numbers of configs of h09_production")
    given = parser.parse_args()
    shapes = SHAPES[: given.shapes]
    with bench_gpu() as gpu:
        todo = [*jobs(shapes, given.epilogues, gpu, ()), *jobs(shapes[:1], SEARCHED, gpu, given.search)]
        start = time.perf_counter()
        for job, result in compile_all(todo):
            if isinstance(result, Exception):
                raise RuntimeError(f"{job}: {result}")
        print(f"compiled in {time.perf_counter() - start:.1f} s", flush=True)
        stream = gpu.transposes().stream
        warm = gemm_problem(4096, 4096, 4096, "bfloat16", "bfloat16", "nn")
        with gpu.operands(warm, random_inputs(warm, SEED), 3) as operands:
            load(
                gpu,
                [
                    gpu.kernel(
                        warm, choose(warm, gpu.arch, multiprocessors=gpu.multiprocessors, chip=gpu.name), operands
                    )
                ],
                2.0,
            )
        with RecordFile(given.record, experiment(" ".join(["python", *sys.argv]), gpu.pci_bus_id)) as file:
            for shape in shapes:
                for record in measured(gpu, stream, shape, given.epilogues, ()):
                    file.write(record)
            if given.search:
                for record in measured(gpu, stream, shapes[0], SEARCHED, given.search):
                    file.write(record)
    print(file.path)


if __name__ == "__main__":
    main()
