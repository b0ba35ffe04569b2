"""Reductions at a barrier: every thread gets what all that arrived have contributed."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.vgpu import Options
from support.ptx.snippets import at, run

PREDICATE = "mov.u32 %r1, buffer;\nsetp.{test} %p1, %tid, 40;\n"
STORE = at("out", 4) + "st.global.b32 [%address], %r2;"


def out_of(instructions, threads=64, ctas=2, schedule="late"):
    out = np.full(threads * ctas, 99, np.uint32)
    body = PREDICATE.format(test="lt.u32") + instructions + STORE
    run(body, {"out": out}, threads, ctas, ".shared .b32 buffer[64];", Options(checks=True, schedule=schedule))
    return out.reshape(ctas, threads)


@pytest.mark.parametrize("schedule", ["late", "random"])
def test_a_count(schedule):
    assert (out_of("barrier.cta.red.popc.aligned.u32 %r2, 0, %p1;\n", schedule=schedule) == 40).all()
    assert (out_of("bar.red.popc.u32 %r2, 1, 64, !%p1;\n", schedule=schedule) == 24).all()


@pytest.mark.parametrize(("operation", "found"), [("and", 0), ("or", 1)])
def test_all_and_any(operation, found):
    body = f"bar.red.{operation}.pred %p2, 0, %p1;\nselp.u32 %r2, 1, 0, %p2;\n"
    assert (out_of(body) == found).all()
    assert (out_of(body, threads=32) == 1).all()


def test_one_barrier_after_another():
    body = "bar.red.popc.u32 %r3, 0, %p1;\nbar.red.popc.u32 %r2, 0, !%p1;\nmad.lo.u32 %r2, %r3, 100, %r2;\n"
    assert (out_of(body) == 4024).all()


def test_threads_are_ordered():
    body = "mad.lo.u32 %r3, %tid, 4, %r1;\nst.shared.b32 [%r3], %tid;\nbar.red.popc.u32 %r4, 0, %p1;\n"
    assert (out_of(body + "ld.shared.b32 %r2, [%r1+252];\n") == 63).all()
