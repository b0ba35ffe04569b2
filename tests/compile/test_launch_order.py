"""Kernels whose launches may begin before the one in front has ended wait for it, before they touch memory."""

from __future__ import annotations

import re

import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.arch import Arch
from gemmule.dispatch.registry import REGISTRY
from gemmule.lab.products import gemm_problem

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: Kernels that copy by their threads, the type of their operands, and the number of a small config.
KERNELS = [("g07_cp_async", "float32", -1), ("d03_mma_f64", "float64", 9), ("h01_mma_sync", "bfloat16", -1)]
MEMORY = re.compile(r"\b(ld|st|cp\.async|prefetch)\S*\.global")


def launched(kernel, layout, edge):
    name, dtype, number = kernel
    spec = next(spec for spec in REGISTRY if spec.name == name)
    problem = gemm_problem(edge, edge, edge, dtype, dtype, layout)
    config = spec.configs[number]
    return spec, config, problem, spec.launch(problem, config)


def text(kernel, arch, layout, edge):
    spec, config, problem, launch = launched(kernel, layout, edge)
    assert launch.overlaps
    return artifact_for(spec, config, spec.signature(problem, config), Arch.parse(arch)).ptx


@pytest.mark.parametrize(("layout", "edge"), [("nn", 192), ("tt", 61)])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel[0])
def test_it_waits_before_it_touches_memory(kernel, layout, edge):
    code = text(kernel, "sm_90a", layout, edge)
    assert len(re.findall(r"griddepcontrol\.wait", code)) == 1
    assert code.index("griddepcontrol.wait") < MEMORY.search(code).start()


def test_before_hopper_launches_are_in_order():
    assert "griddepcontrol" not in text(KERNELS[0], "sm_80", "nn", 192)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel[0])
def test_long_launches_follow_one_another(kernel):
    *_, launch = launched(kernel, "nn", 1024)
    assert not launch.overlaps
