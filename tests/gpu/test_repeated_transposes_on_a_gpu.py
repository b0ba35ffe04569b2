"""Transposes that were computed before: what is kept of them must never be taken for another transpose."""

from __future__ import annotations

import pytest

import gemmule as gm
from gemmule.api.calls.call_cache import CALLS
from gemmule.core.errors import ArgumentError, OverlapError, ShapeError
from support.fakes import planners


@pytest.fixture(autouse=True)
def planned(monkeypatch):
    """Forget what is known, and count the transposes that are planned."""
    return planners.counted(monkeypatch, "plan_transpose")


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "int8", "complex128"])
@pytest.mark.parametrize("shape", [(64, 64), (131, 77), (3, 50, 70)], ids=str)
def test_other_arrays_of_the_same_kind(torch, planned, dtype, shape):
    wanted = getattr(torch, dtype)
    for _ in range(4):
        x = torch.randint(-100, 100, shape, device="cuda").to(wanted)
        out = torch.full((*shape[:-2], shape[-1], shape[-2]), 77, device="cuda", dtype=wanted)
        assert gm.matrix_transpose(x, out=out) is out
        assert torch.equal(out, x.mT)
        assert torch.equal(gm.matrix_transpose(x), x.mT)
        assert torch.equal(gm.transpose(x), x.permute(*reversed(range(x.ndim))))
        assert torch.equal(gm.transpose(x.mT, (0, *range(1, x.ndim))), x.mT)
    assert len(planned) == 4


@pytest.mark.parametrize("shape", [(64, 64), (131, 77)], ids=str)
def test_the_very_same_arrays_again(torch, planned, shape):
    """Found by themselves; changed in place, they are what they are now."""
    x, out = torch.randn(shape, device="cuda"), torch.full(shape[::-1], float("nan"), device="cuda")
    for _ in range(5):
        x.normal_()
        gm.transpose(x, out=out)
        assert torch.equal(out, x.T)
        assert torch.equal(gm.matrix_transpose(x), x.T)
    assert len(CALLS.by_identity) == 2
    x.data = torch.randn(shape, device="cuda")
    gm.transpose(x, out=out)
    assert torch.equal(out, x.T)
    x.data = torch.randn(shape, device="cuda", dtype=torch.float64)
    assert torch.equal(gm.matrix_transpose(x), x.T)
    assert gm.matrix_transpose(x).dtype == torch.float64
    x.t_()
    assert torch.equal(gm.matrix_transpose(x), x.T)
    size, held = x.numel(), torch.randn(2 * x.numel(), device="cuda")
    x.data, out.data = held[:size].view(shape), held[:0].view(0, shape[0])
    with pytest.raises(ShapeError):
        gm.transpose(x, out=out)
    out.data = held[shape[0] : shape[0] + size].view(shape[::-1])
    with pytest.raises(OverlapError):
        gm.transpose(x, out=out)


def test_what_is_lazily_conjugated_or_negated_is_resolved(torch, planned):
    x = torch.randn(32, 48, device="cuda", dtype=torch.complex64)
    out = torch.empty(48, 32, device="cuda", dtype=torch.complex64)
    for _ in range(3):
        gm.transpose(x, out=out)
    assert torch.equal(gm.transpose(x.conj(), out=out), x.mH)
    with pytest.raises(ArgumentError, match="out is a lazily conjugated or negated view"):
        gm.transpose(x, out=torch.empty_like(out).conj())
    assert torch.equal(gm.transpose(x.mH), x.conj())
    real = torch.randn(32, 48, device="cuda")
    for _ in range(3):
        gm.transpose(real)
    assert torch.equal(gm.transpose(torch._neg_view(real)), -real.T)


def test_within_an_array_and_between_two(torch, planned):
    for _ in range(3):
        x = torch.randn(96, 96, device="cuda")
        before = x.clone()
        gm.transpose(x, out=x)
        assert torch.equal(x, before.T)
        # Another array in the same place.
        gm.transpose(x, out=x.view(96, 96))
        assert torch.equal(x, before)
        out = torch.full_like(x, float("nan"))
        gm.transpose(x, out=out)
        assert torch.equal(out, before.T)
        assert torch.equal(x, before)
    both = torch.randn(2 * 96 * 96, device="cuda")
    gm.transpose(both[: 96 * 96].view(96, 96), out=both[96 * 96 :].view(96, 96))
    with pytest.raises(OverlapError):
        gm.transpose(both[: 96 * 96].view(96, 96), out=both[96 : 96 * 97].view(96, 96))


def test_a_named_stream_and_a_captured_graph(torch, planned):
    x, out = torch.randn(128, 64, device="cuda"), torch.zeros(64, 128, device="cuda")
    gm.transpose(x, out=out)
    stream = torch.cuda.Stream()
    for _ in range(3):
        late = torch.zeros_like(x)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            late.copy_(x)
        gm.transpose(late, out=out, stream=stream)
        stream.synchronize()
        assert torch.equal(out, x.T)
    assert len(planned) == 1
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gm.transpose(x, out=out)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, x.T)


def test_cupy(cupy, rng, planned):
    for _ in range(3):
        x = rng.standard_normal((70, 33)).astype("f4")
        for of in (lambda x: x, lambda x: x[::-1], lambda x: x[:, 3:]):
            assert (cupy.asnumpy(gm.transpose(of(cupy.asarray(x)))) == of(x).T).all()
    assert len(planned) == 3
