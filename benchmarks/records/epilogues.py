"""What fused epilogues cost: ``python benchmarks/records/epilogues.py --record benchmarks/results``.

For bfloat16 products, times the product alone, with each epilogue, and PyTorch's way to the same result, in turns. Each
result is first held against float64 on some rows. Needs an NVIDIA GPU and PyTorch.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from epilogue_forms import FORMS, fused
from epilogue_rows import Rows, largest_is
from epilogue_torch import torch_work

from gemmule.compiler.pool import Job, compile_all
from gemmule.core.dtype import BFLOAT16
from gemmule.core.epilogue import ABSMAX
from gemmule.core.errors import WrongResultError
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose
from gemmule.lab import protocol
from gemmule.lab.bench_records import all_us, circumstances, us
from gemmule.lab.experiment import experiment
from gemmule.lab.gemm_operation import named
from gemmule.lab.products import gemm_problem, random_inputs
from gemmule.lab.records import RecordFile
from gemmule.lab.timing import load, measure
from gemmule.runtime.bench import BenchGpu, bench_gpu
from gemmule.runtime.memory import clear
from gemmule.runtime.rotation import OperandSets

#: M, N, K and layout: a square, then the linear layers of language models, whose weights are stored as (N, K).
SHAPES = (
    (4096, 4096, 4096, "nn"),
    (4096, 14336, 4096, "nt"),
    (4096, 4096, 14336, "nt"),
    (2048, 4096, 4096, "nt"),
    (512, 14336, 4096, "nt"),
    (64, 4096, 4096, "nt"),
)
SEED = 7
#: Epilogues that are measured in several configs of the Hopper kernel, where a search is asked for.
SEARCHED = ("bias_gelu", "bias_silu")
#: Seconds of samples of an epilogue.
BUDGET = 0.3

Shape = tuple[int, int, int, str]


class Maximum:
    """Operand sets with one float32 for the absolute maximum, cleared before kernels that do not clear it.

    Parameters
    ----------
    operands : OperandSets
        The other operands.
    address : int
        Where it lies.
    """

    def __init__(self, operands: OperandSets, address: int) -> None:
        self.sets, self.workspaces = operands.sets, operands.workspaces
        self._operands, self._address = operands, address

    def addresses(self, index: int) -> dict[str, int]:
        """Return the operands' addresses in a set."""
        return self._operands.addresses(index) | {ABSMAX: self._address}

    def cleared(self, work: Callable[[], None], stream: int) -> Callable[[], None]:
        """Return what clears it and queues the work."""

        def queue() -> None:
            clear(self._address, 4, 0, stream)
            work()

        return queue


def in_halves(b: Any, plain: GemmProblem) -> tuple[Any, Any]:
    """Return the columns of B in halves, each as its elements lie in memory."""
    return tuple(np.ascontiguousarray(half) for half in np.split(b, 2, 1 if plain.b.is_row_major else 0))


def measured(
    gpu: BenchGpu, stream: int, shape: Shape, names: Sequence[str], searched: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Measure epilogues of one product, in the config that dispatch takes or in those of the Hopper kernel."""
    import torch

    plain = gemm_problem(*shape[:3], "bfloat16", "bfloat16", shape[3])
    plain_choice = choose(plain, gpu.arch, multiprocessors=gpu.multiprocessors, chip=gpu.name)
    inputs = random_inputs(plain, SEED)
    rng = np.random.default_rng(SEED)
    inputs |= {"c": rng.standard_normal((plain.m, plain.n), np.float32).astype(BFLOAT16.numpy())}
    inputs |= {"e0": rng.standard_normal(plain.n, np.float32).astype(BFLOAT16.numpy())}
    rows = Rows(plain, inputs)
    largest = torch.full((1,), float("nan"), device="cuda")
    for name in names:
        form = FORMS[name]
        problem = fused(plain, form)
        own = {role: inputs[role] for role in problem.operands() if role not in ("b", "d", "u")} | {"b": inputs["b"]}
        if form.gated:
            own["b"], own["u"] = in_halves(inputs["b"], plain)
        sets = protocol.buffer_sets(problem.bytes_min, gpu.l2_bytes)
        for choice in choices(problem, gpu, searched):
            with contextlib.ExitStack() as stack:
                operands = alone = stack.enter_context(gpu.operands(problem, own, sets))
                if form.gated:
                    factors = {role: inputs[role] for role in "ab"}
                    alone = stack.enter_context(gpu.operands(plain, factors, sets))
                operands.poison(0xFF)
                maximum = Maximum(operands, largest.data_ptr())
                ours = gpu.kernel(problem, choice, maximum if form.absmax else operands)
                works = [
                    maximum.cleared(ours, stream) if form.absmax and not choice.clears_absmax(problem) else ours,
                    gpu.kernel(plain, plain_choice, alone),
                    torch_work(form, plain, alone, operands, largest, stream),
                ]
                works[0]()
                error = rows.worst_error(problem, operands.output(0))
                if error > 1:
                    raise WrongResultError(f"{shape} {name} [{choice.config}]: error is {error:.3g} times its bound")
                if form.absmax and not largest_is(float(largest), operands.output(0)):
                    raise WrongResultError(f"{shape} {name} [{choice.config}]: {float(largest)} is not the maximum")
                for work in works[1:]:
                    work()
                timing = measure(gpu, works, sets, BUDGET)
                found = {
                    "record": "epilogue",
                    "kernel": choice.spec.name,
                    "config": choice.config.as_dict(),
                    "plain_config": plain_choice.config.as_dict(),
                    **named(plain),
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
    spec = next(spec for spec in REGISTRY if spec.name == "hopper_gemm")
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
    parser.add_argument("--shapes", nargs="*", type=int, default=[*range(len(SHAPES))], help="numbers of the shapes")
    parser.add_argument("--epilogues", nargs="*", default=list(FORMS), choices=list(FORMS))
    parser.add_argument("--search", nargs="*", type=int, default=[], help="numbers of configs of hopper_gemm")
    parser.add_argument("--searched", nargs="*", default=list(SEARCHED), choices=list(FORMS), help="epilogues for them")
    parser.add_argument("--compile-only", action="store_true", help="fill the cache and measure nothing")
    given = parser.parse_args()
    shapes = [SHAPES[number] for number in given.shapes]
    with bench_gpu() as gpu:
        todo = [*jobs(shapes, given.epilogues, gpu, ()), *jobs(shapes, given.searched, gpu, given.search)]
        start = time.perf_counter()
        for job, result in compile_all(todo):
            if isinstance(result, Exception):
                raise RuntimeError(f"{job}: {result}")
        print(f"compiled in {time.perf_counter() - start:.1f} s", flush=True)
        if given.compile_only:
            return
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
            for shape in shapes if given.search else ():
                for record in measured(gpu, stream, shape, given.searched, given.search):
                    file.write(record)
    print(file.path)


if __name__ == "__main__":
    main()
