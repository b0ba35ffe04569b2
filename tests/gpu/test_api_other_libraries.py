"""The public functions on CuPy, JAX and NumPy arrays, with a GPU."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import DTYPES, dtype_named
from gemmule.core.errors import ArgumentError, UnsupportedError
from support.oracle import assert_product, poisoned, random_matrix


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8", "int32"])
def test_cupy(cupy, dtype, rng):
    a, b = (random_matrix(rng, dtype_named(dtype), (60, 60)) for _ in range(2))
    got = gm.matmul(cupy.asarray(a), cupy.asarray(b))
    assert isinstance(got, cupy.ndarray)
    assert_product(cupy.asnumpy(got), a, b)
    reverse = gm.matmul(cupy.asarray(a)[::-1, ::-1], cupy.asarray(b)[::-2].repeat(2, axis=0)[:60])
    assert_product(cupy.asnumpy(reverse), a[::-1, ::-1], b[::-2].repeat(2, axis=0)[:60])
    np.testing.assert_array_equal(cupy.asnumpy(gm.transpose(cupy.asarray(a)[:, ::-3])), a[:, ::-3].T)


def test_cupy_streams(cupy, rng):
    a, b = (rng.standard_normal((200, 200)).astype(np.float32) for _ in range(2))
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        got = gm.matmul(cupy.asarray(a), cupy.asarray(b))
        stream.synchronize()
        assert_product(cupy.asnumpy(got), a, b)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"])
def test_jax(jax, dtype, rng):
    a, b = random_matrix(rng, dtype_named(dtype), (61, 35)), random_matrix(rng, dtype_named(dtype), (35, 50))
    got = gm.matmul(jax.device_put(a), jax.device_put(b))
    assert isinstance(got, jax.Array)
    assert {device.platform for device in got.devices()} == {"gpu"}
    # The next operation of JAX sees the finished result.
    assert_product(np.asarray(jax.numpy.transpose(got)).T, a, b)
    for _ in range(20):
        chained = gm.matmul(jax.device_put(a), jax.device_put(b))
    np.testing.assert_array_equal(np.asarray(chained).view(np.uint8), np.asarray(got).view(np.uint8))


def test_jax_arrays_are_immutable(jax):
    a = jax.numpy.ones((4, 4))
    with pytest.raises(ArgumentError, match="read-only"):
        gm.matmul(a, a, out=jax.numpy.zeros((4, 4)))


def test_jax_arrays_in_host_memory_stay_there(jax, rng):
    host = jax.devices("cpu")[0]
    a, b = (rng.standard_normal((30, 30)).astype(np.float32) for _ in range(2))
    with jax.default_device(host):
        uncommitted = jax.numpy.asarray(a), jax.numpy.asarray(b)
    for x, y in ((jax.device_put(a, host), jax.device_put(b, host)), uncommitted):
        for _ in range(3):
            got = gm.matmul(x, y)
            assert got.devices() == gm.transpose(x).devices() == {host}
            assert_product(np.asarray(got), a, b)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numpy_through_the_gpu(dtype, rng):
    a, b = random_matrix(rng, dtype, (130, 77)), random_matrix(rng, dtype, (77, 90))
    out = poisoned(dtype, (130, 90))
    assert gm.matmul.plan(a, b, executor="gpu").executor == "gpu"
    assert gm.matmul(a, b, out=out, executor="gpu") is out
    assert_product(out, a, b)


def test_numpy_arrays_as_they_come(rng):
    """Big-endian, read-only, reversed, Fortran order, and an output of another byte order and order."""
    a = rng.standard_normal((3, 40, 50)).astype(">f4")
    b = np.asfortranarray(rng.standard_normal((50, 60)).astype(np.float32))[:, ::-2]
    a.flags.writeable = False
    got = gm.matmul(a, b, executor="gpu")
    assert_product(got, a.astype(np.float32), b)
    out = np.full((30, 40), np.nan, ">f4").T[None].repeat(3, axis=0)
    gm.matmul(a, b, out=out, executor="gpu")
    assert_product(out.astype(np.float32), a.astype(np.float32), b)


def test_numpy_alpha_beta_c(rng):
    a, b, c = (rng.standard_normal((2, 70, 70)).astype(np.float32) for _ in range(3))
    assert_product(gm.gemm(a, b, c, alpha=0.5, beta=-3.0, executor="gpu"), a, b, c, 0.5, -3.0)


def test_numpy_sums_of_several_slices(rng):
    """The tile executor adds slices on the device, and scales the sum once."""
    from gemmule.dispatch.select import choose
    from gemmule.runtime.tiles import GpuTileExecutor

    for name, alpha, beta in (("float32", 0.5, 2.0), ("float16", 0.5, 2.0), ("int8", 3, 2), ("float64", -1.0, 0.5)):
        dtype = dtype_named(name)
        a, b = random_matrix(rng, dtype, (50, 90)), random_matrix(rng, dtype, (90, 40))
        out_type = dtype_named("int32") if name == "int8" else dtype
        c, out = random_matrix(rng, out_type, (50, 40)), poisoned(out_type, (50, 40))
        with GpuTileExecutor(choose) as executor, executor.tile_sum(50, 40, a.dtype, b.dtype, out.dtype) as total:
            for k in range(0, 90, 30):
                total.add(a[:, k : k + 30], b[k : k + 30])
            total.finish(out, alpha, beta, c)
            assert_product(out, a, b, c, alpha, beta)


def test_what_the_gpu_cannot_take_goes_to_the_host_and_plan_says_so():
    a = np.ones((2100, 2100), np.int64)
    plan = gm.matmul.plan(a, a)
    assert plan.executor == "cpu"
    assert "int64" in plan.reason
    with pytest.raises(UnsupportedError, match="int64"):
        gm.matmul(a, a, executor="gpu")
    assert (
        gm.matmul.plan(np.ones((4096, 4096), ml_dtypes.bfloat16), np.ones((4096, 4096), ml_dtypes.bfloat16)).executor
        == "gpu"
    )
