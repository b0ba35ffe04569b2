"""Errors of products with ``precision="ozaki"`` on a GPU, real and complex, by inputs from harmless to hostile.

python benchmarks/records/accuracy.py benchmarks/results [--only NAME]

Writes an `accuracy` record for each input: the largest componentwise error in units of u (|A| |B|)ij, of complex types
that of a part, in units of the sum of magnitudes of its 2 K products; of the guarded product, the native kernel,
cuBLAS, and cuBLAS with its own emulation of float64, which a process of its own runs with
CUBLAS_EMULATE_DOUBLE_PRECISION=1; the bound of the native product; and what ran. `same_special` says whether elements
that are not finite are those of the native product. Every product is forced through the guard, whatever a call would
choose at its size. Needs an NVIDIA Hopper GPU and PyTorch.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from error_inputs import normal, uniform, wide
from float64_errors import exact_product

from gemmule.compiler.pool import compile_all, jobs_of
from gemmule.core.arch import Arch
from gemmule.core.dtype import COMPLEX64, COMPLEX128, FLOAT32, FLOAT64, DType, Kind, Precision
from gemmule.core.errors import CompileError
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose
from gemmule.kernels.emulation.decision import WORDS, decision_choice, decision_name
from gemmule.lab.experiment import experiment
from gemmule.lab.products import gemm_problem
from gemmule.lab.records import RecordFile
from gemmule.runtime.device import get_device
from gemmule.runtime.execute import run_kernel

SPECS = {spec.name: spec for spec in REGISTRY}
#: Kernels by type: the guarded one, and the native one.
KERNELS = {
    FLOAT64: ("ozaki_gemm", "float64_gemm"),
    FLOAT32: ("bf16x6_gemm", "simt_gemm"),
    COMPLEX128: ("ozaki_complex", "complex128_gemm"),
    COMPLEX64: ("ozaki_complex", "complex64_gemm"),
}
SIDE, DEPTHS, SPANS = 128, (1, 2, 16, 64, 256, 1024, 4096, 16384, 65536), (40, 100, 200, 300)
#: Squares that are measured beside it, and their precisions.
SQUARES = (512, 1024, 2048, 3072, 4096, 8192, 12288)
SQUARE_PRECISIONS = {
    FLOAT64: (Precision.OZAKI, Precision.OZAKI_15, Precision.IEEE),
    FLOAT32: (Precision.OZAKI, Precision.BF16X6, Precision.IEEE),
}
HOPPER = Arch.parse("sm_90a")
#: Variables that make cuBLAS emulate float64 wherever it can.
EMULATION = {"CUBLAS_EMULATE_DOUBLE_PRECISION": "1", "CUBLAS_EMULATION_STRATEGY": "eager"}
Matrices = tuple[torch.Tensor, torch.Tensor]
#: Inputs that are drawn for real and imaginary parts by themselves.
OF_PARTS = ("uniform", "integers", "Hilbert", "Vandermonde")


@dataclasses.dataclass(frozen=True)
class Input:
    """Factors by name; `ordinary` are those of which at least half should be emulated."""

    name: str
    k: int
    dtype: DType = FLOAT64
    ordinary: bool = False

    @property
    def key(self) -> str:
        """Return what the seed and the comparison with another process go by."""
        return f"{self.dtype} {self.name} {self.k}"


def inputs() -> Iterator[Input]:
    """Yield every input."""
    for dtype in KERNELS:
        spans = SPANS if dtype.part == FLOAT64 else SPANS[:2]
        for k in DEPTHS:
            yield from (Input(name, k, dtype, ordinary=True) for name in ("normal", "uniform", "integers"))
        for spread in (0.5, 1, 2, 4):
            yield Input(f"(x - 0.5) exp({spread:g} z)", 1024, dtype, ordinary=spread <= 1)
        for span in spans:
            for where in ("rows", "columns", "both", "against each other", "elements"):
                yield Input(f"span of 2^{span} in {where}", 1024, dtype)
        for name in ("Hilbert", "Vandermonde", "graded", "denormals", "infinity", "NaN", "zeros"):
            yield Input(name, 256, dtype)
        if dtype.kind is Kind.COMPLEX:
            # Where 3M in floating point loses the small part of a result.
            for name in ("imaginary parts of 2^-40", "imaginary parts of 2^-10", "no imaginary parts"):
                yield Input(name, 256, dtype)


def powers(span: int, *shape: int) -> torch.Tensor:
    """Return random powers of two over a span."""
    return torch.exp2(torch.randint(-span // 2, span // 2 + 1, shape, device="cuda").double())


def factors(given: Input) -> Matrices:
    """Return A and B, the same in every process."""
    torch.manual_seed(zlib.crc32(given.key.encode()))
    if given.dtype.kind is Kind.COMPLEX:
        a, b = complex_factors(given.name, given.k)
    else:
        a, b = _factors(given.name, given.k, (normal(SIDE, given.k), normal(given.k, SIDE)))
    dtype = getattr(torch, given.dtype.name)
    return a.to(dtype).contiguous(), b.to(dtype).contiguous()


def complex_factors(name: str, k: int) -> Matrices:
    """Return complex factors, whose parts are of the same kind, unless the name says otherwise."""
    first, second = ((normal(SIDE, k), normal(k, SIDE)) for _ in range(2))
    if "imaginary" in name:
        share = 2.0 ** int(name.split("^")[1]) if "^" in name else 0.0
        second = share * second[0], share * second[1]
    numbers = tuple(map(torch.complex, first, second))
    if name in OF_PARTS or name.startswith("(x"):
        return tuple(map(torch.complex, _factors(name, k, first), _factors(name, k, second)))
    return _factors(name, k, numbers)


def _factors(name: str, k: int, numbers: Matrices) -> Matrices:
    a, b = numbers
    index = torch.arange(max(SIDE, k), device="cuda", dtype=torch.float64)
    rows, depth = index[:SIDE], index[:k]
    if name == "uniform":
        return uniform(SIDE, k), uniform(k, SIDE)
    if name == "integers":
        return torch.randint(-99, 100, (SIDE, k), device="cuda").double(), torch.randint(
            -99, 100, (k, SIDE), device="cuda"
        ).double()
    if name.startswith("(x"):
        draw = wide(float(name.split("exp(")[1].split(" ", 1)[0]), 0.5)
        return draw(SIDE, k), draw(k, SIDE)
    if name.startswith("span"):
        span, where = int(name.split("^")[1].split(" ", 1)[0]), name.split(" in ")[1]
        along = powers(span, k)
        return {
            "rows": lambda: (a * powers(span, SIDE, 1), b),
            "columns": lambda: (a * along, b),
            "both": lambda: (a * powers(span, SIDE, 1), b * powers(span, 1, SIDE)),
            "against each other": lambda: (a * along, b / along[:, None]),
            "elements": lambda: (a * powers(span, SIDE, k), b * powers(span, k, SIDE)),
        }[where]()
    if name == "Hilbert":
        return 1 / (rows[:, None] + depth + 1), 1 / (depth[:, None] + rows + 1)
    if name == "Vandermonde":
        points = (rows + 1) / SIDE
        return points[:, None] ** (depth / 4), points[None, :] ** (depth[:, None] / 4)
    if name == "graded":
        return a * torch.exp2(-depth / 4), b * torch.exp2(-depth / 4)[:, None]
    if name == "denormals":
        return a * 2.0**-600 * 2.0**-445, b * 2.0**600
    if name == "zeros":
        a[::3], b[:, ::5] = 0, 0
        a[:, ::2] = 0
    if name in ("infinity", "NaN"):
        a[3, 5] = math.inf if name == "infinity" else math.nan
    return a, b


def multiply(spec_name: str, precision: Precision, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a product by a kernel, into poisoned memory."""
    spec, dtype = SPECS[spec_name], str(a.dtype).removeprefix("torch.")
    problem = _problem(a, b, precision)
    out = torch.full((problem.m, problem.n), math.nan, device="cuda", dtype=getattr(torch, dtype))
    able = next(one for one in spec.configs if spec.why_not(problem, get_device().arch, one) is None)
    _run(problem, Choice(spec, able), a, b, out)
    return out


def _problem(a: torch.Tensor, b: torch.Tensor, precision: Precision) -> Any:
    dtype = str(a.dtype).removeprefix("torch.")
    plain = gemm_problem(a.shape[0], b.shape[1], a.shape[1], dtype, dtype, "nn")
    return dataclasses.replace(plain, precision=precision)


def _run(problem: Any, choice: Choice, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    pointers = {"a": a.data_ptr(), "b": b.data_ptr(), "d": out.data_ptr()}
    run_kernel(problem, choice, pointers, 0, torch.cuda.current_stream().cuda_stream)


def ran(a: torch.Tensor, b: torch.Tensor) -> str:
    """Return what the guard decides for."""
    problem, words = _problem(a, b, Precision.OZAKI), torch.zeros(WORDS, device="cuda", dtype=torch.int32)
    _run(problem, decision_choice(problem), a, b, words)
    return decision_name(problem, words.tolist())


def compile_kernels(only: str) -> None:
    """Compile what will run, and without `only` what `bench` chooses of squares, on all cores."""
    jobs = []
    for dtype, (guarded, native) in KERNELS.items():
        for k in {one.k for one in inputs() if one.dtype == dtype and only in one.key}:
            plain = gemm_problem(SIDE, SIDE, k, dtype.name, dtype.name, "nn")
            for name, precision in ((guarded, Precision.OZAKI), (native, Precision.IEEE)):
                jobs += jobs_of(
                    Choice(SPECS[name], SPECS[name].default), dataclasses.replace(plain, precision=precision), HOPPER
                )
        for side, precision in itertools.product(() if only else SQUARES, SQUARE_PRECISIONS.get(dtype, ())):
            plain = gemm_problem(side, side, side, dtype.name, dtype.name, "nn")
            problem = dataclasses.replace(plain, precision=precision)
            jobs += jobs_of(choose(problem, HOPPER, multiprocessors=132), problem, HOPPER)
    for job, result in compile_all(list(dict.fromkeys(jobs))):
        if isinstance(result, CompileError):
            print(job, result, flush=True)


class ComplexReference:
    """The parts of a complex product, real products of twice the length."""

    def __init__(self, a: torch.Tensor, b: torch.Tensor) -> None:
        real, imag = torch.cat((a.real, -a.imag), 1), torch.cat((a.real, a.imag), 1)
        self.real = Reference(real, torch.cat((b.real, b.imag)))
        self.imag = Reference(imag, torch.cat((b.imag, b.real)))

    def error(self, out: torch.Tensor) -> float:
        """Return the largest error of a part."""
        return max(self.real.error(out.real), self.imag.error(out.imag))


class Reference:
    """A product in more than twice the precision, and the sums of magnitudes."""

    def __init__(self, a: torch.Tensor, b: torch.Tensor) -> None:
        self.unit = FLOAT64.unit_roundoff if a.dtype == torch.float64 else FLOAT32.unit_roundoff
        tiny = torch.finfo(a.dtype).tiny
        # Subnormal numbers become normal, exactly.
        self.up = 2.0**600 if bool((a.abs() < tiny).any()) and float(a.abs().max()) < 2.0**-900 else 1.0
        a, b = a.double() * self.up, b.double()
        self.total, self.rest = exact_product(torch.nan_to_num(a, 0, 0, 0), b)
        self.size = a.abs() @ b.abs()
        self.least = torch.finfo(torch.float64 if self.unit < 1e-10 else torch.float32).smallest_normal * 2 * self.unit

    def error(self, out: torch.Tensor) -> float:
        """Return the largest error of elements that are finite in the exact product."""
        fine = torch.isfinite(self.size)
        if not bool(fine.any()):
            return 0.0
        away = ((out.double() * self.up - self.total) - self.rest).abs()
        # Beyond what a subnormal result cannot hold.
        away = (away - self.least / 2).clamp(min=0)
        worst = (away / torch.where(self.size > 0, self.size, 1) / self.unit)[fine].max()
        return round(float(worst), 4)


def special(out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return where an output, or a part of it, is NaN, and where it is infinite of either sign."""
    out = torch.view_as_real(out) if out.is_complex() else out
    return torch.isnan(out), out == math.inf, out == -math.inf


def measured(given: Input) -> dict[str, Any]:
    """Return the fields of a record."""
    a, b = factors(given)
    guarded, native = KERNELS[given.dtype]
    product = multiply(guarded, Precision.OZAKI, a, b)
    plain = multiply(native, Precision.IEEE, a, b)
    is_complex = given.dtype.kind is Kind.COMPLEX
    reference = (ComplexReference if is_complex else Reference)(a, b)
    bound = 2 * given.k + 6 if is_complex else given.k + 3
    return {
        "record": "accuracy", "dtype": given.dtype.name, "precision": Precision.OZAKI.value, "input": given.name,
        "ordinary": given.ordinary, "m": SIDE, "n": SIDE, "k": given.k, "error_u": reference.error(product),
        "bound_u": bound, "native_u": reference.error(plain), "cublas_u": reference.error(a @ b),
        "ran": ran(a, b), "same_special": all(map(torch.equal, special(product), special(plain))),
    }  # fmt: skip


def emulated() -> dict[str, list[float]]:
    """Return, of cuBLAS in a process with its emulation, the error and checksum of the result by the input's key."""
    command = [sys.executable, __file__, "--cublas"]
    lines = subprocess.run(command, env=os.environ | EMULATION, check=True, capture_output=True, text=True).stdout
    return json.loads(lines.splitlines()[-1])


def checksum(out: torch.Tensor) -> int:
    """Return a checksum of a result's bits."""
    return zlib.crc32(out.cpu().numpy().tobytes())


def cublas() -> dict[str, list[float]]:
    """Return error and checksum of cuBLAS's float64 products, by the input's key."""
    found = {}
    for given in inputs():
        if given.dtype == FLOAT64:
            a, b = factors(given)
            out = a @ b
            found[given.key] = [Reference(a, b).error(out), checksum(out)]
    return found


def main() -> None:
    """Multiply, compare, write the records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="?")
    parser.add_argument("--only", default="", help="inputs whose name has this")
    parser.add_argument("--cublas", action="store_true", help="print what cuBLAS does in this process")
    parser.add_argument("--compile", action="store_true", help="compile only")
    options = parser.parse_args()
    if options.compile:
        compile_kernels(options.only)
        return
    if options.cublas:
        print(json.dumps(cublas()))
        return
    others = emulated() if not options.only else {}
    block = experiment("python benchmarks/records/accuracy.py", get_device().pci_bus_id)
    failed = 0
    with RecordFile(options.results, block) as file:
        for given in inputs():
            if options.only not in given.key:
                continue
            found = measured(given)
            if given.key in others:
                error, bits = others[given.key]
                found |= {"cublas_emulation_u": error, "cublas_emulates": bits != checksum(torch.mm(*factors(given)))}
            file.write(found)
            failed += not (found["error_u"] <= found["bound_u"] and found["same_special"])
            print(f"{given.key:50} {found}", flush=True)
    print(file.path, f"{failed} beyond the bound")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
