"""The virtual GPU as an executor of the public functions."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import numpy_dtype
from gemmule.core.errors import ArgumentError, DTypeError, OverlapError, UnsupportedError
from gemmule.dispatch.registry import REGISTRY
from support.oracle import assert_product

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")


@pytest.fixture(autouse=True)
def _checked(monkeypatch):
    monkeypatch.setenv("GEMMULE_VGPU_CHECKS", "1")


def test_matmul(rng):
    a, b = rng.standard_normal((3, 40, 33), np.float32), rng.standard_normal((33, 50), np.float32)
    plan = gm.matmul.plan(a, b, executor="vgpu")
    assert (plan.executor, plan.device, plan.reason) == ("vgpu", "virtual GPU (sm_90a)", "executor='vgpu' is set")
    assert plan.kernel in {spec.name for spec in REGISTRY}
    got = gm.matmul(a, b, executor="vgpu")
    assert_product(got, a, b)
    np.testing.assert_array_equal(got, plan.execute())


def test_the_kernel_of_an_h100(rng):
    a, b = rng.standard_normal((40, 33), np.float32), rng.standard_normal((33, 50), np.float32)
    plan = gm.matmul.plan(a, b, executor="vgpu", chip="h100")
    assert plan.kernel == "simt_gemm"
    assert_product(plan.execute(), a, b)


def test_a_batch_whose_factor_is_the_same_is_one_product(rng):
    a, b, c = (rng.standard_normal(shape, np.float32) for shape in ((2, 3, 5, 33), (33, 50), (2, 3, 5, 50)))
    rows = gm.gemm.plan(a, b, c, alpha=2.0, beta=-1.0, executor="vgpu")
    assert (rows.problem.m, rows.problem.batch) == (30, ())
    assert_product(rows.execute(), a, b, c, 2.0, -1.0)
    for bias, batch in (((50,), ()), ((5, 1), (2, 3)), ((), ())):
        added = rng.standard_normal(bias, np.float32)
        whole = np.broadcast_to(added, c.shape).copy()
        biased = gm.gemm.plan(a, b, bias=added, executor="vgpu")
        assert biased.problem.batch == batch
        assert_product(biased.execute(), a, b, whole, 1.0, 1.0)
    vectors = gm.matmul.plan(a[:, 0], b, executor="vgpu", out=np.full((2, 5, 60), np.nan, np.float32)[..., 4:54])
    assert vectors.problem.batch == (2,)  # the rows of A have others between two matrices
    assert_product(vectors.execute(), a[:, 0], b)
    vectors = gm.matmul.plan(a[0, :, 1:2], b, executor="vgpu")
    assert (vectors.problem.m, vectors.problem.batch) == (3, ())
    assert_product(vectors.execute(), a[0, :, 1:2], b)


def between_elements(x, offset=1):
    """Return the values of `x` at an address that is no multiple of an element's bytes."""
    y = np.full(x.nbytes + 8, 0xFF, np.uint8)[offset : offset + x.nbytes].view(x.dtype).reshape(x.shape)
    y[...] = x
    return y


def test_arrays_between_elements(rng):
    a, b = rng.integers(-4, 5, (20, 17)).astype("f4"), rng.integers(-4, 5, (17, 30)).astype("f4")
    out = between_elements(np.full((20, 30), np.nan, np.float32), 2)
    assert gm.matmul(between_elements(a), between_elements(b, 3), out=out, executor="vgpu") is out
    np.testing.assert_array_equal(out, a @ b)
    turned = between_elements(np.full((17, 20), np.nan, np.float32))
    gm.matrix_transpose(between_elements(a, 2), out=turned, executor="vgpu")
    np.testing.assert_array_equal(turned, a.T)


def test_a_plan_computes_what_the_arrays_hold_then(rng):
    a, b = rng.integers(-4, 5, (5, 7)).astype(">f4"), rng.integers(-4, 5, (7, 6)).astype("f4")
    product, transpose = gm.matmul.plan(a, b, executor="vgpu"), gm.matrix_transpose.plan(a, executor="vgpu")
    a += 1
    np.testing.assert_array_equal(product.execute(), a @ b)
    np.testing.assert_array_equal(transpose.execute(), a.T)


def test_gemm_writes_where_it_is_told(rng):
    a, b, c = (rng.standard_normal(shape, np.float32) for shape in ((40, 33), (33, 50), (40, 50)))
    out = np.full((40, 100), np.nan, np.float32)[:, ::2]
    assert gm.gemm(a, b, c, alpha=2.0, beta=-1.0, out=out, executor="vgpu") is out
    assert_product(out, a, b, c, 2.0, -1.0)
    in_place = c.copy()
    gm.gemm(a, b, in_place, alpha=2.0, beta=-1.0, out=in_place, executor="vgpu")
    np.testing.assert_array_equal(in_place, out)


# The kernels for these are compiled longest, and have tests of their own.
SLOW_INT8 = pytest.param("int8", marks=pytest.mark.slow)
SLOW_FLOAT16 = pytest.param("float16", marks=pytest.mark.slow)


@pytest.mark.parametrize("dtype", ["float64", SLOW_FLOAT16, "bfloat16", "float8_e4m3fn", SLOW_INT8, "int32"])
def test_types(rng, dtype):
    kind = numpy_dtype(dtype)
    a, b = (rng.integers(-4, 5, (24, 24)).astype(kind) for _ in range(2))
    assert_product(gm.matmul(a, b, executor="vgpu"), a, b)


def test_small_shapes():
    one = np.ones(4, np.int32)
    np.testing.assert_array_equal(gm.matmul(one, np.ones((4, 3), np.int32), executor="vgpu"), [4, 4, 4])
    none = [np.zeros(shape, np.int32) for shape in ((0, 5), (5, 3), (4, 0), (0, 3))]
    assert gm.matmul(*none[:2], executor="vgpu").shape == (0, 3)
    np.testing.assert_array_equal(gm.matmul(*none[2:], executor="vgpu"), np.zeros((4, 3)))


def test_arrays_that_kernels_cannot_read_in_place(rng):
    a = rng.standard_normal((20, 30)).astype(">f4")
    np.testing.assert_allclose(gm.matmul(a[::-1], a.T, executor="vgpu"), a[::-1] @ a.T, rtol=1e-4, atol=1e-4)
    out = np.zeros((30, 20), ">f4")
    assert gm.matrix_transpose(a, out=out, executor="vgpu") is out
    np.testing.assert_array_equal(out, a.T)


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32, np.complex128])
def test_transposes(rng, dtype):
    x = rng.integers(-100, 100, (5, 34, 9)).astype(dtype)
    np.testing.assert_array_equal(gm.transpose(x, executor="vgpu"), x.T)
    np.testing.assert_array_equal(gm.transpose(x, (1, 0, 2), executor="vgpu"), x.transpose(1, 0, 2))
    np.testing.assert_array_equal(gm.matrix_transpose(x[::-1], executor="vgpu"), x[::-1].swapaxes(1, 2))
    assert gm.matrix_transpose.plan(x, executor="vgpu").executor == "vgpu"


@pytest.mark.parametrize("dtype", [SLOW_INT8, SLOW_FLOAT16, np.float32, np.float64, np.complex128])
def test_square_matrices_are_transposed_within_their_memory(rng, dtype):
    for shape in [(65, 65), (3, 48, 48), (1, 1), (0, 0), (1, 1, 7)]:
        x = rng.integers(-100, 100, shape).astype(dtype)
        if x.shape[-1] == x.shape[-2]:
            before = x.copy()
            assert gm.matrix_transpose.plan(x, out=x, executor="vgpu").execute() is x
            np.testing.assert_array_equal(x, before.swapaxes(-1, -2))
        before = x.copy()
        # Axes that stay where they are.
        assert gm.transpose(x, tuple(range(x.ndim)), out=x, executor="vgpu") is x
        np.testing.assert_array_equal(x, before)
    x = rng.standard_normal((20, 4, 20)).astype(dtype)
    before = x.copy()
    gm.transpose(x, out=x, executor="vgpu")
    np.testing.assert_array_equal(x, before.T)
    assert gm.transpose.plan(x, (2, 1, 0), out=x, executor="vgpu").kernel == "transpose_in_place"


def test_what_cannot_be_permuted_in_place(rng):
    x = rng.standard_normal((8, 8, 8))
    before = x.copy()
    for array, axes in [(x, (1, 2, 0)), (x[::2, ::2, 0], (1, 0))]:
        with pytest.raises(OverlapError, match=r"out is x itself.*pass another array"):
            gm.transpose(array, axes, out=array, executor="vgpu")
    np.testing.assert_array_equal(x, before)


def test_the_environment_chooses_for_a_whole_program(rng, monkeypatch):
    monkeypatch.setenv("GEMMULE_EXECUTOR", "vgpu")
    a = rng.standard_normal((30, 30), np.float32)
    assert gm.matmul.plan(a, a).executor == "vgpu"
    assert gm.matrix_transpose.plan(a).executor == "vgpu"
    assert gm.matmul.plan(a, a, executor="cpu").executor == "cpu"
    assert_product(gm.matmul(a, a), a, a)
    np.testing.assert_array_equal(gm.transpose(a), a.T)


def test_the_architecture_can_be_chosen(rng, monkeypatch):
    monkeypatch.setenv("GEMMULE_VGPU_ARCH", "sm_80")
    a = rng.integers(-9, 10, (30, 30), np.int32)
    assert gm.matmul.plan(a, a, executor="vgpu").device == "virtual GPU (sm_80)"
    assert_product(gm.matmul(a, a, executor="vgpu"), a, a)
    monkeypatch.setenv("GEMMULE_VGPU_ARCH", "sm_12")
    with pytest.raises(ArgumentError, match="GEMMULE_VGPU_ARCH='sm_12'"):
        gm.matmul(a, a, executor="vgpu")


@pytest.mark.parametrize(
    ("name", "value"), [("CHECKS", "yes"), ("SCHEDULE", "never"), ("SEED", "-1"), ("MMA", "fast"), ("WORKERS", "many")]
)
def test_settings_that_are_not_known(monkeypatch, name, value):
    monkeypatch.setenv(f"GEMMULE_VGPU_{name}", value)
    with pytest.raises(ArgumentError, match=repr(value)):
        gm.matmul(np.eye(3), np.eye(3), executor="vgpu")


def test_what_has_no_kernel_is_an_error():
    with pytest.raises(DTypeError, match="uint64"):
        gm.matmul(np.eye(3, dtype=np.uint64), np.eye(3, dtype=np.uint64), executor="vgpu")
    with pytest.raises(UnsupportedError, match="executor='gpu'"):
        gm.transpose(np.eye(3), executor="gpu")


def test_large_products_in_tiles(tmp_path, rng):
    from click.testing import CliRunner

    from gemmule.cli import gemmule

    # A type whose kernel is compiled once for all tiles.
    a, b = (rng.integers(-9, 10, shape, np.int32) for shape in ((60, 50), (50, 40)))
    for name, array in (("a", a), ("b", b)):
        np.save(tmp_path / f"{name}.npy", array)
    paths = [str(tmp_path / f"{name}.npy") for name in "abc"]
    options = ["--executor", "vgpu", "--memory", "25kB", "--json"]
    result = CliRunner().invoke(gemmule, ["matmul", *paths[:2], "-o", paths[2], *options])
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["executor"] == "vgpu"
    assert record["tiles"] > 1
    assert_product(np.load(paths[2]), a, b)
