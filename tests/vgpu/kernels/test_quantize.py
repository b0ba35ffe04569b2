"""Quantisation on the virtual GPU: bit by bit as on the host."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import gemmule as gm

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

E4M3, E5M2, E8M0 = "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"


@pytest.mark.parametrize(
    ("by", "dtype", "scale_dtype", "kind", "shape"),
    [
        ("block", E4M3, "float32", "bfloat16", (19, 656)),
        ("row", E4M3, "float32", "bfloat16", (3, 1032)),
        ("tensor", E4M3, "float32", "bfloat16", (19, 656)),
        ("block", E5M2, E8M0, "float32", (5, 131)),
        pytest.param("row", E5M2, E8M0, "float32", (5, 131), marks=pytest.mark.slow),
        pytest.param("tensor", E5M2, E8M0, "float16", (5, 131), marks=pytest.mark.slow),
        pytest.param("row", E4M3, "float32", "float32", (2, 33000), marks=pytest.mark.slow),
    ],
)
def test_as_on_the_host(by, dtype, scale_dtype, kind, shape, rng, monkeypatch):
    monkeypatch.setenv("GEMMULE_VGPU_CHECKS", "1")
    x = rng.standard_normal(shape) * np.exp(8 * rng.standard_normal((shape[0], 1)))
    x[1], x[-1, 0] = 0, np.nan if by != "tensor" else 1
    x = x.astype(getattr(ml_dtypes, kind) if kind == "bfloat16" else kind)
    host, virtual = (
        gm.quantize(x, by=by, dtype=dtype, scale_dtype=scale_dtype, executor=executor) for executor in ("cpu", "vgpu")
    )
    known = ~np.isnan(host[0].astype(np.float32))
    np.testing.assert_array_equal(host[0].astype(np.float32), virtual[0].astype(np.float32))
    np.testing.assert_array_equal(host[0].view(np.uint8)[known], virtual[0].view(np.uint8)[known])
    np.testing.assert_array_equal(host[1].astype(np.float32), virtual[1].astype(np.float32))


@pytest.mark.parametrize("by", ["block", "row", "tensor"])
def test_stacks(by, rng, monkeypatch):
    """Contiguous ones are one matrix for rows and blocks; others, and the maxima, are of each matrix."""
    monkeypatch.setenv("GEMMULE_VGPU_CHECKS", "1")
    x = (rng.standard_normal((3, 4, 656)) * [[[1]], [[50]], [[0.01]]]).astype(ml_dtypes.bfloat16)
    for given in (x, np.pad(x, ((0, 0), (0, 1), (0, 0)))[:, :4]):
        host, virtual = (gm.quantize(given, by=by, executor=executor) for executor in ("cpu", "vgpu"))
        for wanted, got in zip(host, virtual, strict=True):
            np.testing.assert_array_equal(wanted.astype(np.float32), got.astype(np.float32))


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (2, 0, 8), (0, 3, 8)], ids=str)
@pytest.mark.parametrize("by", ["block", "row", "tensor"])
def test_nothing_to_quantise(by, shape):
    """A part without elements has the smallest scale."""
    values, scales = gm.quantize(np.zeros(shape, ml_dtypes.bfloat16), by=by, executor="vgpu")
    assert values.shape == shape
    assert (scales == 2.0**-126).all()


@pytest.mark.combinations(2, once=["scale_dtype"])
@pytest.mark.parametrize("executor", ["cpu", "vgpu"])
@pytest.mark.parametrize("scale_dtype", ["float32", E8M0])
@pytest.mark.parametrize("by", ["block", "row", "tensor"])
def test_what_shares_a_scale_with_infinity_or_nan_is_nan(by, scale_dtype, executor):
    """Not a small number of either sign, nor zero."""
    for found in (np.nan, np.inf, -np.inf):
        x = np.ones((3, 16), np.float32)
        x[0, 3] = found
        values, scales = gm.quantize(x, by=by, scale_dtype=scale_dtype, executor=executor)
        assert not np.isfinite(scales[0].astype(np.float32)).any()
        with np.errstate(invalid="ignore"):
            product = values.astype(np.float32) * scales.astype(np.float32)
        assert np.isnan(product[0]).all()
        assert np.isnan(product[1:]).all() if by == "tensor" else (np.abs(product[1:] - 1) < 0.1).all()
