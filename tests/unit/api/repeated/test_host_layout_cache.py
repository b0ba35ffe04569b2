"""Products of two host arrays alone: found by their layout."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import gemmule as gm
from gemmule.api import functions
from gemmule.api.calls.call_cache import CALLS
from gemmule.host.gemm import CheckedGemm
from support.fakes import planners
from support.host_layouts import LAYOUTS, Subclass, filled


@pytest.fixture(autouse=True)
def planned(monkeypatch):
    """Count the plans, with no call known."""
    yield planners.counted(monkeypatch)
    CALLS.forget()


def test_two_arrays_alone_are_found_by_their_layout(planned, monkeypatch):
    a, b = (np.arange(16.0).reshape(4, 4).astype("D") for _ in range(2))
    first = gm.matmul(a, b)
    assert len(CALLS.by_layout) == 1
    with monkeypatch.context() as patched:
        patched.setattr("gemmule.api.functions.product", None)
        assert np.array_equal(gm.matmul(b, a), first)
    # Whatever differs is found otherwise, or planned.
    single = a.astype("F"), b.astype("F")
    for others in (
        (a.T, b),
        single,
        (a, single[1]),
        (single[0], b),
        (a.view(Subclass), b),
        (LAYOUTS["unaligned"](a), b),
    ):
        assert np.array_equal(gm.matmul(*others), others[0] @ others[1])
    assert gm.matmul(a, b, out_dtype="complex64").dtype == np.complex64
    out = np.zeros((4, 4), "D")
    assert gm.matmul(a, b, out) is out
    monkeypatch.setenv("GEMMULE_EXECUTOR", "nowhere")
    with pytest.raises(gm.ArgumentError, match="GEMMULE_EXECUTOR='nowhere' is not known"):
        gm.matmul(a, b)


@pytest.mark.parametrize(
    "shapes", [((64, 64), (64, 64)), ((2, 9), (9, 5)), ((80, 2), (2, 80)), ((4, 200), (200, 4)), ((99, 3), (3, 64))]
)
@pytest.mark.parametrize("layout", ["rows", "columns", "strided", "reversed", "unaligned"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_small_matrices_need_no_plan(shapes, layout, dtype, planned, rng):
    a, b = (filled(shape, dtype, rng, layout) for shape in shapes)
    result = gm.matmul(a, b)
    assert not planned
    assert result.dtype == dtype
    assert result.flags.c_contiguous
    assert result.tobytes() == gm.matmul.plan(a, b).execute().tobytes()
    bound = 2 * a.shape[1] * np.finfo(dtype).eps * (np.abs(a).astype("g") @ np.abs(b).astype("g"))
    assert (np.abs(result - a.astype("g") @ b.astype("g")) <= bound).all()


def test_squares_of_the_side_that_is_compared_first_are_small():
    assert functions._is_small(*(functions._SIDE,) * 3)


def test_small_matrices_that_need_a_plan_have_one(planned, monkeypatch):
    a = np.arange(1.0, 17).reshape(4, 4)
    empty = gm.matmul(a[:, :0], a[:0])
    assert empty.shape == (4, 4)
    assert not empty.any()
    # BLAS leaves out a column that it multiplies by 0.
    assert np.isnan(gm.matmul(np.array([[np.inf], [1.0]]), np.zeros((1, 1)))[0, 0])
    assert np.array_equal(gm.matmul(a.view(Subclass), a), a @ a)
    assert np.array_equal(gm.matmul(a.astype(">f8"), a), a @ a)
    assert np.array_equal(gm.matmul(a, a.astype("f4")), a @ a)
    assert np.array_equal(gm.matmul(a[0], a), a[0] @ a)
    assert np.array_equal(gm.matmul(a[:1], a), a[:1] @ a)
    assert gm.matmul(a[:0], a).shape == (0, 4)
    assert len(planned) == 8
    with pytest.raises(gm.ShapeError, match="has 4 columns, b of shape"):
        gm.matmul(a, a[:3])
    monkeypatch.setenv("GEMMULE_EXECUTOR", "nowhere")
    with pytest.raises(gm.ArgumentError, match="GEMMULE_EXECUTOR='nowhere' is not known"):
        gm.matmul(a, a)


BATCHES = {
    "contiguous": (lambda a: a, True),
    "columns": (lambda a: np.ascontiguousarray(a.mT).mT, True),
    "every other": (lambda a: np.repeat(a, 2, axis=0)[::2], True),
    "backwards": (lambda a: a[::-1], False),
    "one again and again": (lambda a: np.broadcast_to(a[:1], a.shape), False),
    "broadcast": (lambda a: a[:1], False),
    "more dimensions": (lambda a: a.reshape(3, 2, 4, 4).swapaxes(0, 1), False),
}


@pytest.mark.parametrize(("way", "quick"), BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_batches_are_found_by_their_layout_where_numpy_makes_the_same(way, quick, dtype, rng):
    a, b = (rng.standard_normal((6, 4, 4)).astype(dtype) for _ in range(2))
    for factors in ((way(a), b), (b, way(a)), (way(a), way(b))):
        if factors[0].ndim != factors[1].ndim:
            factors = tuple(one.reshape(2, 3, 4, 4) if one.ndim == 3 else one for one in factors)
        CALLS.forget()
        first = gm.matmul(*factors)
        # Two of one matrix are one batch of as many.
        assert (len(CALLS.by_layout) == 1) is (quick or factors[0].shape == factors[1].shape == (1, 4, 4))
        for _ in range(2):
            again = gm.matmul(*factors)
            assert again.flags.c_contiguous
            assert again.tobytes() == first.tobytes()
        np.testing.assert_allclose(first, np.einsum("...ij,...jk->...ik", *factors), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("side", [4, 64, 128])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "longdouble"])
def test_no_warning_and_no_other_setting_of_what_is_not_finite(dtype, side):
    big, tiny = (np.full((side, side), limit, dtype) for limit in (np.finfo(dtype).max, np.finfo(dtype).tiny))
    with np.errstate(all="raise"):
        before = np.geterr()
        for _ in range(3):
            assert not np.isfinite(gm.matmul(big, big)).any()
            assert not np.isfinite(gm.matmul(np.stack([big, big]), big)).any()
            assert (gm.matmul(tiny, tiny) == 0).all()
        assert np.geterr() == before


def test_a_thread_multiplies_while_another_one_is_in_the_context_that_both_share(monkeypatch):
    a = np.full((4, 4), np.finfo("d").max, "D")
    gm.matmul(a, a)
    (key,) = CALLS.by_layout

    def nested(x, y):
        # As another thread's call would be: no warning, and no wait.
        monkeypatch.undo()
        return gm.matmul(x, y)

    monkeypatch.setitem(CALLS.by_layout, key, nested)
    with np.errstate(all="raise"):
        assert not np.isfinite(gm.matmul(a, a)).any()


def test_memory_that_runs_out_in_a_call_found_by_its_layout_is_told_as_by_the_plan(monkeypatch):
    a, b = (np.ones((4, 4), "D") for _ in range(2))
    gm.matmul(a, b)
    (key,) = CALLS.by_layout

    def short(*_, **__):
        raise MemoryError("Unable to allocate 8.00 EiB")

    monkeypatch.setitem(CALLS.by_layout, key, short)
    # What is freed until then is enough for the plan.
    assert np.array_equal(gm.matmul(a, b), a @ b)
    monkeypatch.setattr(CheckedGemm, "run", short)
    with pytest.raises(gm.HostMemoryError, match=r"result of shape \(4, 4\).*8.00 EiB"):
        gm.matmul(a, b)


def test_types_that_were_unpickled_are_found_by_their_layout(planned, monkeypatch):
    a = np.arange(16.0).reshape(4, 4).astype("D")
    b, c = pickle.loads(pickle.dumps(a)), pickle.loads(pickle.dumps(a))
    assert a.dtype is not b.dtype
    gm.matmul(a, a)
    monkeypatch.setattr("gemmule.api.functions.product", None)
    for pair in ((a, b), (b, a), (b, c)):
        assert np.array_equal(gm.matmul(*pair), a @ a)
