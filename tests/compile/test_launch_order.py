"""Kernels whose launches may begin before the one in front has ended wait for it, before they touch memory."""

from __future__ import annotations

import re

import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.arch import Arch
from gemmule.dispatch.registry import REGISTRY
from gemmule.lab.products import gemm_problem

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

SPEC = next(spec for spec in REGISTRY if spec.name == "g07_cp_async")
MEMORY = re.compile(r"\b(ld|st|cp\.async|prefetch)\S*\.global")


def text(arch, layout, edge):
    problem = gemm_problem(edge, edge, edge, "float32", "float32", layout)
    config = SPEC.configs[-1]
    assert SPEC.launch(problem, config).overlaps
    return artifact_for(SPEC, config, SPEC.signature(problem, config), Arch.parse(arch)).ptx


@pytest.mark.parametrize(("layout", "edge"), [("nn", 256), ("tt", 61)])
def test_it_waits_before_it_touches_memory(layout, edge):
    code = text("sm_90a", layout, edge)
    assert len(re.findall(r"griddepcontrol\.wait", code)) == 1
    assert code.index("griddepcontrol.wait") < MEMORY.search(code).start()


def test_before_hopper_launches_are_in_order():
    assert "griddepcontrol" not in text("sm_80", "nn", 256)
