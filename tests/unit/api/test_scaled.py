"""gm.scaled_gemm and gm.quantize on the host: what scales are for, what is refused, and their plans."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import gemmule as gm
from support.scaled_products import FORMS, reference, scales_of

E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
ONE = np.ones(1, np.float32)


def operands(shape, rng):
    m, n, k = shape
    return rng.standard_normal((m, k)).astype(E4M3), rng.standard_normal((k, n)).astype(E5M2)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(33, 40, 272), (1, 7, 128), (130, 1, 5)], ids=str)
def test_every_form(form, shape, rng):
    a, b = operands(shape, rng)
    scales = scales_of(form, shape, rng)
    exact, size = reference(a, b, *scales)
    got = gm.scaled_gemm(a, b, *scales, out_dtype="float32")
    assert (np.abs(got - exact) <= (shape[2] + 6) * 2.0**-24 * size).all()


def test_bias_scale_of_the_result_and_absmax(rng):
    a, b = operands((9, 6, 130), rng)
    scales, bias, largest = scales_of("block", (9, 6, 130), rng), rng.standard_normal(6).astype(np.float32), ONE.copy()
    exact, size = reference(a, b, *scales)
    exact, size = 8 * (exact + bias), 8 * (size + np.abs(bias))
    got = gm.scaled_gemm(a, b, *scales, bias=bias, scale_result=8 * ONE, absmax=largest, out_dtype="float8_e4m3fn")
    error, wanted = (130 + 8) * 2.0**-24 * size, np.clip(exact, -448, 448)
    assert (np.abs(got.astype(np.float64) - wanted) <= error + 1.01 * 2.0**-4 * np.abs(wanted) + 2.0**-10).all()
    assert np.abs(largest[0] - np.abs(exact).max()) <= error.max()


@pytest.mark.parametrize("form", ["tensor", "row", "block"])
@pytest.mark.parametrize("shape", [(3, 4, 0), (0, 4, 128), (3, 0, 128)], ids=str)
def test_nothing_to_add_up(form, shape, rng):
    a, b = operands(shape, rng)
    out = np.full(shape[:2], np.nan, np.float32)
    assert gm.scaled_gemm(a, b, *scales_of(form, shape, rng), out=out) is out
    assert (out == 0).all()


@pytest.mark.parametrize("form", ["tensor", "row", "block"])
def test_scales_by_exponents(form, rng):
    a, b = operands((9, 6, 130), rng)
    scales = [x.astype(ml_dtypes.float8_e8m0fnu) for x in scales_of(form, (9, 6, 130), rng)]
    got, wanted = (gm.scaled_gemm(a, b, *x) for x in (scales, [x.astype(np.float32) for x in scales]))
    np.testing.assert_array_equal(got, wanted)


def test_plan(rng):
    a, b = operands((33, 40, 272), rng)
    plan = gm.scaled_gemm.plan(a, b, *scales_of("block", (33, 40, 272), rng), bias=np.ones(40, np.float32))
    assert plan.executor == "cpu"
    assert plan.epilogue == "acc + bias; scales by blocks of 1 x 128 and 128 x 128"
    assert plan.execute().dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"b": np.ones((270, 40), E4M3)}, gm.ShapeError, "a has 272 columns and b 270 rows"),
        ({"a": np.ones(272, E4M3)}, gm.ShapeError, "scaled products are of matrices"),
        ({"a": np.ones((33, 272), np.float32)}, gm.DTypeError, "a is float32; .* float8_e5m2; convert it with gemmule"),
        ({"a": np.ones((33, 272))}, gm.DTypeError, "a is float64; .* float8_e5m2; convert it to float32, and quantise"),
        (
            {"scale_a": np.ones(33, np.float32)},
            gm.ShapeError,
            r"scale_a has shape \(33,\); give one element, \(33, 1\) for each row of a, \(33, 3\) for blocks of 128 of "
            r"k, or \(1, 3\) for blocks of 128 x 128$",
        ),
        ({"scale_b": ONE.astype(np.float64)}, gm.DTypeError, "scale_b is float64; .* float8_e8m0fnu; convert"),
        ({"scale_a": 1.0}, gm.ArgumentError, "scale_a is of type float, not an array"),
        ({"scale_b": None}, gm.ArgumentError, "scale_b is of type NoneType, not an array"),
        ({"b": None, "scale_a": None, "scale_b": None}, gm.DTypeError, "b is NoneType"),
    ],
)
def test_errors(change, error, text, rng):
    a, b = operands((33, 40, 272), rng)
    given = {"a": a, "b": b, "scale_a": ONE, "scale_b": ONE} | change
    with pytest.raises(error, match=text):
        gm.scaled_gemm(*given.values())


@pytest.mark.parametrize(
    ("m", "wanted"),
    [(16, r"\(16, 1\) for each row of a, or \(1, 1\) for blocks of 128 x"), (1, r"or \(1, 1\) for each row of a$")],
)
def test_shapes_that_coincide_are_named_once(m, wanted, rng):
    a, b = operands((m, 24, 64), rng)
    with pytest.raises(gm.ShapeError, match=f"give one element, {wanted}"):
        gm.scaled_gemm(a, b, np.ones(16, np.float32), ONE)


def test_results_of_odd_rows_by_blocks(rng):
    a, b = operands((16, 41, 256), rng)
    scales = scales_of("block", (16, 41, 256), rng)
    text = r"^scales by blocks need rows .* 16 bytes; it has 41 of bfloat16, 82 bytes: give .* the result$"
    for order in "FC":
        with pytest.raises(gm.UnsupportedError, match=text):
            gm.scaled_gemm.plan(a, np.asarray(b, order=order), *scales, executor="vgpu")
    # The remedy of the message: 41 and 48 columns are of one block.
    padded = np.zeros((256, 48), E4M3)
    assert gm.scaled_gemm.plan(a, padded, *scales, executor="vgpu").kernel == "hopper_gemm_k_major"


def test_refusals_by_blocks_have_the_reason_of_the_kernel(rng):
    """The shape of the result is as the rule wants it here; its address is not."""
    a, b = operands((16, 48, 256), rng)
    scales = scales_of("block", (16, 48, 256), rng)
    late = np.zeros((16, 56), ml_dtypes.bfloat16)[:, 1:49]
    with pytest.raises(gm.UnsupportedError, match=r"hopper_gemm: D begins at a multiple of 2 bytes"):
        gm.scaled_gemm.plan(a, np.asfortranarray(b), *scales, out=late, chip="h100")


def test_operands_of_any_strides_by_blocks(rng):
    a, b = operands((16, 48, 256), rng)
    scales = scales_of("block", (16, 48, 256), rng)
    apart = np.repeat(a, 2, axis=1)[:, ::2]
    plan = gm.scaled_gemm.plan(apart, np.asfortranarray(b), *scales, executor="vgpu")
    assert plan.kernel == "hopper_gemm_repacked"
    exact, size = reference(a, b, *scales)
    bound = (256 + 6) * 2.0**-24 * size + 1.01 * 2.0**-8 * np.abs(exact)
    assert (np.abs(plan.execute().astype(np.float64) - exact) <= bound).all()


def test_scales_on_older_gpus(rng):
    a, b = operands((16, 48, 256), rng)
    for columns in (48, 41):
        with pytest.raises(gm.UnsupportedError, match=r"need a Hopper GPU, and this is none; .* columns") as refused:
            gm.scaled_gemm.plan(a, b[:, :columns], *scales_of("block", (16, columns, 256), rng), chip="rtx-4090")
        assert "pad" not in str(refused.value)
    rows = scales_of("row", (16, 48, 256), rng)
    assert gm.scaled_gemm.plan(a, b, *rows, chip="rtx-4090").kernel == "gemm_upcast"
    with pytest.raises(gm.UnsupportedError, match=r"8-bit floats need compute capability 8\.9 or newer, not sm_80"):
        gm.scaled_gemm.plan(a, b, *rows, chip="a100")


@pytest.mark.parametrize("by", ["tensor", "row", "block"])
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_quantize(by, dtype, rng):
    x = rng.standard_normal((5, 300)).astype(np.float32) * np.exp(4 * rng.standard_normal((5, 1))).astype(np.float32)
    x[3] = 0
    values, scales = gm.quantize(x, by=by, dtype=np.dtype(dtype).name)
    assert values.dtype == dtype
    info = ml_dtypes.finfo(dtype)
    whole = np.repeat(scales, 128, 1)[:, :300] if by == "block" else np.broadcast_to(scales, x.shape)
    error = np.abs(values.astype(np.float32) * whole - x)
    assert (error <= float(info.eps) / 1.99 * np.abs(x) + float(info.smallest_subnormal) / 1.99 * whole).all()
    # A part uses all of the range.
    largest = np.abs(values.astype(np.float32)).max(None if by == "tensor" else 1)
    assert (np.isin(largest, (0, float(info.max)))).all()
    exponents = gm.quantize(x, by=by, dtype=np.dtype(dtype).name, scale_dtype="float8_e8m0fnu")[1]
    ratio = exponents.astype(np.float32) / scales
    assert ((ratio >= 1) & (ratio < 2)).all()


@pytest.mark.parametrize("by", ["tensor", "row", "block"])
def test_a_stack_is_quantised_matrix_by_matrix(by, rng):
    x = rng.standard_normal((3, 4, 300)).astype(np.float32) * np.float32([[[1]], [[50]], [[0.01]]])
    # Contiguous, rows that are not evenly spaced, and columns first.
    for given in (x, np.pad(x, ((0, 0), (0, 3), (0, 0)))[:, :4], np.asfortranarray(x)):
        values, scales = gm.quantize(given, by=by)
        assert values.shape == x.shape
        for matrix, *found in zip(x, values, scales, strict=True):
            for got, wanted in zip(found, gm.quantize(matrix, by=by), strict=True):
                np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("shape", [(0, 4, 8), (2, 0, 8), (2, 4, 0)], ids=str)
@pytest.mark.parametrize("by", ["tensor", "row", "block"])
def test_empty_stacks(by, shape):
    values, scales = gm.quantize(np.zeros(shape, np.float32), by=by)
    assert values.shape == shape
    groups, rows, cols = shape
    assert scales.shape == {"tensor": (groups, 1, 1), "row": (groups, rows, 1), "block": (groups, rows, cols // 8)}[by]
    assert (scales == 2.0**-126).all()


def test_quantized_operands_are_multiplied(rng):
    x, w = rng.standard_normal((20, 300)).astype(np.float32), rng.standard_normal((30, 300)).astype(np.float32)
    for by in ("tensor", "row", "block"):
        (a, scale_a), (b, scale_b) = (gm.quantize(one, by=by) for one in (x, w))
        got = gm.scaled_gemm(a, b.T, scale_a, scale_b.T, out_dtype="float32")
        assert np.linalg.norm(got - x @ w.T) < 0.06 * np.linalg.norm(x @ w.T)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"by": np.array(["row", "row"])}, gm.ArgumentError, r"by=<ndarray of shape \(2,\)> is not known; choose"),
        ({"by": "column"}, gm.ArgumentError, "by='column' is not known"),
        ({"dtype": "int8"}, gm.DTypeError, "dtype=int8 is not an 8-bit float"),
        ({"scale_dtype": "float16"}, gm.DTypeError, "scale_dtype='float16' is not known"),
        (
            {"executor": "gpu"},
            gm.UnsupportedError,
            "cannot take this: (no NVIDIA GPU found|host arrays are quantised on the host)",
        ),
    ],
)
def test_quantize_errors(options, error, text):
    with pytest.raises(error, match=text):
        gm.quantize(np.ones((2, 2), np.float32), **options)
    with pytest.raises(gm.ShapeError, match="quantisation is of a matrix"):
        gm.quantize(np.ones(2, np.float32))
    with pytest.raises(gm.DTypeError, match="x is float64"):
        gm.quantize(np.ones((2, 2)))
