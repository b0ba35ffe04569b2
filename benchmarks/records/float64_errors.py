"""Errors of float64 products on a GPU: fifteen products of int8, gemmule's float64 kernel, and cuBLAS; writes a record.

python benchmarks/records/float64_errors.py benchmarks/results

Needs an NVIDIA Hopper GPU and PyTorch. An error is componentwise, in units of u (|A| |B|)ij with u = 2**-53; the
largest of a result counts. The reference is a sum of exact products in twice the precision of float64, on the GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from pathlib import Path

import torch
from error_inputs import FAMILIES, SIDE, factors

from gemmule.core.dtype import FLOAT64, Precision
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.lab.experiment import experiment
from gemmule.lab.products import gemm_problem
from gemmule.lab.records import RecordFile
from gemmule.runtime.device import get_device
from gemmule.runtime.execute import run_kernel

SPECS = {spec.name: spec for spec in REGISTRY}
SPLIT, PLAIN = SPECS["ozaki_gemm"], SPECS["float64_gemm"]
DEPTHS = (1, 2, 16, 64, 256, 1024, 4096, 16384)
#: Takes the upper half of a float64's bits.
_SPLITTER = 2.0**27 + 1
#: Products that are held at once; of K a power of two of them.
_TOGETHER = 2**22


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the upper half of the bits, and the rest."""
    moved = x * _SPLITTER
    high = moved - (moved - x)
    return high, x - high


def _sum(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a sum, rounded, and what was lost."""
    total = a + b
    taken = total - a
    return total, (a - (total - taken)) + (b - taken)


def exact_product(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a product as the sum of two float64: products without error, sums with theirs kept."""
    together = 2 ** int(math.log2(max(_TOGETHER // (a.shape[0] * b.shape[1]), 1)))
    beyond = -a.shape[1] % together
    a, b = torch.nn.functional.pad(a, (0, beyond)), torch.nn.functional.pad(b, (0, 0, 0, beyond))
    total = torch.zeros(a.shape[0], b.shape[1], device="cuda", dtype=torch.float64)
    rest = torch.zeros_like(total)
    for k in range(0, a.shape[1], together):
        x, y = a[:, k : k + together, None], b[None, k : k + together]
        (high_x, low_x), (high_y, low_y) = _halves(x), _halves(y)
        parts = x * y
        rest += (high_x * high_y - parts + high_x * low_y + low_x * high_y + low_x * low_y).sum(1)
        while parts.shape[1] > 1:
            parts, lost = _sum(*parts.chunk(2, 1))
            rest += lost.sum(1)
        total, lost = _sum(total, parts[:, 0])
        rest += lost
    return total, rest


def errors(a: torch.Tensor, b: torch.Tensor) -> dict[str, float]:
    """Return the largest error of each way to multiply."""
    m, n, k = a.shape[0], b.shape[1], a.shape[1]
    total, rest = exact_product(a, b)
    size = a.abs() @ b.abs()
    found = {}
    for name, spec, precision in (("ozaki-15", SPLIT, Precision.OZAKI_15), (PLAIN.name, PLAIN, Precision.IEEE)):
        problem = dataclasses.replace(gemm_problem(m, n, k, "float64", "float64", "nn"), precision=precision)
        out = torch.full((m, n), math.nan, device="cuda", dtype=torch.float64)
        able = next(one for one in spec.configs if spec.why_not(problem, get_device().arch, one) is None)
        pointers = {"a": a.data_ptr(), "b": b.data_ptr(), "d": out.data_ptr()}
        run_kernel(problem, Choice(spec, able), pointers, 0, torch.cuda.current_stream().cuda_stream)
        found[name] = out
    found["cublas"] = torch.mm(a, b)
    unit = torch.where(size > 0, size, 1) * FLOAT64.unit_roundoff
    worst = {name: float((((out - total) - rest).abs() / unit).max()) for name, out in found.items()}
    return {name: round(one, 3) for name, one in worst.items()}


def main() -> None:
    """Multiply, compare, write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    options = parser.parse_args()
    torch.manual_seed(seed := torch.seed() % 2**32)
    block = experiment("python benchmarks/records/float64_errors.py", get_device().pci_bus_id) | {"seed": seed}
    with RecordFile(options.results, block) as file:
        for family in FAMILIES:
            for k in DEPTHS:
                found = errors(*factors(family, k))
                file.write({"record": "errors", "inputs": family, "m": SIDE, "n": SIDE, "k": k, "error_u": found})
                print(f"{family:50} {k:6} {found}", flush=True)
    print(file.path)


if __name__ == "__main__":
    main()
