"""gm.grouped_gemm on the host: scales, epilogues, and rows that name their matrices."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3
from support.grouped_products import expected, given, grouped_gemm


# A bias alone is what the other two begin with.
@pytest.mark.parametrize(
    ("executor", "epilogue"),
    [
        *(("cpu", epilogue) for epilogue in (None, "gelu", "swiglu")),
        *(("vgpu", epilogue) for epilogue in ("gelu", "swiglu")),
        pytest.param("vgpu", None, marks=pytest.mark.slow),
    ],
)
def test_an_epilogue_of_nothing_is_that_of_the_bias(executor, epilogue, rng):
    if executor == "vgpu":
        pytest.importorskip("cutlass", reason="the kernel compiler is not installed")
    a, b, ends = np.ones((9, 0), np.float16), np.ones((3, 0, 32), np.float16), np.array([2, 2, 7], np.int32)
    bias = rng.standard_normal((3, 32)).astype(np.float16)
    found = grouped_gemm(a, b, ends, bias=bias, epilogue=epilogue, executor=executor)
    zeros = np.zeros((9, 16), np.float16), np.zeros((3, 16, 32), np.float16)
    wanted = gm.grouped_gemm(*zeros, ends, bias=bias, epilogue=epilogue, executor="cpu")
    assert wanted[:7].any()
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=1e-3)


def float8(rng, *shape):
    return rng.integers(-4, 5, shape).astype(FLOAT8_E4M3.numpy())


# Without a bias the kernel itself has a quicker test, and so has the way to it here, on the host.
@pytest.mark.parametrize(
    ("executor", "biased"),
    [("cpu", False), ("cpu", True), ("vgpu", True), pytest.param("vgpu", False, marks=pytest.mark.slow)],
)
def test_scales_of_rows_and_columns_and_of_all(executor, biased, rng):
    if executor == "vgpu":
        pytest.importorskip("cutlass", reason="the kernel compiler is not installed")
    a, b = float8(rng, 24, 32), float8(rng, 3, 16, 32).swapaxes(1, 2)
    ends = np.array([5, 5, 20], np.int32)
    bias = rng.integers(-3, 4, (3, 16)).astype(np.float32) if biased else None
    rows, cols = (np.exp2(rng.integers(-2, 3, shape)).astype(np.float32) for shape in ((24, 1), (3, 1, 16)))
    for scale_a, scale_b in ((rows, cols), (rows[:1], cols[:, :, :1]), (np.float32([[2.0]]), np.float32([0.5]))):
        got = grouped_gemm(a, b, ends, scale_a=scale_a, scale_b=scale_b, bias=bias, executor=executor)
        wanted = expected("m", a.astype(np.float64) * scale_a, b.astype(np.float64) * scale_b, ends)
        for group, (start, end) in enumerate(itertools.pairwise((0, *ends.tolist()))):
            wanted[start:end] += 0 if bias is None else bias[group]
        assert got.dtype == BFLOAT16.numpy()
        np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(got.dtype).astype(np.float64))
    nothing = grouped_gemm(a[:, :0], b[:, :0], ends, scale_a=rows, scale_b=cols, bias=bias, executor=executor)
    assert nothing.any() == biased


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"scale_b": None}, gm.ArgumentError, "one of scale_a and scale_b is missing"),
        (
            {"scale_a": np.ones(24, np.float32)},
            gm.ShapeError,
            r"scale_a has shape \(24,\); give one .* \(24, 1\)",
        ),
        ({"scale_b": np.ones((3, 16), np.float32)}, gm.ShapeError, r"or \(3, 1, 16\), one for each column"),
        ({"scale_a": np.ones((24, 1))}, gm.DTypeError, "scale_a is float64; scales are float32"),
        ({"epilogue": "relu"}, gm.ArgumentError, "epilogue='relu' is none of scaled products"),
        ({"epilogue_args": {"x": 1}}, gm.ArgumentError, "is none of scaled products"),
        ({"precision": "ieee"}, gm.ArgumentError, "precision='ieee' is none of scaled products"),
        ({"a": np.ones((24, 32), np.float16)}, gm.DTypeError, "a is float16; scaled products take float8_e4m3fn"),
        ({"a": float8(np.random.default_rng(), 3, 24, 32)}, gm.ShapeError, "scales are for groups of rows"),
    ],
)
def test_scales_that_do_not_fit(change, error, message, rng):
    given = {"a": float8(rng, 24, 32), "b": float8(rng, 3, 32, 16), "scale_a": np.ones((24, 1), np.float32)}
    given |= {"scale_b": np.ones((3, 1, 16), np.float32)} | change
    with pytest.raises(error, match=message):
        gm.grouped_gemm(given.pop("a"), given.pop("b"), np.array([5, 5, 20], np.int32), **given)


def leaky(acc, slope, lift):
    return gm.epilogue.where(acc > 0, acc, slope * acc) + lift


@pytest.mark.parametrize(("executor", "dtype"), [("cpu", np.float64), ("vgpu", np.float32), ("vgpu", np.float16)])
def test_numbers_of_an_epilogue(executor, dtype, rng):
    if executor == "vgpu":
        pytest.importorskip("cutlass", reason="the kernel compiler is not installed")
    a, b = rng.integers(-3, 4, (37, 32)).astype(dtype), rng.integers(-3, 4, (3, 32, 24)).astype(dtype)
    ends = np.array([7, 7, 37], np.int32)
    for slope, lift in ((0.25, 2.0), (0.5, -1.0)):
        given = {"slope": slope, "lift": lift}
        got = grouped_gemm(a, b, ends, epilogue=leaky, epilogue_args=given, executor=executor)
        product = expected("m", a.astype(np.float64), b.astype(np.float64), ends)
        np.testing.assert_array_equal(got, np.where(product > 0, product, slope * product) + lift)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"epilogue_args": {"x": np.ones(4)}}, gm.ArgumentError, r"\['x'\] is of type ndarray; .* numbers"),
        ({"epilogue_args": {"x": [1]}}, gm.ArgumentError, r"epilogue_args\['x'\] is of type list; .* pass a number"),
        (
            {"epilogue_args": {"x": "1"}},
            gm.ArgumentError,
            r"epilogue_args\['x'\]='1' is not a real number; pass one, or",
        ),
        ({"epilogue_args": {"x": 1j}}, gm.ArgumentError, r"epilogue_args\['x'\]=1j is not a real number; pass one, or"),
        ({"epilogue_args": {"y": 1}}, gm.ArgumentError, "names y, of which the epilogue .* has no parameter"),
        ({"absmax": np.ones(1)}, TypeError, r"unexpected keyword argument 'absmax'; gemmule\.gemm takes it"),
    ],
)
def test_what_an_epilogue_of_groups_does_not_take(options, error, message, rng):
    with pytest.raises(error, match=message):
        gm.grouped_gemm(*given("m", rng), epilogue=lambda acc, x: acc * x, **options)


@pytest.mark.parametrize("executor", ["cpu", "vgpu"])
@pytest.mark.parametrize("epilogue", [None, "swiglu", "relu"])
def test_rows_that_name_their_matrices(executor, epilogue, rng):
    dtype = np.float32 if executor == "cpu" else BFLOAT16.numpy()
    a, b = (rng.integers(-4, 5, shape).astype(dtype) for shape in ((5, 16), (4, 32, 16)))
    # A matrix that no row names may hold anything.
    b[1], numbers = np.nan, np.array([2, 0, 2, 3, 0], np.int32)
    out = np.full((5, 16 if epilogue == "swiglu" else 32), np.nan, dtype)
    got = grouped_gemm(a, b.swapaxes(1, 2), matrices=numbers, epilogue=epilogue, executor=executor, out=out)
    one = {"epilogue": epilogue, "out_dtype": "float64"}
    for row, number in enumerate(numbers):
        wanted = gm.gemm(a[row : row + 1].astype(np.float64), b[number].T.astype(np.float64), **one)
        np.testing.assert_allclose(got[row : row + 1].astype(np.float64), wanted, rtol=2**-8, atol=1e-4)
    assert np.abs(got.astype(np.float64)).max() > 1


@pytest.mark.parametrize("executor", ["cpu", "vgpu"])
@pytest.mark.parametrize("groups", [0, 2])
def test_numbers_that_are_none_of_a_matrix(executor, groups):
    """The host sees them, when it plans and when it runs."""
    a, b, numbers = np.ones((3, 16), np.float16), np.ones((groups, 16, 8), np.float16), np.zeros(3, np.int32)
    plan = gm.grouped_gemm.plan(a, b, matrices=numbers, executor=executor) if groups else None
    for number in (groups, -1, 2**31 - 1, -(2**31)):
        numbers[2] = number
        row = 2 if groups else 0
        message = rf"^matrices\[{row}\] is {numbers[row]}; it must be at least 0 and below {groups}, the matrices of b"
        for call in (gm.grouped_gemm, gm.grouped_gemm.plan):
            with pytest.raises(gm.ArgumentError, match=message):
                call(a, b, matrices=numbers, executor=executor)
        if plan is not None:
            with pytest.raises(gm.ArgumentError, match=message):
                plan.execute()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"matrices": np.zeros(3, np.int64)}, gm.DTypeError, r"matrices is int64 .*matrices\.astype\(numpy\.int32\)"),
        ({"matrices": np.zeros(2, np.int32)}, gm.ShapeError, "matrices has 2 numbers and a 3 rows; give one for each"),
        ({"offsets": np.array([1, 3], np.int32)}, gm.ArgumentError, "matrices and offsets are given; .* leave out"),
        ({"bias": np.zeros((2, 8))}, gm.ArgumentError, "matrices and bias are given"),
        ({"a": np.zeros((2, 3, 4)), "b": np.zeros((4, 8))}, gm.ShapeError, "matrices are for rows, a of 2 and b of 3"),
    ],
)
def test_numbers_of_matrices_that_do_not_fit(change, error, message):
    given = {"a": np.zeros((3, 4)), "b": np.zeros((2, 4, 8)), "matrices": np.zeros(3, np.int32)} | change
    with pytest.raises(error, match=message):
        gm.grouped_gemm(given.pop("a"), given.pop("b"), **given)


@pytest.mark.parametrize("executor", ["cpu", "vgpu"])
def test_an_epilogue_of_rows_that_nothing_is_multiplied_with(executor):
    a, b, numbers = np.ones((3, 0), np.float16), np.ones((2, 0, 8), np.float16), np.array([1, 0, 1], np.int32)
    got = grouped_gemm(a, b, matrices=numbers, epilogue=lambda x: x + 1, executor=executor)
    np.testing.assert_array_equal(got, np.ones((3, 8), np.float16))


@pytest.mark.parametrize("executor", ["cpu", "vgpu"])
@pytest.mark.parametrize(("rows", "columns"), [(0, 16), (5, 0)])
def test_scales_of_results_without_elements(executor, rows, columns, rng):
    a, b = float8(rng, rows, 32), float8(rng, 2, columns, 32).swapaxes(1, 2)
    scales = {"scale_a": np.ones((rows, 1), np.float32), "scale_b": np.ones((2, 1, columns), np.float32)}
    ends = np.array([0, rows], np.int32)
    assert grouped_gemm(a, b, ends, **scales, executor=executor).shape == (rows, columns)


@pytest.mark.parametrize("executor", ["cpu", "vgpu"])
@pytest.mark.parametrize("biased", [False, True])
def test_nothing_is_scaled_without_k(executor, biased):
    """An infinite scale of a sum of nothing would make it NaN."""
    a, b, ends = float8(np.random.default_rng(), 5, 0), float8(np.random.default_rng(), 2, 16, 0), np.int32([2, 4])
    bias = np.full((2, 16), 3, np.float32) if biased else None
    scales = {"scale_a": np.full((5, 1), np.inf, np.float32), "scale_b": np.full((2, 1, 16), np.nan, np.float32)}
    got = grouped_gemm(a, b.swapaxes(1, 2), ends, **scales, bias=bias, executor=executor)
    wanted = np.full((5, 16), 3.0 if biased else 0.0)
    wanted[4:] = 0
    assert got.dtype == BFLOAT16.numpy()
    np.testing.assert_array_equal(got.astype(np.float64), wanted)


def test_float32_rows_with_numbers_are_sorted_by_the_caller(rng):
    a, b = np.zeros((3, 4), np.float32), np.zeros((2, 4, 8), np.float32)
    with pytest.raises(gm.UnsupportedError, match="sort them by these"):
        gm.grouped_gemm(a, b, matrices=np.zeros(3, np.int32), executor="vgpu")


@pytest.mark.parametrize("epilogue", [None, "relu", "swiglu", lambda acc: 2 * acc + 1])
@pytest.mark.parametrize("biased", [False, True])
def test_an_epilogue_of_each_group(epilogue, biased, rng):
    columns = 8 if epilogue == "swiglu" else 4
    a, b, ends = rng.standard_normal((9, 5)), rng.standard_normal((3, 5, columns)), np.array([2, 2, 7], np.int32)
    bias = rng.standard_normal((3, columns)) if biased else None
    got = gm.grouped_gemm(a, b, ends, bias=bias, epilogue=epilogue)
    wanted = np.zeros((9, 4))
    for group, (start, end) in enumerate(itertools.pairwise((0, *ends))):
        row = None if bias is None else bias[group]
        wanted[start:end] = gm.gemm(a[start:end], b[group], bias=row, epilogue=epilogue)
    np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("axis", "options", "message"),
    [
        ("m", {"bias": np.zeros((4, 4))}, r"bias has shape \(4, 4\); it must be \(3, 4\)"),
        ("m", {"bias": np.zeros((3, 4), np.int32)}, "bias is int32"),
        ("m", {"epilogue": "rely"}, "did you mean 'relu'"),
        ("n", {"epilogue": "relu"}, "is for groups of rows"),
        ("k", {"bias": np.zeros((3, 5))}, "is for groups of rows"),
    ],
)
def test_epilogues_that_do_not_fit(axis, options, message, rng):
    with pytest.raises(gm.GemmuleError, match=message) as caught:
        gm.grouped_gemm(*given(axis, rng), **options)
    assert "\n" not in str(caught.value)


def test_an_epilogue_of_a_batch_is_gemms(rng):
    with pytest.raises(gm.ArgumentError, match="use gemm"):
        gm.grouped_gemm(rng.standard_normal((3, 2, 4)), rng.standard_normal((3, 4, 5)), epilogue="relu")
