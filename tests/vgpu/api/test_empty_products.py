"""Products of nothing by the public functions on the host and on the virtual GPU; tests/gpu has the same."""

from __future__ import annotations

import numpy as np
import pytest

import gemmule as gm
from gemmule.dispatch.registry import LADDER, REGISTRY
from support.empty_products import KINDS, THOROUGH, empty_products, kind_id
from support.kernel_kinds import FAMILIES, TRIANGLES, check_on_its_gpu, plainest
from support.vgpu.kernel_products import size_of

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

SPECS = {spec.name: spec for spec in REGISTRY if spec.operation == "gemm"}
#: Of several launches the first has nothing to do: two of one family, all others are slow for what is compiled.
QUICK = tuple(
    (one.types[0], one.precision)
    for one in FAMILIES["hopper_gemm_upcast"]
    if one.types[0][0] in ("float8_e4m3fn", "int8")
)


@pytest.fixture(autouse=True)
def _checked(monkeypatch, request):
    check_on_its_gpu(monkeypatch, request)


def compute(executor, case):
    """Compute a product into a new output and into a given one."""
    a, b = case.operands
    got = gm.gemm(a, b, **case.options, executor=executor)
    np.testing.assert_array_equal(got, case.expected, err_msg=str(case))
    assert got.dtype == case.expected.dtype
    out = case.out()
    largest = {"absmax": np.full(1, np.nan, np.float32)} if case.absmax is not None else {}
    assert gm.gemm(a, b, **case.options, **largest, out=out, executor=executor) is out
    np.testing.assert_array_equal(out, case.expected, err_msg=str(case))
    if largest:
        assert largest["absmax"] == case.absmax, case


#: Whose own tests have products of nothing, and which are compiled anew for them.
OWN_TESTS = ("simt_gemm", "simt_batched", "complex64_gemm", "complex128_gemm")
#: Rungs of the ladder, of which dispatch chooses few, and what has tests of its own.
SLOW = [pytest.mark.slow]


@pytest.mark.parametrize("kind", KINDS, ids=kind_id)
def test_on_the_host(kind, rng):
    for case in empty_products(rng, kind):
        compute("cpu", case)


@pytest.mark.parametrize("kind", QUICK, ids=kind_id)
def test_kernels_of_several_launches(kind, rng):
    for case in empty_products(rng, kind, thorough=False):
        compute("vgpu", case)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=kind_id)
def test_on_the_virtual_gpu(kind, rng):
    for case in empty_products(rng, kind, thorough=kind in THOROUGH):
        compute("vgpu", case)


@pytest.mark.parametrize(
    "kernel",
    [pytest.param(x, marks=SLOW if x in (*LADDER, *OWN_TESTS) else []) for x in SPECS if x not in TRIANGLES],
)
def test_a_kernel_refuses_it_or_writes_the_result(kernel, rng):
    variant, configs = plainest(kernel), SPECS[kernel].configs
    smallest = min(range(len(configs)), key=lambda number: size_of(configs[number]))
    options = {"executor": "vgpu", "kernel": f"{kernel}[{smallest}]"}
    for case in empty_products(rng, (variant.types, variant.family.precision), thorough=False):
        if "c" in case.options or "bias" in case.options:
            continue
        out = case.out()
        try:
            plan = gm.gemm.plan(*case.operands, **case.options, out=out, **options)
        except gm.UnsupportedError:
            continue
        plan.execute()
        np.testing.assert_array_equal(out, case.expected, err_msg=str(case))
