"""A matrix to add that nobody would read is refused, also where the call is known."""

from __future__ import annotations

import gemmule as gm
from support.fakes.plans import plans
from support.fakes.tensors import A, B, FakeTensor, fake, guarded, state

__all__ = ["fake", "guarded", "plans", "state"]

C = FakeTensor(0x6000)


def test_a_call_that_is_known_with_beta_is_refused_without(state):
    for _ in range(3):
        gm.gemm(A, B, C, beta=0.0)
    planned = len(state.planned)
    gm.gemm(A, B, C)
    # The plan, which is a stand-in here, was asked: it refuses.
    assert len(state.planned) == planned + 1
    assert state.planned[-1][3]["beta"] is None


def test_a_known_call_whose_epilogue_names_c_needs_no_plan(state):
    for _ in range(3):
        gm.gemm(A, B, C, epilogue=lambda acc, c: acc + c)
    assert len(state.planned) == 1
