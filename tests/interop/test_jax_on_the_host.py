"""The public functions on JAX arrays in host memory."""

from __future__ import annotations

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.errors import ArgumentError

jax = pytest.importorskip("jax", reason="JAX is not installed")


@pytest.fixture(autouse=True)
def _on_the_host():
    with jax.default_device(jax.devices("cpu")[0]):
        yield


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_products_stay_in_the_library(dtype):
    a = jax.numpy.arange(12).reshape(3, 4).astype(dtype)
    got = gm.matmul(a, a.T)
    assert isinstance(got, jax.Array)
    assert got.dtype == a.dtype
    expected = np.asarray(a, dtype=np.float64) @ np.asarray(a, dtype=np.float64).T
    np.testing.assert_allclose(
        np.asarray(got, dtype=np.float64), expected.astype(np.int8) if dtype == "int8" else expected
    )
    assert gm.transpose(a).shape == (4, 3)


def test_refusals():
    a = jax.numpy.ones((3, 3))
    with pytest.raises(ArgumentError, match="traced"):
        jax.jit(gm.matmul)(a, a)
    with pytest.raises(ArgumentError, match="read-only"):
        gm.matmul(a, a, out=a + 1)
    for dtype in ("int4", "float8_e8m0fnu"):
        with pytest.raises(gm.DTypeError, match=f"^{dtype} is not multiplied; convert it with astype to a float or"):
            gm.matmul(a.astype(dtype), a.astype(dtype))
