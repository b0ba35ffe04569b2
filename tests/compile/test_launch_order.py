"""Kernels whose launches may begin before the one in front has ended wait for it, before they touch memory.

That is asked of every kernel where all are compiled; here are other configs and specialisations.
"""

from __future__ import annotations

import itertools
import re

import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.arch import Arch
from gemmule.dispatch.registry import REGISTRY
from gemmule.kernels.hopper.gemm_repacked.config import PackingConfig
from gemmule.kernels.hopper.gemm_repacked.smaller_operand import ORDERS
from gemmule.kernels.hopper.gemm_repacked.spec import SPEC as REPACKED
from gemmule.lab.products import gemm_problem
from gemmule.lab.transposes import problem_for, transpose_of
from support.code.launch_order import accesses_without_waits, assert_in_order, assert_waits_first

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: Kernels that copy by their threads, the type of their operands, and the number of a small config.
KERNELS = [
    *(("g07_cp_async", "float32", -1), ("float64_gemm", "float64", 9)),
    *(("mma_sync_gemm", "bfloat16", -1), ("mma_sync_small", "bfloat16", 0)),
]
HOPPER, BEFORE = Arch.parse("sm_90a"), Arch.parse("sm_80")


def product(kernel, layout, edge):
    name, dtype, number = kernel
    spec = next(spec for spec in REGISTRY if spec.name == name)
    return spec, spec.configs[number], gemm_problem(edge, edge, edge, dtype, dtype, layout)


def transposes():
    """Transposes whose launches overlap, of each kernel one for every specialisation."""
    for spec in REGISTRY:
        if spec.operation == "transpose":
            found, config = {}, spec.configs[-1]
            for edge, item in itertools.product((64, 67), (4, 2, 1, 8)):
                problem = problem_for(spec, config, HOPPER, transpose_of(edge, edge, item))
                if not spec.why_not(problem, HOPPER, config) and spec.launch(problem, config).overlaps:
                    found.setdefault(spec.signature(problem, config), problem)
            for problem in found.values():
                yield pytest.param(spec, config, problem, id=f"{spec.name}-{problem.rows}-{problem.itemsize}")


def text(arch, spec, config, problem):
    assert spec.launch(problem, config).overlaps
    return artifact_for(spec, config, spec.signature(problem, config), arch).ptx


# What copies elements one by one; others are compiled for every run where all kernels are.
@pytest.mark.parametrize(("layout", "edge"), [pytest.param("nn", 192, marks=pytest.mark.slow), ("tt", 61)])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel[0])
def test_a_product_waits_before_it_touches_memory(kernel, layout, edge):
    assert_waits_first(text(HOPPER, *product(kernel, layout, edge)))


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "config", "problem"), list(transposes()))
def test_a_transpose_waits_before_it_touches_memory_and_lets_the_next_one_begin(spec, config, problem):
    code = text(HOPPER, spec, config, problem)
    assert_waits_first(code)
    assert code.index("griddepcontrol.wait") < code.index("griddepcontrol.launch_dependents")


@pytest.mark.parametrize(("layout", "order"), list(zip(("nt", "tn", "tt"), ORDERS, strict=True)), ids=ORDERS)
def test_a_copy_lets_the_product_begin_once_the_operand_that_it_loads_ahead_is_written(layout, order):
    """The product loads the operand that lies as it is before it waits: what wrote that must have ended by then."""
    config, problem = PackingConfig(packs=1), gemm_problem(515, 301, 263, "bfloat16", "bfloat16", layout)
    assert dict(REPACKED.signature(problem, config)).get("order", ORDERS[0]) == order
    code = text(HOPPER, REPACKED, config, problem)
    assert_waits_first(code)
    assert code.index("griddepcontrol.wait") < code.index("griddepcontrol.launch_dependents")


def test_what_is_not_in_order_is_found():
    wait, load = "griddepcontrol.wait;\n", "ld.global.b32 %r1, [%rd1];\n"
    assert_in_order(wait + load, HOPPER, overlaps=True)
    for code, arch in ((load + wait, HOPPER), (load, HOPPER), (wait + load, BEFORE)):
        with pytest.raises(AssertionError):
            assert_in_order(code, arch, overlaps=True)
    assert_in_order(load, BEFORE, overlaps=True)
    assert_in_order(load, HOPPER, overlaps=False)


@pytest.mark.parametrize(
    ("name", "n", "layout", "waits"),
    [
        ("hopper_gemm", 512, "nn", 2),
        ("hopper_gemm_unaligned", 67, "nt", 2),
        ("hopper_gemm_repacked", 61, "nt", 2),
        ("mma_sync_small", 61, "tt", 1),
    ],
)
def test_every_path_waits_and_needs_each_wait(name, n, layout, waits):
    """The warps that load and those that write, and each operand's copies, wait for themselves."""
    k = 64 if n == 67 else n
    spec = next(spec for spec in REGISTRY if spec.name == name)
    problem = gemm_problem(n, n, k, "bfloat16", "bfloat16", layout)
    config = next(one for one in spec.configs if spec.why_not(problem, HOPPER, one) is None)
    code = text(HOPPER, spec, config, problem)
    assert accesses_without_waits(code) == []
    found = list(re.finditer(r"griddepcontrol\.wait;", code))
    assert len(found) == waits
    for one in found:
        assert accesses_without_waits(code[: one.start()] + code[one.end() :])


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel[0])
def test_long_launches_follow_one_another(kernel):
    spec, config, problem = product(kernel, "nn", 1024)
    assert not spec.launch(problem, config).overlaps
