"""Kernels whose launches may begin before the one in front has ended wait for it, before they touch memory."""

from __future__ import annotations

import itertools
import re

import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.arch import Arch
from gemmule.dispatch.registry import REGISTRY
from gemmule.lab.products import gemm_problem
from gemmule.lab.transposes import problem_for

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

MEMORY = re.compile(r"\b(ld|st|cp\.async|prefetch)\S*\.global")
HOPPER, BEFORE = Arch.parse("sm_90a"), Arch.parse("sm_80")


def product(layout, edge):
    """A product whose launch overlaps."""
    spec = next(spec for spec in REGISTRY if spec.name == "g07_cp_async")
    problem = gemm_problem(edge, edge, edge, "float32", "float32", layout)
    assert spec.launch(problem, spec.configs[-1]).overlaps
    return spec, problem


def transposes():
    """Transposes whose launches overlap, of each kernel one for every specialisation; the first is for every run."""
    for spec in REGISTRY:
        if spec.operation == "transpose":
            found = {}
            for edge, item in itertools.product((64, 67), (4, 2, 1, 8)):
                problem = problem_for(spec, spec.configs[-1], HOPPER, edge, edge, item)
                if (
                    not spec.why_not(problem, HOPPER, spec.configs[-1])
                    and spec.launch(problem, spec.configs[-1]).overlaps
                ):
                    found.setdefault(spec.signature(problem, spec.configs[-1]), problem)
            for number, problem in enumerate(found.values()):
                marks = [pytest.mark.slow] if number else []
                yield pytest.param(spec, problem, marks=marks, id=f"{spec.name}-{problem.rows}-{problem.itemsize}")


def text(arch, spec, problem):
    config = spec.configs[-1]
    return artifact_for(spec, config, spec.signature(problem, config), arch).ptx


def assert_waits_first(code):
    assert len(re.findall(r"griddepcontrol\.wait", code)) == 1
    assert code.index("griddepcontrol.wait") < MEMORY.search(code).start()


@pytest.mark.parametrize(("layout", "edge"), [("nn", 256), ("tt", 61)])
def test_a_product_waits_before_it_touches_memory(layout, edge):
    assert_waits_first(text(HOPPER, *product(layout, edge)))


@pytest.mark.parametrize(("spec", "problem"), list(transposes()))
def test_a_transpose_waits_before_it_touches_memory_and_lets_the_next_one_begin(spec, problem):
    code = text(HOPPER, spec, problem)
    assert_waits_first(code)
    assert code.index("griddepcontrol.wait") < code.index("griddepcontrol.launch_dependents")


def test_before_hopper_launches_are_in_order():
    small = next(transposes()).values
    for spec, problem in (product("nn", 256), small):
        assert "griddepcontrol" not in text(BEFORE, spec, problem)
