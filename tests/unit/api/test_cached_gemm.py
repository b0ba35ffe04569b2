"""What queues a call of gemm that was made before, for callers that answer for their arrays themselves."""

from __future__ import annotations

import pytest

from gemmule.api.calls.dispatcher import cached_gemm
from support.fakes.tensors import OUT, A, B, FakeTensor, fake, gemm, matmul, state

__all__ = ["fake", "state"]

C, BIAS = FakeTensor(0x4000), FakeTensor(0x5000, (4,))


@pytest.mark.parametrize(
    "more",
    [{}, {"bias": BIAS}, {"c": C, "beta": 1.0}, {"c": OUT, "beta": 1.0, "out": OUT}, {"out": OUT, "bias": BIAS}],
)
def test_a_call_that_was_made_is_queued_at_other_addresses(state, more):
    assert cached_gemm(A, B, **more) is None
    gemm(A, B, **more)
    queue = cached_gemm(A, B, **more)
    assert queue is not None
    addresses = tuple(range(0x10000, 0x10000 + 0x1000 * (3 + len(more)), 0x1000))
    queue(addresses, 9)
    assert [one[1:] for one in state.queued] == [(addresses, 9)]
    assert len(state.planned) == 1


def test_what_was_not_called_is_not_found(state):
    gemm(A, B)
    other = FakeTensor(0x8000, (4, 8))
    for arrays, options in (
        ((A, other), {}),
        ((A, B), {"bias": BIAS}),
        ((A, B), {"out": OUT}),
        ((A, B), {"precision": "tf32"}),
        ((A, FakeTensor(0x9000, device=1)), {}),
        ((3, B), {}),
    ):
        assert cached_gemm(*arrays, **options) is None
    matmul(A, other)
    assert cached_gemm(A, other) is None
