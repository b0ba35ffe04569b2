"""Runs of measurements of two kernels and a baseline, with scripted times."""

from __future__ import annotations

from gemmule.core.chips import chip_named
from gemmule.core.spec import Choice
from gemmule.lab.bench_plan import BenchPlan
from gemmule.lab.gemm_bench import GemmBench
from gemmule.lab.products import gemm_problem

from .bench import FakeBaseline, FakeDevice, kernel_spec, only

H100 = chip_named("h100")
FAST, SLOW = kernel_spec("fast", only("float32", "int8")), kernel_spec("slow")
SECONDS = {"fast": 1e-3, "slow": 4e-3, "y0": 1.1e-3, "y1": 0.9e-3, "y2": 2e-3}


def run(specs=(FAST, SLOW), shape=(96, 80, 64), dtype="float32", layout="nn", device=None, refuses=None, baseline=True):
    device = device or FakeDevice(SECONDS)
    out = "int32" if dtype == "int8" else dtype
    problem = gemm_problem(*shape, dtype, out, layout)
    plan = BenchPlan((problem,), tuple(Choice(spec, spec.default) for spec in specs), warm_up_seconds=0.01)
    return list(GemmBench(plan, device, H100, FakeBaseline(device, refuses) if baseline else None).records())


def kinds(records):
    return [(one["record"], one.get("kernel", one.get("library"))) for one in records]
