"""CTAs that take turns by a lock, and messages that warps of one CTA take one after another."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.vgpu import CheckError, DeadlockError, Options
from support.ptx.hopper import SCHEDULES
from support.ptx.snippets import run

#: One thread of each CTA takes a lock, adds 1 to a word, and releases the lock.
LOCK = """
    setp.ne.u32 %p2, %lane, 0;
    @%p2 bra DONE;
AGAIN:
    {take}
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra AGAIN;
    {acquired}
    ld.global.b32 %r2, [%p_data];
    add.u32 %r2, %r2, 1;
    st.global.b32 [%p_data], %r2;
    {released}
    {leave}
DONE:
"""
LOCKED = {
    "take": "atom.global.cas.b32 %r1, [%p_flag], 0, 1;", "acquired": "membar.gl;", "released": "membar.gl;",
    "leave": "atom.global.exch.b32 %r3, [%p_flag], 0;",
}  # fmt: skip


def locked(lanes, schedule="late", **parts):
    """Run it; the word counts the CTAs."""
    arrays = {"data": np.zeros(1, np.uint32), "flag": np.zeros(1, np.uint32)}
    run(LOCK.format(**LOCKED | parts), arrays, 32, 5, options=Options(schedule, checks=True, batch_lanes=lanes))
    assert arrays["data"][0] == 5


@pytest.mark.parametrize("lanes", [16384, 32], ids=["together", "one after another"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"take": "atom.global.exch.b32 %r1, [%p_flag], 1;", "leave": "st.relaxed.gpu.global.b32 [%p_flag], 0;"},
        {"take": "atom.acquire.gpu.global.cas.b32 %r1, [%p_flag], 0, 1;", "acquired": "", "released": "",
         "leave": "st.release.gpu.global.b32 [%p_flag], 0;"},
    ],
)  # fmt: skip
def test_a_lock_orders(parts, schedule, lanes):
    locked(lanes, schedule, **parts)


@pytest.mark.parametrize("ctas", [1, 3])
def test_a_lock_that_is_taken_many_times(ctas):
    arrays = {"data": np.zeros(1, np.uint32), "flag": np.zeros(1, np.uint32)}
    again = LOCKED["leave"] + "\nadd.u32 %r4, %r4, 1;\nsetp.lt.u32 %p1, %r4, 150;\n@%p1 bra AGAIN;"
    run("mov.u32 %r4, 0;" + LOCK.format(**LOCKED | {"leave": again}), arrays, 32, ctas, options=Options(checks=True))
    assert arrays["data"][0] == 150 * ctas


#: CTAs 0 and 1 write a word each, and release a flag each. Warp 0 of CTA 2 acquires both flags, and then warp 1, which
#: waits for a word of warp 0 that orders nothing, one; it reads a word.
TWO_FLAGS = """
    setp.ne.u32 %p2, %lane, 0;
    @%p2 bra DONE;
    setp.eq.u32 %p1, %cta, 2;
    @%p1 bra READ;
    setp.ge.u32 %p1, %tid, 32;
    @%p1 bra DONE;
    mul.wide.u32 %offset, %cta, 4;
    add.u64 %address, %p_data, %offset;
    st.global.b32 [%address], 7;
    add.u64 %address, %p_flag, %offset;
    st.release.gpu.global.b32 [%address], 1;
    bra DONE;
READ:
    setp.ge.u32 %p1, %tid, 32;
    @%p1 bra ONE;
FIRST:
    ld.acquire.gpu.global.b32 %r1, [%p_flag];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra FIRST;
SECOND:
    ld.acquire.gpu.global.b32 %r1, [%p_flag+4];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra SECOND;
    st.relaxed.gpu.global.b32 [%p_flag+8], 1;
    bra DONE;
ONE:
    ld.relaxed.gpu.global.b32 %r1, [%p_flag+8];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra ONE;
    ld.acquire.gpu.global.b32 %r1, [%p_flag+4];
    ld.global.b32 %r2, [%p_data+{word}];
    st.global.b32 [%p_out], %r2;
DONE:
"""


@pytest.mark.parametrize(("word", "race"), [(4, False), (0, True)])
def test_a_message_brings_a_warp_no_other_that_its_neighbour_took(word, race):
    arrays = {"data": np.zeros(2, np.uint32), "flag": np.zeros(3, np.uint32), "out": np.zeros(1, np.uint32)}
    if race:
        with pytest.raises(CheckError, match="race"):
            run(TWO_FLAGS.format(word=word), arrays, 64, 3, options=Options(checks=True))
    else:
        run(TWO_FLAGS.format(word=word), arrays, 64, 3, options=Options(checks=True))
        assert arrays["out"][0] == 7


@pytest.mark.parametrize("lanes", [16384, 32], ids=["together", "one after another"])
@pytest.mark.parametrize("fence", ["acquired", "released"])
def test_a_lock_without_a_fence_is_a_race(fence, lanes):
    with pytest.raises(CheckError, match="race"):
        locked(lanes, **{fence: ""})


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("take", ["cas.b32 %r1, [%p_flag], 0, 1;", "exch.b32 %r1, [%p_flag], 1;"])
def test_a_lock_that_nobody_releases_is_a_deadlock(take, schedule):
    """Lanes that poll do not keep the others of their warp from running, in any schedule."""
    with pytest.raises(DeadlockError, match="a lock that none releases"):
        locked(16384, schedule, take=f"atom.global.{take}", leave="")
