"""What a C in another layout or type costs over a plain one, by each form of the product, and what PyTorch takes.

For each product the plain C, each C of `LAYOUTS`, in every form that kernels take (`dispatch.choices.form_choice`),
and PyTorch's way to the same result are timed interleaved, in CUDA graphs over rotating buffers. With ``--results``
products without C are timed instead, with results of 16 and of 32 bits, each in the config of both. Results are held
against float64 on some rows, in poisoned memory. Needs an NVIDIA GPU, PyTorch and the compiler.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gemmule.api.epilogues.ending import ending_of
from gemmule.compiler.pool import Job, compile_all, jobs_of
from gemmule.core.dtype import Kind, Precision, dtype_named
from gemmule.core.epilogue import Epilogue
from gemmule.core.errors import CompileError, NoKernelError, WrongResultError
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.choices.config_choice import predicted_us
from gemmule.dispatch.select import choose, choose_forms
from gemmule.lab import protocol
from gemmule.lab.experiment import experiment
from gemmule.lab.records import RecordFile
from gemmule.runtime.bench import bench_gpu
from gemmule.runtime.device import get_device
from gemmule.runtime.rotation import Rotation

#: Alignment of matrices, seconds of a sample, rounds there and back, sizes of the L2 cache that all buffer sets have
#: together, most sets, rows that are checked.
_ALIGNED, _SAMPLE, _ROUNDS, _CACHES, _SETS, _CHECKED_ROWS = 256, 0.5e-3, 3, 2, 64, 16
#: Kernels that are compiled in one batch.
_TOGETHER = 48
_BETA = 0.5
SHAPES = ((4096, 4096, 4096, "nn"), (1024, 1024, 1024, "nn"), (200, 4096, 14336, "nt"), (2047, 2047, 2047, "nn"))
LAYOUTS = ("columns", "strided", "column", "misaligned", "other type")
#: Types and precisions of products, and C's other type.
TYPES = {
    "bfloat16": "float32", "float16": "float32", "tf32": "float16", "float32": "bfloat16", "float64": "float32",
    "complex64": "float32", "complex128": "complex64",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Case:
    """A product with a C, or without."""

    m: int
    n: int
    k: int
    layout: str
    dtype: str
    c: str = ""  #: One of `LAYOUTS`, ``plain``, ``bias``, or empty.
    out: str = ""  #: Type of the result; that of the operands by default.

    @property
    def problem(self) -> GemmProblem:
        """The problem."""
        m, n, k = self.m, self.n, self.k
        tf32 = self.dtype == "tf32"
        dtype = dtype_named("float32" if tf32 else self.dtype)
        out = dtype_named(self.out) if self.out else dtype
        a = StridedMatrix(dtype, m, k, *((k, 1) if self.layout[0] == "n" else (1, m)))
        b = StridedMatrix(dtype, k, n, *((n, 1) if self.layout[1] == "n" else (1, k)))
        c, epilogue = None, None
        if self.c == "bias":
            ending, _ = ending_of(None, True, None, None)
            assert ending is not None
            epilogue = Epilogue(ending.expression, (StridedMatrix(dtype, m, n, 0, 1),))
        elif self.c:
            kind = dtype_named(TYPES[self.dtype]) if self.c == "other type" else out
            row, col = {"columns": (1, m), "strided": (2 * n, 2), "column": (1, 0)}.get(self.c, (n, 1))
            alignment = 16
            if self.c == "misaligned":
                row, alignment = n + 1, min(dtype.itemsize, 16)
            c = StridedMatrix(kind, m, n, row, col, alignment=alignment)
        precision = Precision.TF32 if tf32 else Precision.IEEE
        return GemmProblem(
            m, n, k, (), a, b, c, StridedMatrix(out, m, n, n, 1), 1, _BETA if c else 0, precision, epilogue
        )


def span(matrix: StridedMatrix) -> int:
    """Return the elements from the first to the last of a matrix, and one before the first."""
    return 2 + (matrix.rows - 1) * matrix.row_stride + (matrix.cols - 1) * matrix.col_stride


class Operands:
    """Buffer sets of a case: tensors of PyTorch, with the names that launches have."""

    def __init__(self, case: Case, sets: int, torch: Any, workspaces: Any) -> None:
        self.sets, self.workspaces, self._torch = sets, workspaces, torch
        self.problem = case.problem
        self._memory, self.views = [], []
        for _ in range(sets):
            views: dict[str, Any] = {}
            for name, matrix in self.problem.operands().items():
                kind = getattr(torch, matrix.dtype.name)
                wide = torch.float32 if matrix.dtype.is_float8 else kind
                memory = torch.randn(span(matrix), dtype=wide, device="cuda").to(kind)
                first = int(matrix.alignment < 16 or matrix.row_stride == self.problem.n + 1)
                views[name] = memory.as_strided(
                    (matrix.rows, matrix.cols), (matrix.row_stride, matrix.col_stride), first
                )
                self._memory.append(memory)
            self.views.append(views)

    def addresses(self, index: int) -> dict[str, int]:
        """Return the operands' addresses in a set."""
        return {name: view.data_ptr() for name, view in self.views[index].items()}

    def check(self, work: Callable[[], None], wait: Callable[[], None]) -> None:
        """Run on the first set into poisoned memory and compare some rows with a more exact result."""
        torch, problem, views = self._torch, self.problem, self.views[0]
        views["d"].view(torch.uint8).fill_(0xFF)
        torch.cuda.synchronize()
        work()
        wait()
        rows = torch.unique(torch.linspace(0, problem.m - 1, _CHECKED_ROWS, device="cuda").long())
        wide = torch.complex128 if problem.a.dtype.kind is Kind.COMPLEX else torch.float64
        a, b = views["a"][rows].to(wide), views["b"].to(wide)
        exact, size = a @ b, a.abs() @ b.abs()
        if problem.c is not None:
            exact += problem.beta * views["c"][rows].to(wide)
            size += problem.beta * views["c"][rows].to(wide).abs()
        if problem.epilogue is not None:
            exact += views["e0"][:1].to(wide)
            size += views["e0"][:1].to(wide).abs()
        got = views["d"][rows].to(wide)
        unit = 2.0**-10 if problem.precision is Precision.TF32 else 8 * problem.accumulator.unit_roundoff
        rounding = 2.0**-4 if problem.d.dtype.is_float8 else problem.d.dtype.unit_roundoff
        bound = 1.02 * rounding * exact.abs() + 4 * unit * math.sqrt(problem.k) * size / 8 + 1e-30
        if not bool(((got - exact).abs() <= bound).all()):
            raise WrongResultError(f"{problem.types}: off by {float(((got - exact).abs() / bound).max()):.3g} bounds")

    def baseline(self, index: int) -> Callable[[], Any]:
        """Return PyTorch's way to the same result."""
        torch, views = self._torch, self.views[index]
        (a, b, d), c = (views[name] for name in "abd"), views.get("c")
        if "e0" in views:
            return lambda: torch.addmm(views["e0"][0], a, b, out=d)
        if c is None:
            return lambda: torch.mm(a, b, out=d)
        if c.dtype == d.dtype:
            return lambda: torch.addmm(c, a, b, beta=_BETA, out=d)

        def added() -> None:
            torch.mm(a, b, out=d)
            d.add_(c, alpha=_BETA)

        return added


def form_of(choice: Choice) -> str:
    """Return the name of a choice's form."""
    if choice.form is None:
        return "as it is"
    return " by ".join([choice.form.name, *(spec.name for spec, _ in choice.form.kernels)])


def compile_until(end: float, jobs: Sequence[Job]) -> set[str]:
    """Compile in parallel until a time, in s; return the names of those that failed or were not begun."""
    failing, left = {str(job) for job in jobs}, list(jobs)
    while left and time.time() < end:
        part, left = left[:_TOGETHER], left[_TOGETHER:]
        for job, result in compile_all(part):
            if isinstance(result, CompileError):
                print(f"left out: {job}: {str(result)[:200]}", flush=True)
                continue
            failing.discard(str(job))
    return failing


def times_beside_torch(
    works: dict[str, Callable[[], None]], operands: Any, sets: int, gpu: Any, torch: Any
) -> dict[str, float]:
    """Return the median times in us of calls by name, in turns with PyTorch's way to the same result."""
    stream = torch.cuda.ExternalStream(gpu._stream)

    def on_stream(call: Callable[[], Any]) -> Callable[[], None]:
        def queue() -> None:
            with torch.cuda.stream(stream):
                call()

        return queue

    theirs = Rotation([on_stream(operands.baseline(index)) for index in range(sets)])
    try:
        theirs()
        gpu.wait()
        works["torch"] = theirs
    except (RuntimeError, NotImplementedError) as error:
        print(f"torch: {str(error)[:100]}", flush=True)
    samples: dict[str, list[float]] = {name: [] for name in works}
    with contextlib.ExitStack() as stack:
        watches = {}
        for name, work in works.items():
            with gpu.stopwatch(work, 2, graph=False) as watch:
                one = max(min(watch.queue()() for _ in range(2)), 4e-6)
            calls = max(1, round(_SAMPLE / one / sets)) * sets if one < _SAMPLE else 1
            watches[name] = stack.enter_context(gpu.stopwatch(work, calls, graph=True))
        names = list(works)
        for _ in range(_ROUNDS):
            queued = [(names[index], watches[names[index]].queue()) for index in protocol.turns(len(names))]
            for name, seconds_of in queued:
                samples[name].append(seconds_of() * 1e6)
    gpu.wait()
    return {name: round(statistics.median(one), 3) for name, one in samples.items()}


def measured(case: Case, choices: Sequence[Choice], failing: set[str], gpu: Any, torch: Any) -> dict[str, Any]:
    """Return the times of a case."""
    problem = case.problem
    sets = max(1, min(math.ceil(_CACHES * gpu.l2_bytes / problem.bytes_min), _SETS))
    torch.backends.cuda.matmul.allow_tf32 = case.dtype == "tf32"
    works: dict[str, Callable[[], None]] = {}
    predicted: dict[str, Any] = {}
    with gpu.workspaces() as workspaces:
        operands = Operands(case, sets, torch, workspaces)
        torch.cuda.synchronize()
        for choice in choices:
            name = f"{form_of(choice)}: {choice.spec.name} {choice.config}"
            if failing.intersection(str(job) for job in jobs_of(choice, problem, gpu.arch)):
                continue
            work = gpu.kernel(problem, choice, operands)
            try:
                operands.check(work, gpu.wait)
            except WrongResultError as error:
                print(f"wrong: {case} {name}: {error}", flush=True)
                continue
            # Checked on the first set, the next call is on the second.
            works[name], predicted[name] = work, choice.predicted_us or predicted_us(choice, problem)
        us = times_beside_torch(works, operands, sets, gpu, torch)
    return {"record": "addend_costs", **dataclasses.asdict(case), "sets": sets, "us": us, "predicted_us": predicted}


def cases_of(given: argparse.Namespace) -> list[Case]:
    """Return the cases of the command."""
    numbers = random.Random(given.seed)  # noqa: S311  # sizes, no secrets
    shapes = list(SHAPES) if given.fixed else []
    for _ in range(given.draws):
        m, n, k = (round(math.exp(numbers.uniform(math.log(96), math.log(6000)))) for _ in range(3))
        if numbers.random() < 0.6:
            m, n, k = (8 * -(-x // 8) for x in (m, n, k))
        shapes.append((m, n, k, numbers.choice(("nn", "nt", "tn", "tt"))))
    if given.results:
        return [
            Case(*shape[:3], "nt" if "float8" in dtype else shape[3], dtype, out=out)
            for dtype in given.types
            for shape in shapes
            for out in ("bfloat16" if "float8" in dtype else dtype, "float32")
            if "float8" not in dtype or not any(x % 16 for x in shape[:3])
        ]
    return [
        Case(*shape, dtype, c)
        for shape in shapes
        for dtype in given.types
        for c in ("plain", *given.layouts)
        if c != "bias" or not dtype.startswith("complex")
        if shape[2] * shape[0] * shape[1] <= given.most or not dtype.startswith("complex")
    ]


def choices_of(case: Case, device: Any, results: bool) -> Iterator[Choice]:
    """Yield the choices to be timed, the one that a call runs first."""
    facts = {"multiprocessors": device.multiprocessors, "chip": device.name, "tuned": False}
    if not results:
        # The reference kernel is timed nowhere: it takes milliseconds.
        yield from (one for one in choose_forms(case.problem, device.arch, **facts) if "reference" not in one.spec.name)
        return
    yield choose(case.problem, device.arch, **facts)
    other = {"float32": "bfloat16" if "float8" in case.dtype else case.dtype}.get(case.out, "float32")
    found = choose(dataclasses.replace(case, out=other).problem, device.arch, **facts)
    if found.spec.why_not(case.problem, device.arch, found.config) is None:
        assert found.spec.cost is not None
        yield dataclasses.replace(found, predicted_us=found.spec.cost(case.problem, found.config, found.gpu))


def main() -> None:
    """Compile, measure, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--draws", type=int, default=0)
    parser.add_argument("--fixed", action="store_true", help="the shapes of `SHAPES` too")
    parser.add_argument("--results", action="store_true", help="types of results instead of C")
    parser.add_argument("--types", nargs="*", default=list(TYPES))
    parser.add_argument("--layouts", nargs="*", default=[*LAYOUTS, "bias"])
    parser.add_argument("--most", type=float, default=2.0**37, help="most multiply-adds of complex products")
    parser.add_argument("--compiling", type=float, default=38, help="seconds after which no more kernels are compiled")
    parser.add_argument("--seconds", type=float, default=58, help="seconds of all")
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args()
    began, device = time.time(), get_device()
    plans = []
    for case in cases_of(given):
        try:
            plans.append((case, list(dict.fromkeys(choices_of(case, device, given.results)))))
        except NoKernelError as error:
            print(f"no kernel: {case}: {str(error)[:150]}", flush=True)
    jobs: dict[str, Any] = {}
    needed: collections.Counter[str] = collections.Counter()
    for case, choices in plans:
        for choice in choices:
            for job in jobs_of(choice, case.problem, device.arch):
                jobs[str(job)] = job
                needed[str(job)] += 1
    print(f"{time.time() - began:.0f} s: {len(plans)} cases, {len(jobs)} kernels", flush=True)
    failing = compile_until(began + given.compiling, [jobs[name] for name, _ in needed.most_common()])
    print(f"{time.time() - began:.0f} s: compiled all but {len(failing)}", flush=True)
    import torch

    words = [word for word, before in zip(sys.argv[1:], sys.argv, strict=False) if "--record" not in (word, before)]
    block = experiment(" ".join(["python", "benchmarks/experiments/addend_costs.py", *words]), device.pci_bus_id)
    with RecordFile(given.record, block) as file, bench_gpu() as gpu:
        for case, choices in plans:
            if time.time() - began > given.seconds:
                print("the time is over", flush=True)
                break
            file.write(measured(case, choices, failing, gpu, torch))
        print(f"{time.time() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
