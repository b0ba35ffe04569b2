"""Errors of float32 products on a GPU: six products of bfloat16, gemmule's float32 kernel, and cuBLAS; writes a record.

python benchmarks/records/float32_errors.py benchmarks/results

Needs an NVIDIA Hopper GPU and PyTorch. An error is componentwise, in units of u (|A| |B|)ij with u = 2**-24; the
largest of a result counts. The reference is a product in float64.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from pathlib import Path

import torch
from error_inputs import FAMILIES, SIDE, factors

from gemmule.core.dtype import FLOAT32, Precision
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.lab.experiment import experiment
from gemmule.lab.products import gemm_problem
from gemmule.lab.records import RecordFile
from gemmule.runtime.device import get_device
from gemmule.runtime.execute import run_kernel

SPECS = {spec.name: spec for spec in REGISTRY}
SPLIT, PLAIN = SPECS["bf16x6_gemm"], SPECS["simt_gemm"]
DEPTHS = (1, 2, 16, 64, 256, 1024, 4096, 16384, 65536)


def errors(a: torch.Tensor, b: torch.Tensor) -> dict[str, float]:
    """Return the largest error of each way to multiply."""
    m, n, k = a.shape[0], b.shape[1], a.shape[1]
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    found = {}
    for name, spec, precision in (("bf16x6", SPLIT, Precision.BF16X6), (PLAIN.name, PLAIN, Precision.IEEE)):
        problem = dataclasses.replace(gemm_problem(m, n, k, "float32", "float32", "nn"), precision=precision)
        out = torch.full((m, n), math.nan, device="cuda")
        able = next(one for one in spec.configs if spec.why_not(problem, get_device().arch, one) is None)
        pointers = {"a": a.data_ptr(), "b": b.data_ptr(), "d": out.data_ptr()}
        run_kernel(problem, Choice(spec, able), pointers, 0, torch.cuda.current_stream().cuda_stream)
        found[name] = out
    found["cublas"] = torch.mm(a, b)
    unit = torch.where(size > 0, size, 1) * FLOAT32.unit_roundoff
    worst = {name: float(((out.double() - exact).abs() / unit).max()) for name, out in found.items()}
    return {name: round(one, 3) for name, one in worst.items()}


def main() -> None:
    """Multiply, compare, write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(seed := torch.seed() % 2**32)
    block = experiment("python benchmarks/records/float32_errors.py", get_device().pci_bus_id) | {"seed": seed}
    with RecordFile(options.results, block) as file:
        # Scales that cancel along K are for ways that scale rows and columns.
        for family in (one for one in FAMILIES if not one.startswith("columns")):
            for k in DEPTHS:
                a, b = factors(family, k)
                found = errors(a.float(), b.float())
                file.write({"record": "errors", "inputs": family, "m": SIDE, "n": SIDE, "k": k, "error_u": found})
                print(f"{family:40} {k:6} {found}", flush=True)
    print(file.path)


if __name__ == "__main__":
    main()
