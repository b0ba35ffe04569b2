"""Products with an epilogue that were computed before: what is kept of them must never be taken for another product."""

from __future__ import annotations

import numpy as np
import pytest

import gemmule as gm
from gemmule.api.calls.call_cache import CALLS
from gemmule.core.errors import ArgumentError, OverlapError
from support.gpu.repeated_products import arrays, planned
from support.gpu.torch_arrays import to_numpy

__all__ = ["arrays", "planned"]


def silu(x):
    return x / (1 + np.exp(-x))


def close(torch, got, exact, dtype):
    unit = {"bfloat16": 2.0**-8, "float32": 2.0**-20}[dtype]
    np.testing.assert_allclose(
        to_numpy(torch, got).astype("f8"), exact, rtol=2 * unit, atol=1e-3 if unit < 2e-6 else 0.02
    )


@pytest.mark.parametrize("shape", [(64, 48, 32), (131, 77, 99)], ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_other_arrays_of_the_same_kind(torch, arrays, planned, dtype, shape):
    m, n, k = shape
    for _ in range(4):
        (a, b, bias, x), (da, db, dbias, dx) = arrays(dtype, (m, k), (k, n), (n,), (m, n))
        wide = a.astype("f8") @ b.astype("f8")
        out = torch.full((m, n), float("nan"), device="cuda", dtype=da.dtype)
        assert gm.gemm(da, db, bias=dbias, epilogue="relu", out=out) is out
        close(torch, out, np.maximum(wide + bias.astype("f8"), 0), dtype)
        close(torch, gm.gemm(da, db, epilogue="silu"), silu(wide), dtype)
        got = gm.gemm(da, db, epilogue=lambda acc, x, s: acc * s - x, epilogue_args={"x": dx, "s": 0.5})
        close(torch, got, wide * 0.5 - x.astype("f8"), dtype)
    assert len(planned) == 3


@pytest.mark.parametrize("storage", ["halves", "pairs"])
@pytest.mark.parametrize("n", [128, 90])
def test_gated_forms(torch, arrays, planned, storage, n):
    m, k = 70, 64
    for _ in range(3):
        (a, w, bias), (da, dw, dbias) = arrays("bfloat16", (m, k), (n, k), (n,))
        both = a.astype("f8") @ w.astype("f8").T + bias.astype("f8")
        gate, up = np.split(both, 2, 1) if storage == "halves" else (both[:, ::2], both[:, 1::2])
        got = gm.gemm(da, dw.T, bias=dbias, gated=storage, epilogue="swiglu")
        close(torch, got, silu(gate) * up, "bfloat16")
        second = gm.gemm(da, dw[: n // 2].T, gated=dw[n // 2 :].T, epilogue="reglu")
        plain = a.astype("f8") @ w.astype("f8").T
        close(torch, second, np.maximum(plain[:, : n // 2], 0) * plain[:, n // 2 :], "bfloat16")
    assert len(planned) == 2


def test_what_changes_between_calls(torch, arrays, planned):
    (a, b, c), (da, db, dc) = arrays("float32", (96, 64), (64, 80), (96, 80))
    wide = a.astype("f8") @ b.astype("f8")
    for factor in (1.0, 2.0, 1.0, -0.0):
        close(torch, gm.gemm(da, db, epilogue=lambda acc: acc + factor), wide + factor, "float32")  # noqa: B023
    assert len(planned) == 3
    expected = c.astype("f8")
    for _ in range(3):
        assert gm.gemm(da, db, dc, epilogue=lambda acc, c: acc + c, out=dc) is dc
        expected = wide + expected
        close(torch, dc, expected, "float32")
    with pytest.raises(OverlapError, match="shares memory with a"):
        gm.gemm(da[:64, :64], db[:, :64], epilogue="relu", out=da[:64, :64])
    out = torch.empty(96, 80, device="cuda")
    for _ in range(2):
        gm.gemm(da, db, epilogue="relu", out=out)
    with pytest.raises(ArgumentError, match="requires grad"):
        gm.gemm(da.clone().requires_grad_(), db, epilogue="relu", out=out)


def test_the_absolute_maximum_is_cleared_at_every_call(torch, arrays):
    (a, b), (da, db) = arrays("bfloat16", (64, 64), (64, 64))
    largest = torch.full((1,), float("nan"), device="cuda")
    wide = a.astype("f8") @ b.astype("f8")
    for factor in (4.0, 1.0, 0.25):
        gm.gemm(da, db, alpha=factor, epilogue="relu", absmax=largest)
        assert float(largest) == pytest.approx(factor * np.maximum(wide, 0).max(), rel=1e-3)


@pytest.mark.parametrize("given", [True, False], ids=["out", "no out"])
def test_calls_with_the_absolute_maximum_are_kept(torch, arrays, planned, given):
    for factor in (4.0, 1.0, 0.25, 2.0):
        (a, b, bias), (da, db, dbias) = arrays("bfloat16", (96, 64), (64, 80), (80,))
        da *= factor
        largest = torch.full((1,), float("nan"), device="cuda")
        out = torch.empty(96, 80, device="cuda", dtype=da.dtype) if given else None
        got = gm.gemm(da, db, bias=dbias, epilogue="relu", absmax=largest, out=out)
        exact = np.maximum(factor * a.astype("f8") @ b.astype("f8") + bias.astype("f8"), 0)
        close(torch, got, exact, "bfloat16")
        assert float(largest) == pytest.approx(exact.max(), rel=1e-3)
    assert len(planned) == 1
    wide = torch.randn(80, device="cuda")
    with pytest.raises(OverlapError, match="absmax shares memory with bias"):
        gm.gemm(da, db, bias=wide, epilogue="relu", absmax=wide[3:4], out=out)


def test_capture_in_a_graph(torch, arrays):
    (_, b, bias), (da, db, dbias) = arrays("bfloat16", (96, 96), (96, 96), (96,))
    out = torch.empty(96, 96, device="cuda", dtype=da.dtype)
    for _ in range(2):
        gm.gemm(da, db, bias=dbias, epilogue="relu", out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gm.gemm(da, db, bias=dbias, epilogue="relu", out=out)
    da.copy_(torch.randn_like(da))
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    wide = to_numpy(torch, da).astype("f8") @ b.astype("f8") + bias.astype("f8")
    close(torch, out, np.maximum(wide, 0), "bfloat16")


def test_cupy(cupy, rng, planned):
    for _ in range(3):
        a, b, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((70, 33), (33, 50), (50,)))
        got = gm.gemm(cupy.asarray(a), cupy.asarray(b), bias=cupy.asarray(bias), epilogue="silu")
        np.testing.assert_allclose(cupy.asnumpy(got), silu(a.astype("f8") @ b + bias), rtol=1e-4, atol=1e-4)
    assert len(planned) == 1


def test_the_very_same_arrays_again(torch, arrays, planned):
    """Repeated with the same tensors they are found by themselves; changed in place, they are what they are now."""
    (a, b, c, bias), (da, db, dc, dbias) = arrays("bfloat16", (96, 64), (64, 128), (96, 128), (128,))
    out = torch.full((96, 128), float("nan"), device="cuda", dtype=da.dtype)
    known = len(CALLS.by_identity)

    def both():
        found = gm.gemm(da, db, dc, beta=0.5, bias=dbias, epilogue="silu", out=out)
        assert found is out
        wide = a.astype("f8") @ b.astype("f8") + 0.5 * c.astype("f8") + bias.astype("f8")
        close(torch, out, silu(wide), "bfloat16")
        close(torch, gm.gemm(da, db, dc, beta=0.5, bias=dbias, epilogue="silu"), silu(wide), "bfloat16")
        close(
            torch,
            gm.gemm(da, db, alpha=0.5, bias=dbias),
            0.5 * a.astype("f8") @ b.astype("f8") + bias.astype("f8"),
            "bfloat16",
        )
        out.fill_(float("nan"))

    for _ in range(5):
        both()
    assert len(CALLS.by_identity) >= known + 3, "the tensors were not found by themselves"
    (a, b, c, bias), others = arrays("bfloat16", (96, 64), (64, 128), (96, 128), (128,))
    # The tensors stay, and what they are of does not.
    for tensor, other in zip((da, db, dc, dbias), others, strict=True):
        tensor.data = other
    for _ in range(3):
        both()
