"""The public functions on host arrays."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import gemmule as gm
from gemmule.core.errors import ArgumentError, DTypeError, OverlapError, ShapeError, UnsupportedError
from gemmule.runtime.device import device_count
from support.oracle import assert_product

F32 = np.float32


@pytest.fixture(autouse=True)
def _on_the_host(monkeypatch):
    monkeypatch.setenv("GEMMULE_EXECUTOR", "cpu")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((5,), (5,)),
        ((5,), (5, 7)),
        ((3, 5), (5,)),
        ((3, 5), (5, 7)),
        ((2, 1, 3, 5), (4, 5, 7)),
        ((4, 3, 5), (5,)),
        ((5,), (4, 5, 7)),
        ((0, 5), (5, 3)),
        ((3, 0), (0, 2)),
        ((0, 3, 5), (5, 2)),
        ((0,), (0,)),
    ],
    ids=str,
)
def test_shapes_of_the_array_api(first, second, rng):
    a, b = rng.standard_normal(first), rng.standard_normal(second)
    got = gm.matmul(a, b)
    assert isinstance(got, np.ndarray)
    assert got.shape == np.matmul(a, b).shape
    np.testing.assert_allclose(got, np.matmul(a, b), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("first", "second", "out"),
    [
        ("int8", "int8", "int8"),
        ("uint8", "int8", "int16"),
        ("float16", "float32", "float32"),
        ("float32", "float64", "float64"),
        ("int32", "int64", "int64"),
        ("float32", "complex64", "complex64"),
        ("bfloat16", "bfloat16", "bfloat16"),
        ("bfloat16", "float32", "float32"),
        ("float8_e4m3fn", "float8_e4m3fn", "float8_e4m3fn"),
    ],
)
def test_promotion(first, second, out):
    def ones(name):
        return np.ones((2, 2), getattr(ml_dtypes, name, name))

    assert gm.matmul(ones(first), ones(second)).dtype.name == out


def test_int8():
    a = np.full((4, 100), -128, np.int8)
    assert gm.matmul(a, a.T).dtype == np.int8
    np.testing.assert_array_equal(gm.gemm(a, a.T), np.full((4, 4), 1638400, np.int32))
    np.testing.assert_array_equal(gm.matmul(a, a.T, out_dtype="int32"), gm.gemm(a, a.T))


def test_wide_integer_outputs_are_exact():
    a = np.full((2, 140_000), -128, np.int8)
    for dtype in ("int64", "float64"):
        np.testing.assert_array_equal(gm.gemm(a, a.T, out_dtype=dtype), np.full((2, 2), 140_000 * 128**2))
    assert gm.gemm(a, a.T)[0, 0] == 140_000 * 128**2 - 2**32


@pytest.mark.parametrize("spelling", ["float32", np.float32, np.dtype("float32"), np.dtype(">f4")])
def test_out_dtype_spellings(spelling, rng):
    a = rng.standard_normal((4, 4)).astype(np.float16)
    assert gm.matmul(a, a, out_dtype=spelling).dtype == np.float32


def test_gemm_reads_only_what_it_must(rng):
    nan = np.full((5, 5), np.nan)
    a, c = rng.standard_normal((5, 5)), rng.standard_normal((5, 5))
    assert_product(gm.gemm(a.astype(F32), a.astype(F32), nan.astype(F32), beta=0), a.astype(F32), a.astype(F32))
    np.testing.assert_array_equal(gm.gemm(nan, nan, c, alpha=0.0, beta=1.0), c)
    out = c.copy()
    assert gm.gemm(a, a, out, alpha=2.0, beta=-1.0, out=out) is out
    np.testing.assert_allclose(out, 2 * (a @ a) - c)


def test_gemm_of_vectors_and_batches(rng):
    a, b, c = rng.standard_normal((2, 3, 5)), rng.standard_normal(5), rng.standard_normal((2, 3))
    np.testing.assert_allclose(gm.gemm(a, b, c, beta=3.0), a @ b + 3 * c)
    out = np.full((2, 3), np.nan)
    gm.gemm(a, b, c, beta=3.0, out=out)
    np.testing.assert_allclose(out, a @ b + 3 * c)


def test_transposes(rng):
    x = rng.standard_normal((2, 3, 5)).astype(">f4")
    assert gm.transpose(x).flags.c_contiguous
    np.testing.assert_array_equal(gm.transpose(x), x.T)
    np.testing.assert_array_equal(gm.transpose(x, (1, -1, 0)), x.transpose(1, 2, 0))
    np.testing.assert_array_equal(gm.matrix_transpose(x), x.swapaxes(1, 2))
    out = np.zeros((2, 5, 3), np.float32)
    assert gm.matrix_transpose(x.astype(F32), out=out) is out
    np.testing.assert_array_equal(out, x.swapaxes(1, 2))


def test_plan():
    a = np.ones((3, 4), F32)
    plan = gm.matmul.plan(a, a.T)
    assert (plan.executor, plan.operation, plan.flop, plan.bytes_min) == ("cpu", "matmul", 72, 132)
    assert "matmul: blas on" in str(plan)
    np.testing.assert_array_equal(plan.execute(), a @ a.T)
    assert gm.gemm.plan(a, a.T, alpha=2.0).execute()[0, 0] == 8
    assert gm.matrix_transpose.plan(a).execute().shape == (4, 3)
    assert gm.transpose.plan(a, (0, 1)).execute().shape == (3, 4)


def eye(dtype=F32):
    return np.eye(3, dtype=dtype)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: gm.matmul(eye(), np.ones((4, 3), F32)), ShapeError, r"3 columns.*4 rows"),
        (lambda: gm.matmul(np.float32(3).reshape(()), eye()), ShapeError, "at least one dimension"),
        (lambda: gm.matmul(np.ones((2, 3, 3)), np.ones((4, 3, 3))), ShapeError, "broadcast"),
        (lambda: gm.matmul(eye(), [[1, 2, 3]] * 3), ArgumentError, "b is of type list, not an array"),
        (lambda: gm.matmul(eye(), eye(), out=np.ones((3, 4), F32)), ShapeError, r"out has shape \(3, 4\)"),
        (
            lambda: gm.matmul(eye(), eye(), out=np.eye(3)[:, :1].repeat(3, 1), out_dtype="float32"),
            DTypeError,
            "differs",
        ),
        (lambda: gm.matmul(eye(), eye(), out_dtype="int8"), DTypeError, "int8"),
        (lambda: gm.matmul(eye(ml_dtypes.bfloat16), eye(ml_dtypes.bfloat16), out_dtype="int32"), DTypeError, "int32"),
        (lambda: gm.matmul(eye(complex), eye(complex), out_dtype="float64"), DTypeError, "complex"),
        (lambda: gm.matmul(eye(), eye(), out_dtype="float33"), DTypeError, "float33"),
        (lambda: gm.matmul(eye(np.int32), eye(ml_dtypes.bfloat16)), DTypeError, "no common type"),
        (lambda: gm.matmul(eye(), eye(), precision="fp4"), ArgumentError, "'ieee'"),
        (lambda: gm.matmul(eye(np.float64), eye(np.float64), precision="tf32"), DTypeError, "float32 products"),
        (lambda: gm.matmul(eye(), eye(), executor="tpu"), ArgumentError, "'tpu'"),
        (lambda: gm.matmul(eye(), eye(), stream=1), ArgumentError, "stream"),
        (lambda: gm.matmul(eye("U1"), eye()), DTypeError, "a is of dtype <U1, which gemmule does not take"),
        (lambda: gm.matmul(np.ma.masked_array(eye()), eye()), ArgumentError, "mask"),
        (lambda: gm.gemm(eye(), eye(), beta=1.0), ArgumentError, "pass c"),
        (lambda: gm.gemm(eye(), eye(), np.ones(3, F32), beta=1.0), ShapeError, "c has shape"),
        (lambda: gm.gemm(eye(np.int8), eye(np.int8), alpha=0.5), ArgumentError, r"alpha=0\.5"),
        (lambda: gm.gemm(eye(np.int8), eye(np.int8), alpha=float("nan")), ArgumentError, "alpha=nan"),
        (lambda: gm.gemm(eye(), eye(), alpha=1j), ArgumentError, "complex"),
        (lambda: gm.gemm(eye(), eye(), alpha="2"), ArgumentError, "alpha is of type str"),
        (lambda: gm.gemm(eye(), eye(), alpha=10**400), ArgumentError, "alpha does not fit"),
        (lambda: gm.matmul(None, eye()), ArgumentError, "a is of type NoneType, not an array"),
        (lambda: gm.transpose(None), ArgumentError, "x is of type NoneType, not an array"),
        (lambda: gm.matrix_transpose([[1, 2]]), ArgumentError, "x is of type list, not an array"),
        (lambda: gm.matrix_transpose.plan([[1, 2]]), ArgumentError, "x is of type list, not an array"),
        (lambda: gm.transpose(eye(), 1), ArgumentError, "sequence of integers"),
        (lambda: gm.transpose(eye(), (1.0, 0.0)), ArgumentError, "sequence of integers"),
        (lambda: gm.transpose(eye(), "ab"), ArgumentError, "sequence of integers"),
        (lambda: gm.matmul(eye(), eye(), out_dtype=object), DTypeError, "none that gemmule multiplies"),
        (
            lambda: gm.matmul(eye(), eye(), out_dtype="datetime64"),
            DTypeError,
            "none that gemmule multiplies",
        ),
        (lambda: gm.matmul(eye(), eye(), out_dtype="finfo"), DTypeError, "finfo"),
        (lambda: gm.transpose(eye(), (0, 0)), ArgumentError, "permutation"),
        (lambda: gm.transpose(eye(), (0, 5)), ArgumentError, "permutation"),
        (lambda: gm.transpose(eye(), out=np.ones((3, 3))), DTypeError, "keeps the dtype"),
        (lambda: gm.matrix_transpose(np.ones(3)), ShapeError, "at least 2"),
    ],
)
def test_bad_input_is_named_with_its_remedy(call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_outputs_that_overlap_are_refused():
    whole = np.ones((6, 6), F32)
    a = whole[:3, :3]
    with pytest.raises(OverlapError, match="out shares memory with a"):
        gm.matmul(a, eye(), out=a)
    with pytest.raises(OverlapError, match="out shares memory with b"):
        gm.matmul(eye(), a, out=whole[1:4, 1:4])
    gm.matmul(a, eye(), out=whole[:3, 3:])
    with pytest.raises(OverlapError, match="elements of out may"):
        gm.matmul(a, eye(), out=np.lib.stride_tricks.as_strided(np.ones(9, F32), (3, 3), (4, 4)))
    with pytest.raises(OverlapError, match="shares memory with c"):
        gm.gemm(eye(), eye(), whole[:3, :3], beta=1.0, out=whole[:3, :3].T)
    with pytest.raises(OverlapError, match="shares memory with x"):
        gm.transpose(a, out=whole[1:4, 1:4])
    given, axes = np.arange(27.0).reshape(3, 3, 3), (1, 2, 0)
    expected = given.transpose(axes).copy()
    assert gm.transpose(given, axes, out=given) is given
    np.testing.assert_array_equal(given, expected)
    frozen = eye()
    frozen.flags.writeable = False
    with pytest.raises(ArgumentError, match="read-only"):
        gm.matmul(eye(), eye(), out=frozen)
    np.testing.assert_array_equal(gm.matmul(frozen, frozen), eye())


@pytest.mark.parametrize("name", ["abacus", "host"])
def test_the_environment_names_the_executor(monkeypatch, name):
    monkeypatch.setenv("GEMMULE_EXECUTOR", name)
    remedy = "is not known; choose one of 'gpu', 'cpu', 'vgpu', or omit it$"
    with pytest.raises(ArgumentError, match=f"^GEMMULE_EXECUTOR='{name}' {remedy}"):
        gm.matmul(eye(), eye())
    with pytest.raises(ArgumentError, match=f"^executor='{name}' {remedy}"):
        gm.matmul(eye(), eye(), executor=name)


def test_libraries_known_by_the_standard_only(rng):
    strict = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
    a, b = rng.standard_normal((3, 4)), rng.standard_normal((4, 5))
    got = gm.matmul(strict.asarray(a), strict.asarray(b))
    assert type(got) is type(strict.asarray(a))
    np.testing.assert_allclose(np.from_dlpack(got), a @ b)
    np.testing.assert_array_equal(np.from_dlpack(gm.transpose(strict.asarray(a))), a.T)
    assert gm.matrix_transpose.plan(strict.asarray(a)).bytes_min == 2 * a.nbytes
    with pytest.raises(ArgumentError, match="array_api_strict"):
        gm.matmul(strict.asarray(a), strict.asarray(b), out_dtype="bfloat16")


class ElsewhereArray:
    """An array on a device that is neither host memory nor CUDA."""

    def __dlpack__(self, **options):
        raise AssertionError("not to be asked for")

    def __dlpack_device__(self):
        return (8, 0)


def test_other_devices_are_named():
    with pytest.raises(ArgumentError, match="type 8"):
        gm.matmul(ElsewhereArray(), ElsewhereArray())


def test_an_axis_of_one_may_have_any_stride():
    whole = np.ones((4, 5), F32)
    row = whole[::4][:1]
    gm.gemm(np.ones((1, 1), F32), np.ones((1, 5), F32), row, beta=1.0, out=whole[:1])
    np.testing.assert_array_equal(whole[0], np.full(5, 2, F32))


def test_small_host_products_do_not_start_the_driver(monkeypatch):
    monkeypatch.setenv("GEMMULE_EXECUTOR", "")
    monkeypatch.setattr("gemmule.api.planning.choice.device_count", lambda: pytest.fail("the driver was asked"))
    assert gm.matmul.plan(eye(), eye()).executor == "cpu"


@pytest.mark.skipif(device_count() > 0, reason="this machine has a GPU")
def test_a_gpu_that_is_not_there():
    with pytest.raises(UnsupportedError, match="NVIDIA GPU"):
        gm.matmul(eye(), eye(), executor="gpu")


def test_float16_by_bfloat16_gives_float32_as_in_jax_and_pytorch():
    a, b = (np.arange(1, 5, dtype=np.float64).reshape(2, 2).astype(one) for one in (np.float16, ml_dtypes.bfloat16))
    for given in ((a, b), (b, a)):
        found = gm.matmul(*given)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, [[7, 10], [15, 22]])


def test_an_absolute_maximum_is_of_sums_in_float32():
    a, b = np.ones((2, 2), np.int32), np.ones((2, 2), np.float32)
    with pytest.raises(DTypeError, match="int32 x float32 is computed in float64; take the maximum"):
        gm.gemm(a, b, absmax=np.zeros((), np.float32))
