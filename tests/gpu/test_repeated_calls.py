"""Products that were computed before: what is kept of them must never be taken for another product."""

from __future__ import annotations

import numpy as np
import pytest

import gemmule as gm
from gemmule.api.calls.call_cache import CALLS
from gemmule.core.errors import ArgumentError, OverlapError, ShapeError
from support.fakes import planners
from support.gpu.repeated_products import arrays, planned, poisoned
from support.gpu.torch_arrays import to_numpy
from support.oracle import assert_product

__all__ = ["arrays", "planned"]

DTYPES = ["float64", "float32", "bfloat16", "float16", "int8"]


@pytest.mark.parametrize("shape", [(64, 48, 32), (131, 77, 99), (7, 300, 1)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_other_arrays_of_the_same_kind(torch, arrays, planned, dtype, shape):
    m, n, k = shape
    planned.clear()
    for _ in range(4):
        (a, b), (da, db) = arrays(dtype, (m, k), (k, n))
        out = poisoned(torch, (m, n), dtype)
        assert gm.matmul(da, db, out=out) is out
        assert_product(to_numpy(torch, out), a, b)
        new = gm.matmul(da, db)
        assert_product(to_numpy(torch, new), a, b)
        assert (new.shape, new.dtype, new.is_contiguous()) == (out.shape, out.dtype, True)
    # arrays() multiplies nothing: one with out is planned, and one without.
    assert len(planned) == 2, planned


@pytest.mark.parametrize("shape", [(64, 48, 32), (131, 77, 99)], ids=str)
def test_the_very_same_arrays_again(torch, arrays, planned, shape):
    """Repeated with the same tensors they are found by themselves; changed in place, they are what they are now."""
    m, n, k = shape
    (a, b), (da, db) = arrays("bfloat16", (m, k), (k, n))
    out = poisoned(torch, (m, n), "bfloat16")
    before = recent_calls()
    for _ in range(6):
        gm.matmul(da, db, out=out)
        gm.matmul(da, db)
    assert recent_calls() > before, "the tensors were not found by themselves"
    (a, b), (other_a, other_b) = arrays("bfloat16", (m, k), (k, n))
    # The tensors stay, and what they are of does not.
    da.data, db.data = other_a, other_b
    assert_product(to_numpy(torch, gm.matmul(da, db, out=out)), a, b)
    assert_product(to_numpy(torch, gm.matmul(da, db)), a, b)
    da.resize_(m // 2, k)
    assert_product(to_numpy(torch, gm.matmul(da, db)), a[: m // 2], b)
    (a, b), (wide_a, wide_b) = arrays("float32", (m, k), (k, n))
    da.data, db.data = wide_a, wide_b
    got = gm.matmul(da, db)
    assert got.dtype == torch.float32
    assert_product(to_numpy(torch, got), a, b)
    with pytest.raises(OverlapError):
        gm.matmul(da, db, out=da[:, :1].expand(m, n))
    square = arrays("bfloat16", (64, 64), (64, 64))[1]
    result = torch.empty_like(square[0])
    for _ in range(4):
        gm.matmul(*square, out=result)
    result.data = square[0]
    with pytest.raises(OverlapError, match="shares memory with a"):
        gm.matmul(*square, out=result)
    square[0].requires_grad_()
    with pytest.raises(ArgumentError, match="requires grad"):
        gm.matmul(*square)


def recent_calls():
    """How many tensors are found by themselves."""
    return len(CALLS.by_identity)


def test_everything_that_a_product_depends_on_makes_another(torch, arrays, planned):
    (a, b, c), (da, db, dc) = arrays("float32", (40, 40), (40, 40), (40, 40))
    out = torch.empty_like(da)
    planned.clear()

    def check(got, *operands):
        assert_product(to_numpy(torch, got), *operands)

    for _ in range(2):
        check(gm.matmul(da, db, out=out), a, b)
        check(gm.matmul(da.T, db, out=out), a.T, b)
        check(gm.matmul(da, db.T, out=out), a, b.T)
        check(gm.matmul(da[:30], db, out=out[:30]), a[:30], b)
        check(gm.matmul(da[:, :9], db[:9], out=out), a[:, :9], b[:9])
        check(gm.matmul(da, db, out=out.T), a, b)
        check(gm.gemm(da, db, alpha=2.0, out=out), a, b, None, 2.0)
        check(gm.gemm(da, db, alpha=-0.5, out=out), a, b, None, -0.5)
        check(gm.gemm(da, db, dc, beta=1.0, out=out), a, b, c, 1.0, 1.0)
        check(gm.gemm(da, db, dc, alpha=3.0, beta=-2.0), a, b, c, 3.0, -2.0)
        check(gm.gemm(da, db, dc.T, alpha=3.0, beta=-2.0), a, b, c.T, 3.0, -2.0)
        assert gm.matmul(da, db, out_dtype="float16").dtype == torch.float16
        assert gm.matmul(da.double(), db).dtype == torch.float64
        assert gm.matmul(da[0], db).shape == (40,)
        assert gm.matmul(da, db[:, 0]).shape == (40,)
    # Each of them once: the second time nothing was planned.
    assert len(planned) == 15


def test_alpha_zero_and_nan_are_not_taken_for_others(torch, arrays):
    _, (da, db) = arrays("float32", (16, 16), (16, 16))
    da[0, 0] = float("nan")
    for _ in range(2):
        assert torch.equal(gm.gemm(da, db, alpha=0.0), torch.zeros_like(da))
        assert gm.gemm(da, db, alpha=float("nan")).isnan().all()
        assert not gm.gemm(da, db, alpha=1.0)[1:].isnan().any()


def test_alignment_is_part_of_a_product(torch, arrays):
    values, (flat_a, flat_b) = arrays("bfloat16", (64 * 64 + 64,), (64 * 64 + 64,))
    for offset in (0, 1, 8, 3, 0, 4, 2, 0, 1):
        a, b = (x[offset : offset + 64 * 64].reshape(64, 64) for x in values)
        da, db = (x[offset : offset + 64 * 64].view(64, 64) for x in (flat_a, flat_b))
        for left, right, x, y in ((da, db, a, b), (da, flat_b[: 64 * 64].view(64, 64), a, values[1][: 64 * 64])):
            out = poisoned(torch, (64 * 64 + 64,), "bfloat16")
            got = gm.matmul(left, right, out=out[offset : offset + 64 * 64].view(64, 64))
            assert_product(to_numpy(torch, got), x, y.reshape(64, 64))
            rest = torch.cat([out[:offset], out[offset + 64 * 64 :]])
            assert (rest.view(torch.uint8) == 0x7F).all()


def test_memory_that_was_given_back_and_is_another_array_now(torch, arrays):
    torch.cuda.empty_cache()
    seen = {}
    for shape in [(64, 64, 64), (32, 128, 64), (128, 32, 32), (64, 64, 64), (16, 256, 128)] * 3:
        m, n, k = shape
        (a, b), (da, db) = arrays("bfloat16", (m, k), (k, n))
        seen.setdefault(da.data_ptr(), set()).add(shape)
        got = gm.matmul(da, db)
        assert_product(to_numpy(torch, got), a, b)
        del da, db, got
    assert any(len(shapes) > 1 for shapes in seen.values()), "the allocator gave no address twice: nothing was tested"


def test_refusals_on_the_warm_path(torch, arrays, planned):
    _, (da, db) = arrays("float32", (64, 64), (64, 64))
    out = torch.empty(64, 64, device="cuda")
    gm.matmul(da, db, out=out)
    planned.clear()
    gm.matmul(da, db, out=out)
    assert not planned
    for _ in range(2):
        with pytest.raises(OverlapError, match="shares memory with a"):
            gm.matmul(da, db, out=da)
        with pytest.raises(OverlapError, match="shares memory with b"):
            gm.matmul(da, db, out=db)
    both = torch.empty(3 * 64 * 64 - 64, device="cuda")
    front, middle, behind = (both[start : start + 64 * 64].view(64, 64) for start in (0, 64 * 63, 2 * 64 * 64 - 64))
    front.copy_(da)
    behind.copy_(db)
    with pytest.raises(OverlapError, match="shares memory with a"):
        gm.matmul(front, behind, out=middle)
    with pytest.raises(OverlapError, match="shares memory with b"):
        gm.matmul(behind, front, out=middle)
    with pytest.raises(OverlapError, match="elements of out"):
        gm.matmul(da, db, out=out[:1].expand(64, 64))
    with pytest.raises(ShapeError):
        gm.matmul(da, db, out=out[:63])
    with pytest.raises(ArgumentError, match="requires grad"):
        gm.matmul(da.clone().requires_grad_(), db, out=out)
    with pytest.raises(ArgumentError, match="host"):
        gm.matmul(da, db.cpu(), out=out)
    with pytest.raises(ArgumentError, match="executor"):
        gm.matmul(da, db, out=out, executor="cpu")
    torch.testing.assert_close(gm.matmul(torch._neg_view(da), db, out=out), -(da @ db), rtol=1e-4, atol=1e-4)
    with pytest.raises(ArgumentError, match="out is a lazily conjugated or negated view"):
        gm.matmul(da, db, out=torch._neg_view(out))
    with torch.no_grad():
        gm.matmul(torch.nn.Parameter(da), db, out=out)
    torch.testing.assert_close(out, da @ db, rtol=1e-4, atol=1e-4)


def test_interleaved_columns_are_no_overlap(torch, arrays):
    _, (db,) = arrays("float32", (32, 32))
    both = torch.randn(64, 64, device="cuda")
    for _ in range(3):
        got = gm.matmul(both[:, :32], db, out=both[:, 32:])
        torch.testing.assert_close(got, both[:, :32] @ db, rtol=1e-4, atol=1e-4)


def test_c_in_place(torch, arrays):
    (a, b, c), (da, db, dc) = arrays("float32", (50, 20), (20, 30), (50, 30))
    expected = c
    for _ in range(3):
        assert gm.gemm(da, db, dc, alpha=0.5, beta=1.0, out=dc) is dc
        expected = 0.5 * a.astype(np.float64) @ b + expected
    np.testing.assert_allclose(to_numpy(torch, dc), expected, atol=1e-3)
    storage = torch.zeros(51 * 30, device="cuda")
    with pytest.raises(OverlapError, match="shares memory with c"):
        gm.gemm(da, db, storage[: 50 * 30].view(50, 30), beta=1.0, out=storage[30:].view(50, 30))


def test_cupy(cupy, rng, planned):
    def arrays(shape):
        x = rng.standard_normal(shape).astype(np.float32)
        return x, cupy.asarray(x)

    for _ in range(3):
        (a, da), (b, db) = arrays((70, 33)), arrays((33, 50))
        out = cupy.full((70, 50), np.nan, np.float32)
        assert gm.matmul(da, db, out=out) is out
        assert_product(cupy.asnumpy(out), a, b)
        new = gm.matmul(da, db)
        assert isinstance(new, cupy.ndarray)
        assert_product(cupy.asnumpy(new), a, b)
        assert_product(cupy.asnumpy(gm.matmul(da[::-1], db)), a[::-1], b)
    assert len(planned) == 3
    with pytest.raises(OverlapError, match="shares memory with a"):
        gm.matmul(da[:33], da[:33].T, out=da[:33])
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        out = gm.matmul(da, db)
    stream.synchronize()
    assert_product(cupy.asnumpy(out), a, b)
    planned.clear()
    for _ in range(3):
        new = gm.matmul(da, db, stream=stream)
        gm.matmul(da, db, out=out, stream=stream)
        stream.synchronize()
        assert_product(cupy.asnumpy(out), a, b)
        assert_product(cupy.asnumpy(new), a, b)
        out.fill(np.nan)
        cupy.cuda.get_current_stream().synchronize()
    assert not planned


def test_what_is_kept_is_bounded(torch, arrays, monkeypatch):
    planners.limited(monkeypatch, MOST_CALLS=5)
    for m in range(1, 20):
        (a, b), (da, db) = arrays("float32", (m, 8), (8, 8))
        for _ in range(2):
            assert_product(to_numpy(torch, gm.matmul(da, db)), a, b)
        assert len(CALLS.by_description) <= 5
