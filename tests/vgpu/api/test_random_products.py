"""Random products on the virtual GPU by the public functions, all checks on: the kernel first, then the shape."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.block_triangle import BlockTriangle
from gemmule.core.problem import mark_own_transpose
from gemmule.dispatch.registry import LADDER, REGISTRY
from gemmule.dispatch.select import choose
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.execute import run_kernel
from support.kernel_kinds import FAMILIES, TRIANGLES, check_on_its_gpu, draw_product, draw_variant, plainest
from support.vgpu.kernel_products import problem_of, size_of

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

SPECS = {spec.name: spec for spec in REGISTRY if spec.operation == "gemm"}
#: What dispatch takes for products of its own kind, without being told a name.
CHOSEN = (
    "hopper_syrk", "hopper_gemm", "hopper_gemm_unaligned", "hopper_gemm_repacked", "hopper_gemm_w8a16",
    "hopper_gemm_k_major", "hopper_gemm_upcast", "gemm_upcast", "bf16x6_gemm", "ozaki_gemm", "simt_batched",
    "complex_gemm_upcast", *TRIANGLES,
)  # fmt: skip
#: Rungs of the ladder are compiled in other configs by the tests of every kernel; dispatch chooses few of them.
SLOW = [pytest.mark.slow]
#: Products of each kernel, of so many variants of it.
PRODUCTS, VARIANTS = 51, 3
#: Extents are below it, of a kernel whose tiles have few elements.
MOST = {"simt_dot": 12}


@pytest.fixture(autouse=True)
def _checked(monkeypatch, request):
    check_on_its_gpu(monkeypatch, request)


def runner(kernel, product, config=None):
    """Return what computes a product by a kernel in the config of that number; None where it does not take it.

    Without a number, dispatch must take the kernel by itself.
    """
    if kernel in TRIANGLES:
        return lambda: triangle(kernel, product)
    given = {"executor": "vgpu", **product.options}
    if config is None:
        plan = gm.gemm.plan(*product.operands, **given)
        return plan.execute if plan.kernel == kernel else None
    try:
        return gm.gemm.plan(*product.operands, **given, kernel=f"{kernel}[{config}]").execute
    except gm.UnsupportedError:
        return None


def triangle(kernel, product):
    """Compute what is on and below the diagonal, by the kernel that dispatch takes for it."""
    a, b = product.operands
    found = np.empty_like(product.expected)
    for index in np.ndindex(found.shape[:-2]):
        problem = dataclasses.replace(
            mark_own_transpose(problem_of(a[index], b[index], found[index]), True), needed=BlockTriangle(0, 256)
        )
        problem = dataclasses.replace(problem, alpha=product.options["alpha"])
        # So small ones are left to other kernels.
        choice = choose(problem, virtual_arch(), (SPECS[kernel],))
        run_kernel(problem, choice, {"a": a[index], "b": b[index], "d": found[index]})
        above = ~np.tri(*found.shape[-2:], dtype=bool)
        found[index][above] = product.expected[index][above]
    return found


def test_every_kernel_says_what_it_multiplies():
    assert set(FAMILIES) == set(SPECS)


#: What has tests of its own in `tests/vgpu/kernels`, with random products of every layout, and is compiled longest; of
#: complex64_syrk the triangle is that of complex128_syrk, and the products those of complex64_gemm.
LONG = (
    "simt_gemm",
    "simt_syrk",
    "complex64_gemm",
    "complex64_syrk",
    "float64_syrk",
    "hopper_syrk",
    "hopper_gemm_unaligned",
    "bf16x6_gemm",
    "ozaki_gemm",
    "ozaki_complex",
)


@pytest.mark.parametrize(
    "kernel", [pytest.param(name, marks=SLOW if name in (*LADDER, *LONG) else []) for name in SPECS]
)
def test_a_product_by_each_kernel(kernel, rng):
    configs = SPECS[kernel].configs
    smallest = min(range(len(configs)), key=lambda number: size_of(configs[number]))
    for _ in range(50):
        product = draw_product(rng, plainest(kernel), most=70)
        if (run := runner(kernel, product, None if kernel in CHOSEN else smallest)) is not None:
            np.testing.assert_array_equal(run(), product.expected)
            return
    pytest.fail(f"{kernel} takes none of its own products")


@pytest.mark.slow
@pytest.mark.parametrize("kernel", SPECS)
def test_random_products_by_each_kernel(kernel, rng):
    spec, done = SPECS[kernel], 0
    for _ in range(10 * VARIANTS):
        # Some variants are for other configs, or for none.
        variant, config = draw_variant(rng, kernel, epilogues=spec.epilogues), int(rng.integers(len(spec.configs)))
        products = [draw_product(rng, variant, MOST.get(kernel, 140)) for _ in range(PRODUCTS // VARIANTS)]
        for product in products:
            if (run := runner(kernel, product, config)) is not None:
                np.testing.assert_array_equal(run(), product.expected, err_msg=f"{variant} {config} {product.options}")
                done += 1
        if done >= PRODUCTS:
            return
    pytest.fail(f"{kernel} took {done} of its own products")
