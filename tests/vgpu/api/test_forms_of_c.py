"""C in any layout and type on the virtual GPU, by each production kernel: the kernel first, then the shape."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import DTYPES, Kind, accumulator, dtype_named
from gemmule.dispatch.registry import REGISTRY
from support.kernel_kinds import (
    FAMILIES,
    check_on_its_gpu,
    draw_product,
    draw_variant,
    laid_out,
    plainest,
    rounded,
    whole_numbers,
)
from support.oracle import assert_product, poisoned, random_matrix
from support.vgpu.kernel_products import size_of

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

SPECS = {
    spec.name: spec
    for spec in REGISTRY
    if spec.operation == "gemm"
    and not any(family.own for family in FAMILIES[spec.name])
    and not spec.name.startswith(("h0", "g0", "d0"))
}
LAYOUTS = ("rows", "columns", "strided", "one row", "one column", "reversed", "misaligned")
#: Kernels that are tested always; of others the compilation takes longer.
QUICK = ("hopper_gemm", "simt_gemm", "float64_gemm", "complex128_gemm", "mma_sync_small")


@pytest.fixture(autouse=True)
def _checked(monkeypatch, request):
    check_on_its_gpu(monkeypatch, request)


def c_of(rng, layout, dtype, shape):
    """Return whole numbers of a type in a layout."""
    c = whole_numbers(rng, dtype, shape)
    if layout == "columns":
        return laid_out(rng, c, "c", 1)
    if layout == "strided":
        return np.repeat(np.repeat(c, 2, -1), 3, -2)[..., 1::3, 1::2]
    if layout == "one row":
        return np.broadcast_to(c[..., :1, :], shape)
    if layout == "one column":
        return np.broadcast_to(c[..., :, :1], shape)
    if layout == "reversed":
        return np.ascontiguousarray(c[..., ::-1, :])[..., ::-1, :]
    return np.pad(c, [*[(0, 0)] * (c.ndim - 1), (1, 0)])[..., 1:] if layout == "misaligned" else c


def types_of_c(types):
    """Return the types that C may have: those that the result or the sums hold."""
    sums, result = accumulator(dtype_named(types[0]), dtype_named(types[1])), dtype_named(types[2])
    return [result.name] * 4 + [one.name for one in DTYPES if sums.holds(one) or result.holds(one)]


def product_with_c(rng, variant, layout=None, dtype=None):
    """Draw a product with such a C, and return its operands, its options and what it gives, exactly."""
    product = draw_product(rng, dataclasses.replace(variant, adds_c=False, relu=False), most=70)
    (a, b), d_type = product.operands, variant.types[2]
    wide = {Kind.INTEGER: np.int64, Kind.FLOAT: np.float64, Kind.COMPLEX: np.complex128}[dtype_named(d_type).kind]
    options = product.options
    layout, dtype = layout or str(rng.choice(LAYOUTS)), dtype or str(rng.choice(types_of_c(variant.types)))
    beta = complex(2, -1) if wide is np.complex128 and rng.random() < 0.3 else int(rng.choice((1, -2)))
    c = c_of(rng, layout, dtype, product.expected.shape)
    exact = options["alpha"] * (a.astype(wide) @ b.astype(wide)) + beta * c.astype(wide)
    if variant.relu:
        bias = whole_numbers(rng, "bfloat16" if dtype_named(d_type).is_float8 else d_type, exact.shape[-1:])
        options |= {"bias": bias, "epilogue": "relu"}
        exact = np.maximum(exact + bias.astype(wide), 0)
    return (a, b, c), options | {"beta": beta}, rounded(exact, d_type)


@pytest.mark.parametrize(
    "kernel", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in SPECS]
)
def test_c_in_another_layout_by_each_kernel(kernel, rng):
    spec, plain = SPECS[kernel], plainest(kernel)
    smallest = min(range(len(spec.configs)), key=lambda number: size_of(spec.configs[number]))
    left = set(plain.family.units)
    for number in range(40):
        variant = dataclasses.replace(plain, unit=min(left))
        layout = ("columns", "strided")[number % 2]
        operands, options, expected = product_with_c(rng, variant, layout, variant.types[2])
        try:
            plan = gm.gemm.plan(*operands, **options, executor="vgpu", kernel=f"{kernel}[{smallest}]")
        except gm.UnsupportedError:
            continue
        assert plan.kernel == kernel
        np.testing.assert_array_equal(plan.execute(), expected, err_msg=f"{layout} {plan.rewrite}")
        left.remove(variant.unit)
        if not left:
            return
    pytest.fail(f"{kernel} takes none of its own products")


@pytest.mark.slow
@pytest.mark.parametrize("kernel", SPECS)
def test_random_c_by_each_kernel(kernel, rng):
    spec, done = SPECS[kernel], 0
    # Some kernels refuse most of what is drawn.
    for number in range(200):
        if number >= 6 and done >= 4:
            break
        variant = draw_variant(rng, kernel, epilogues=True)
        config = int(rng.integers(len(spec.configs)))
        for _ in range(4):
            operands, options, expected = product_with_c(rng, variant)
            try:
                plan = gm.gemm.plan(*operands, **options, executor="vgpu", kernel=f"{kernel}[{config}]")
            except gm.UnsupportedError:
                continue
            text = f"{variant} C {operands[2].dtype} {operands[2].strides} {plan.rewrite} {plan.next_kernel}"
            np.testing.assert_array_equal(plan.execute(), expected, err_msg=text)
            done += 1
    assert done >= 4, f"{kernel} took {done} of its own products"


@pytest.mark.combinations(2, once=["name"])
@pytest.mark.parametrize("name", ["bfloat16", "float32", "float64", "complex64", "int8"])
@pytest.mark.parametrize("layout", ["columns", "one column"])
@pytest.mark.parametrize("shape", [(37, 24, 0), (0, 24, 8), (37, 0, 8)], ids=str)
def test_a_product_of_nothing_leaves_beta_c(name, layout, shape, rng):
    m, n, k = shape
    dtype, d_type = dtype_named(name).numpy(), "int32" if name == "int8" else name
    c = c_of(rng, layout, d_type, (m, n))
    out = np.full((m, n), 77, dtype_named(d_type).numpy())
    given = np.zeros((m, k), dtype), np.zeros((k, n), dtype), c
    gm.gemm.plan(*given, beta=3, out=out, executor="vgpu", chip="h200").execute()
    np.testing.assert_array_equal(out, 3 * c)
    # Infinity times nothing is nothing: neither the factors nor C are read.
    nothing = gm.gemm.plan(*given[:2], np.full_like(c, 77), alpha=0, beta=0, out=out, executor="vgpu", chip="h200")
    nothing.execute()
    np.testing.assert_array_equal(out, np.zeros_like(c))


@pytest.mark.parametrize("k", [21, 0])
@pytest.mark.parametrize("other", ["complex64", "float32"])
def test_a_real_c_that_the_accumulators_do_not_hold(other, k, rng):
    a, b = random_matrix(rng, dtype_named("complex64"), (37, k)), random_matrix(rng, dtype_named(other), (k, 24))
    c = random_matrix(rng, dtype_named("float64"), (37, 24))
    d = poisoned(dtype_named("complex128"), (37, 24))
    gm.gemm.plan(a, b, c, alpha=0.5j, beta=2, out=d, executor="vgpu", chip="h200").execute()
    assert_product(d, a.astype("complex128"), b.astype("complex128"), c, 0.5j, 2)


@pytest.mark.parametrize(
    ("types", "c_type", "kernel", "form"),
    [
        (("bfloat16",) * 3, "float32", "hopper_gemm", "it is an input of the epilogue"),
        (("float16",) * 3, "bfloat16", "hopper_gemm", "it is an input of the epilogue"),
        (("float8_e4m3fn", "float8_e4m3fn", "bfloat16"), "float32", "hopper_gemm", "it is an input"),
        (("float32",) * 3, "float16", "simt_gemm", "it is an input of the epilogue"),
        (("float64",) * 3, "float32", "float64_gemm", "it is copied into the result first"),
        (("complex64",) * 3, "float32", "complex64_gemm", "it is copied into the result first"),
        (("complex128",) * 3, "complex64", "complex128_gemm", "it is copied into the result first"),
        (("int8", "int8", "int32"), "int8", "hopper_gemm", "it is copied into the result first"),
    ],
    ids=str,
)
def test_plans_say_how_c_is_read(types, c_type, kernel, form):
    def made(name, *shape):
        return np.zeros(shape, dtype_named(name).numpy())

    a, b, d = (made(name, 2048, 2048) for name in types)
    plan = gm.gemm.plan(a, b.T, made(c_type, 2048, 2048), beta=1, out=d, chip="h200")
    assert plan.kernel.startswith(kernel)
    assert f"rewritten: c is {c_type}, the result {types[2]}; {form}" in str(plan)
    assert "reference kernel" not in str(plan)
    turned = gm.gemm.plan(a, b.T, made(types[2], 2048, 2048).T, beta=1, out=d, chip="h200")
    assert turned.kernel.startswith(kernel)
    assert f"rewritten: c has another layout than the result; {form}" in str(turned)
    plain = gm.gemm.plan(a, b.T, made(types[2], 2048, 2048), beta=1, out=d, chip="h200")
    assert not plain.rewrite
    assert turned.predicted_us < 2 * plain.predicted_us


def test_c_of_another_type_and_order_beside_a_result_of_any_alignment(rng):
    # Rows of 37 elements of 2 bytes are none that TMA stores.
    a, b = (whole_numbers(rng, "bfloat16", shape) for shape in ((70, 41), (41, 37)))
    c, bias = whole_numbers(rng, "float32", (37, 70)).T, whole_numbers(rng, "bfloat16", (37,))
    out = np.full((70, 37), np.nan, a.dtype)
    plan = gm.gemm.plan(
        a, b, c, beta=2, bias=bias, epilogue="relu", out=out, executor="vgpu", kernel="hopper_gemm_repacked"
    )
    assert "c is float32, the result bfloat16; it is an input of the epilogue" in str(plan)
    plan.execute()
    exact = a.astype(float) @ b.astype(float) + 2 * c + bias.astype(float)
    np.testing.assert_array_equal(out, np.maximum(exact, 0).astype(a.dtype))


@pytest.mark.parametrize(("dtype", "kernel"), [("bfloat16", "hopper_gemm"), ("float64", "float64_gemm")])
def test_results_of_any_strides_are_written_of_sums(dtype, kernel, rng):
    a, b = (whole_numbers(rng, dtype, shape) for shape in ((40, 64), (64, 48)))
    out = np.full((2, 48, 80), np.nan, a.dtype)
    plan = gm.gemm.plan(a, b, out=out[0, :, ::2].T, executor="vgpu", kernel=kernel)
    assert "no kernel takes this result faster as it is; the result is computed from accumulators" in plan.rewrite
    plan.execute()
    np.testing.assert_array_equal(out[0, :, ::2].T, a.astype(float) @ b.astype(float))
    assert np.isnan(out[1].astype(float)).all()
    assert np.isnan(out[0, :, 1::2].astype(float)).all()


def test_plans_say_why_the_reference_kernel_runs():
    x = np.zeros((512, 512), np.int32)
    out = np.zeros((256, 512), x.dtype)[:, ::2]
    assert gm.gemm.plan(x[::2], x[:, :256], out=out, chip="h200").kernel == "simt_gemm"
    plan = gm.gemm.plan(x[::2], x[:, :256], out=out, chip="h200", kernel="gemm_reference")
    assert "reference kernel: kernel= names it" in str(plan)


@pytest.mark.parametrize("name", ["float32", "float64", pytest.param("complex64", marks=pytest.mark.slow)])
def test_c_in_the_memory_of_the_result(name, rng):
    x, out = whole_numbers(rng, name, (40, 40)), whole_numbers(rng, name, (40, 40))
    expected = x @ x + 2 * out
    with pytest.raises(gm.OverlapError, match="out shares memory with c; pass another array as out, or a copy of c"):
        gm.gemm.plan(x, x, out.T, beta=2, out=out, executor="vgpu")
    # Element for element it may be the result, in any layout: here in reversed rows.
    rows = out[::-1]
    gm.gemm.plan(x[::-1], x, rows, beta=2, out=rows, executor="vgpu").execute()
    np.testing.assert_array_equal(out, expected)
