"""What operands of mixed types, of integers, and without contiguous lines take, and what PyTorch takes with them.

For each pair of types and layouts, and for gated forms that no kernel has (``gated``), the kernels that a call runs,
those that ran before, and PyTorch, which converts or copies first, are timed interleaved, in CUDA graphs over rotating
buffers. Results are held against float64, or exact integers, on some rows, in poisoned memory. Needs an NVIDIA GPU,
PyTorch and the compiler.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from addend_costs import compile_until, span, times_beside_torch

from gemmule.compiler.pool import jobs_of
from gemmule.core.activations import silu
from gemmule.core.dtype import Kind, Precision, accumulator, dtype_named
from gemmule.core.epilogue import SECOND, Epilogue
from gemmule.core.errors import NoKernelError, WrongResultError
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.core.real_parts import PARTS
from gemmule.core.spec import Choice
from gemmule.core.tracing import accumulated, accumulated_second, lowered
from gemmule.dispatch.registry import kernels_of
from gemmule.dispatch.select import choose
from gemmule.lab.experiment import experiment
from gemmule.lab.records import RecordFile
from gemmule.runtime.bench import bench_gpu
from gemmule.runtime.device import get_device

_CACHES, _SETS, _CHECKED_ROWS = 2, 64, 16
#: Types of A and B, and of the result where it is not the accumulators', the precision where another, or ``gated``, and
#: layouts: ``r`` row-major, ``c`` column-major, ``s`` every other element of rows, ``t`` of columns.
CASES = (
    *((pair, "", "rr") for pair in (
        "float32 bfloat16", "float16 bfloat16", "float16 float32", "int8 float16", "bfloat16 int8", "int8 float32",
        "int32 float32", "float32 float64", "int8 int32", "int32 int32", "complex64 float32", "complex64 complex128",
    )),
    ("float16 bfloat16", "", "cr"), ("float16 bfloat16", "", "rc"), ("int32 int32", "", "rc"),
    ("int32 int32", "", "sr"),
    *(("float32 float32", precision, kinds) for precision in ("", "tf32") for kinds in ("rr", "sr", "rs", "tr")),
    ("float32 float32", "gated", "rr"), ("float64 float64", "gated", "rr"),
    ("bfloat16 bfloat16", "gated", "sr"), ("bfloat16 bfloat16", "gated", "rs"), ("int8 float16", "gated", "rr"),
    ("float16 bfloat16", "gated", "rr"), ("float32 bfloat16", "gated", "rr"),
    ("float32 bfloat16", "", "rc"), ("float32 int8", "", "rr"),
    *((f"{x} {x}", "", kinds) for x in ("float64", "complex64", "complex128", "int8") for kinds in ("rr", "sr")),
    ("int8 int8", "", "rc"),
    *((pair, precision, kinds) for pair in ("float32 complex64", "complex64 float32", "float64 complex128",
        "complex128 float64") for precision, kinds in (("", "rr"), ("", "rc"), ("", "cr"), ("ozaki", "rr"))),
    *((types, "", "rr") for types in ("complex128 complex128 complex64", "complex64 complex64 complex128")),
    ("int8 int8 int8", "", "rc"), ("int8 int8 int8", "", "rr"), ("int8 int8 int32", "", "rc"),
    ("int8 int8 float16", "", "rc"), ("float32 float32 bfloat16", "tf32", "rc"),
    ("float16 float16 bfloat16", "", "rc"), ("float16 float16 float16", "", "rc"),
)  # fmt: skip
GATED = "gated"
#: Kernels that such products ran before; results of other types; few rows by narrower weights; and real times complex.
_BEFORE, _FEW_ROWS = ("mma_sync_gemm", "simt_batched", "gemm_reference"), ("hopper_gemm_upcast",)
_OUTPUTS = (*_BEFORE, "simt_gemm")
_COMPLEX = ("complex_gemm_upcast",)


@dataclasses.dataclass(frozen=True)
class Case:
    """A product."""

    m: int
    n: int
    k: int
    types: str
    precision: str
    kinds: str

    @property
    def problem(self) -> GemmProblem:
        """The problem."""
        a, b, *given = map(dtype_named, self.types.split())
        out = given[0] if given else accumulator(a, b)
        if a != b and out.name == "float32" and "float32" not in self.types and "int8" in self.types:
            out = a if b.name == "int8" else b
        first, second = _matrix(a, self.m, self.k, self.kinds[0]), _matrix(b, self.k, self.n, self.kinds[1])
        d = StridedMatrix(out, self.m, self.n, self.n, 1, alignment=256)
        if self.precision == GATED:
            expression, _, _ = lowered(silu(accumulated()) * accumulated_second(), "swiglu")
            epilogue = Epilogue(expression, second=second)
            return GemmProblem(self.m, self.n, self.k, (), first, second, None, d, epilogue=epilogue)
        precision = Precision(self.precision) if self.precision else Precision.IEEE
        return GemmProblem(self.m, self.n, self.k, (), first, second, None, d, precision=precision)


def _matrix(dtype: Any, rows: int, cols: int, kind: str) -> StridedMatrix:
    strides = {"r": (cols, 1), "c": (1, rows), "s": (2 * cols, 2), "t": (2, 2 * rows)}[kind]
    return StridedMatrix(dtype, rows, cols, *strides, alignment=256)


class Operands:
    """Buffer sets of a case: tensors of PyTorch."""

    def __init__(self, case: Case, sets: int, torch: Any, workspaces: Any) -> None:
        self.sets, self.workspaces, self.problem, self._torch = sets, workspaces, case.problem, torch
        self.views = []
        for _ in range(sets):
            views: dict[str, Any] = {}
            for name, matrix in self.problem.operands().items():
                kind = getattr(torch, matrix.dtype.name)
                count = span(matrix)
                if matrix.dtype.kind is Kind.INTEGER:
                    # float16 holds the results.
                    is_half = self.problem.a.dtype == self.problem.b.dtype and self.problem.d.dtype.name == "float16"
                    most = 16 if is_half else 2 ** (8 * matrix.dtype.itemsize - 1)
                    memory = torch.randint(-most, most - 1, (count,), dtype=kind, device="cuda")
                else:
                    memory = torch.randn(count, dtype=torch.float32, device="cuda")
                    if case.precision == GATED and "int8" in case.types:
                        memory *= 2.0**-8
                    memory = memory.to(kind)
                    if matrix.dtype.kind is Kind.COMPLEX:
                        memory += 1j * torch.randn(count, dtype=torch.float32, device="cuda")
                views[name] = memory.as_strided((matrix.rows, matrix.cols), (matrix.row_stride, matrix.col_stride))
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
        got = views["d"][rows]
        if problem.accumulator.kind is Kind.INTEGER:
            cols = torch.unique(torch.linspace(0, problem.n - 1, 4 * _CHECKED_ROWS, device="cuda").long())
            exact = views["a"][rows].cpu().long() @ views["b"][:, cols].cpu().long()
            if not torch.equal(got[:, cols].cpu(), exact.to(got.dtype)):
                raise WrongResultError(f"{problem.types}: integers differ")
            return
        wide = torch.complex128 if problem.accumulator.kind is Kind.COMPLEX else torch.float64
        a, b = views["a"][rows].to(wide), views["b"].to(wide)
        exact, size = a @ b, a.abs() @ b.abs()
        if SECOND in views:
            up = views[SECOND].to(wide)
            exact, size = torch.nn.functional.silu(exact) * (a @ up), (1 + size) * (1 + a.abs() @ up.abs())
        unit = 2.0**-10 if problem.precision is Precision.TF32 else 8 * problem.accumulator.unit_roundoff
        bound = 1.02 * problem.d.dtype.unit_roundoff * exact.abs() + 4 * unit * math.sqrt(problem.k) * size / 8 + 1e-30
        if not bool(((got.to(wide) - exact).abs() <= bound).all()):
            off = float(((got.to(wide) - exact).abs() / bound).max())
            raise WrongResultError(f"{problem.types}: off by {off:.3g} bounds")

    def baseline(self, index: int) -> Callable[[], Any]:
        """Return PyTorch's way to the same result: it converts what is of another type."""
        torch, (a, b, d) = self._torch, (self.views[index][name] for name in "abd")
        if self.problem.a.dtype.name == self.problem.b.dtype.name == "int8":
            return lambda: torch._int_mm(a.contiguous(), b.T.contiguous().T).to(d.dtype)
        common = torch.promote_types(a.dtype, b.dtype)
        if common != d.dtype and d.dtype in (torch.float64, torch.complex128):
            common = d.dtype
        if (up := self.views[index].get(SECOND)) is not None:

            def gated() -> Any:
                x = a.to(common)
                return torch.nn.functional.silu(x @ b.to(common)) * (x @ up.to(common))

            return gated
        return lambda: torch.mm(a.to(common), b.to(common)).to(d.dtype)


def choices_of(case: Case, device: Any) -> dict[str, Choice]:
    """Return what a call runs, and what it ran before."""
    facts = {"multiprocessors": device.multiprocessors, "chip": device.name, "tuned": False}
    found = {"now": choose(case.problem, device.arch, **facts)}
    few = found["now"].spec.name == "simt_batched" and case.problem.a.dtype != case.problem.b.dtype
    parts = getattr(found["now"].form, "name", "") == PARTS
    several = len(case.types.split()) > len("ab")
    names = _FEW_ROWS if few else _COMPLEX if parts else _OUTPUTS if several else _BEFORE
    before = tuple(spec for spec in kernels_of("gemm") if spec.name in names)
    if case.precision == GATED:
        reference = before[-1]
        found["before"] = Choice(reference, reference.default)
    elif case.precision and names is _BEFORE:
        # Strided TF32 ran another copy before, which its kernel no longer takes.
        pass
    elif (
        few
        or parts
        or "upcast" in found["now"].spec.name
        or "int32" in case.types
        or several
        or (case.types == "int8 int8" and "s" not in case.kinds)
    ):
        with contextlib.suppress(NoKernelError):
            found["before"] = choose(case.problem, device.arch, before, **facts)
    return found


def measured(case: Case, choices: dict[str, Choice], failing: set[str], gpu: Any, torch: Any) -> dict[str, Any]:
    """Return the times of a case."""
    problem = case.problem
    sets = max(1, min(math.ceil(_CACHES * gpu.l2_bytes / problem.bytes_min), _SETS))
    torch.backends.cuda.matmul.allow_tf32 = case.precision == "tf32"
    works: dict[str, Callable[[], None]] = {}
    with gpu.workspaces() as workspaces:
        operands = Operands(case, sets, torch, workspaces)
        torch.cuda.synchronize()
        for name, choice in choices.items():
            if failing.intersection(str(job) for job in jobs_of(choice, problem, gpu.arch)):
                continue
            work = gpu.kernel(problem, choice, operands)
            try:
                operands.check(work, gpu.wait)
            except WrongResultError as error:
                print(f"wrong: {case} {name}: {error}", flush=True)
                continue
            works[name] = work
        us = times_beside_torch(works, operands, sets, gpu, torch)
    kernels = {
        name: " then ".join([one.spec.name, *(x.spec.name for x in (then.chain() if then else ()))])
        + "".join(f" beside {spec.name}" for spec, _ in (one.form.kernels if one.form else ()))
        for name, one, then in ((name, one, one.next_kernel(problem)) for name, one in choices.items())
    }
    predicted = {name: one.predicted_us for name, one in choices.items()}
    return {
        "record": "operand_costs", **dataclasses.asdict(case), "sets": sets, "us": us, "predicted_us": predicted,
        "kernels": kernels,
    }  # fmt: skip


def main() -> None:
    """Compile, measure, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", default=["4096", "1024", "2047"], help="extents, as 4096 or 64x128x256")
    parser.add_argument("--cases", default="", help="a regular expression of types, precision and layouts of --sizes")
    parser.add_argument("--draws", type=int, default=0, help="random cases of random shapes, after those of --sizes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compiling", type=float, default=38, help="seconds after which no more kernels are compiled")
    parser.add_argument("--seconds", type=float, default=58, help="seconds of all")
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args()
    began, device = time.time(), get_device()
    sizes = [[int(x) for x in (word if "x" in word else f"{word}x{word}x{word}").split("x")] for word in given.sizes]
    cases = [Case(m, n, k, *one) for m, n, k in sizes for one in CASES if re.search(given.cases, " ".join(one))]
    numbers = random.Random(given.seed)  # noqa: S311  # sizes, no secrets
    for _ in range(given.draws):
        m, n, k = (round(math.exp(numbers.uniform(math.log(48), math.log(5000)))) for _ in range(3))
        m, n, k = (8 * -(-x // 8) for x in (m, n, k)) if numbers.random() < 0.5 else (m, n, k)
        types, precision, kinds = numbers.choice(CASES)
        cases.append(Case(m, n, k, types, precision, "".join(numbers.choice("rrcs") for _ in kinds)))
    plans = [(case, choices_of(case, device)) for case in cases]
    jobs = {
        str(job): job for case, choices in plans for one in choices.values()
        for job in jobs_of(one, case.problem, device.arch)
    }  # fmt: skip
    print(f"{time.time() - began:.0f} s: {len(plans)} cases, {len(jobs)} kernels", flush=True)
    failing = compile_until(began + given.compiling, list(jobs.values()))
    print(f"{time.time() - began:.0f} s: compiled all but {len(failing)}", flush=True)
    import torch

    words = [word for word, before in zip(sys.argv[1:], sys.argv, strict=False) if "--record" not in (word, before)]
    block = experiment(" ".join(["python", "benchmarks/experiments/operand_costs.py", *words]), device.pci_bus_id)
    with RecordFile(given.record, block) as file, bench_gpu() as gpu:
        for case, choices in plans:
            if time.time() - began > given.seconds:
                print("the time is over", flush=True)
                break
            row = measured(case, choices, failing, gpu, torch)
            file.write(row)
            print(case, row["us"], row["kernels"]["now"], flush=True)
        print(f"{time.time() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
