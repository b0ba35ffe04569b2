"""Branches, loops, divergence, barriers, deadlocks."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.vgpu import CheckError, DeadlockError, FaultError, Options
from support.ptx.snippets import at, exchange, run


def out_of(body, threads=64, ctas=1, shared="", options=None):
    """Run a body that leaves its result in %r2."""
    out = np.zeros(threads * ctas, np.uint32)
    run(body + at("out", 4) + "st.global.b32 [%address], %r2;", {"out": out}, threads, ctas, shared, options)
    return out


def collatz(value):
    steps = 0
    while value != 1:
        value = value // 2 if value % 2 == 0 else 3 * value + 1
        steps += 1
    return steps


@pytest.mark.parametrize("schedule", ["late", "random"])
def test_loops_of_different_lengths(schedule):
    body = """add.u32 %r1, %index, 1;
    mov.u32 %r2, 0;
LOOP:
    setp.eq.u32 %p1, %r1, 1;
    @%p1 bra DONE;
    add.u32 %r2, %r2, 1;
    and.b32 %r3, %r1, 1;
    setp.eq.u32 %p2, %r3, 0;
    @%p2 bra EVEN;
    mad.lo.u32 %r1, %r1, 3, 1;
    bra.uni LOOP;
EVEN:
    shr.u32 %r1, %r1, 1;
    bra LOOP;
DONE:
"""
    got = out_of(body, 96, 3, options=Options(schedule=schedule, checks=True))
    np.testing.assert_array_equal(got, [collatz(i + 1) for i in range(288)])


def test_nested_branches_join_again():
    body = """mov.u32 %r2, 0;
    and.b32 %r3, %index, 1;
    setp.ne.u32 %p1, %r3, 0;
    @!%p1 bra A;
    and.b32 %r4, %index, 2;
    setp.ne.u32 %p2, %r4, 0;
    @%p2 bra B;
    add.u32 %r2, %r2, 1;
B:
    add.u32 %r2, %r2, 10;
A:
    add.u32 %r2, %r2, 100;
    activemask.b32 %r5;
    setp.ne.u32 %p3, %r5, 0xffffffff;
    @%p3 add.u32 %r2, %r2, 1000;
"""
    index = np.arange(64)
    odd = index & 1
    np.testing.assert_array_equal(out_of(body), 100 + odd * (10 + (index & 2 == 0)))


def test_early_exit():
    out = np.zeros(64, np.uint32)
    body = "setp.ge.u32 %p1, %tid, 20;\n@%p1 exit;\n" + at("out", 4) + "st.global.b32 [%address], 7;"
    run(body, {"out": out}, 64)
    np.testing.assert_array_equal(out, np.where(np.arange(64) < 20, 7, 0))


def test_a_block_that_fills_no_whole_warp():
    got = out_of("mov.u32 %r2, %tid;", 40, 3)
    np.testing.assert_array_equal(got, np.arange(120) % 40)


def test_lanes_that_wait_for_others_of_their_warp_get_their_turn():
    """Lane 0 spins on what lane 1 stores: with threads that go on independently it ends."""
    body = """mov.u32 %r1, flag;
    mov.u32 %r2, 0;
    setp.eq.u32 %p1, %tid, 0;
    @%p1 st.shared.b32 [%r1], 0;
    bar.sync 0;
    setp.ne.u32 %p2, %tid, 0;
    @%p2 bra SET;
SPIN:
    ld.volatile.shared.b32 %r3, [%r1];
    setp.eq.u32 %p3, %r3, 0;
    @%p3 bra SPIN;
    bra END;
SET:
    setp.eq.u32 %p4, %tid, 1;
    @%p4 st.volatile.shared.b32 [%r1], 1;
END:
    mov.u32 %r2, 9;
"""
    assert (out_of(body, 32, shared=".shared .align 4 .b8 flag[4];", options=Options()) == 9).all()


BUFFER = ".shared .align 4 .b8 buffer[1024];"


@pytest.mark.parametrize("schedule", ["late", "random"])
@pytest.mark.parametrize(
    "barrier",
    ["bar.sync 0;", "bar.sync 3, 128;", "barrier.sync 1;", "barrier.cta.sync.aligned 2, 128;", "bar.cta.sync 0;"],
)
def test_barriers(barrier, schedule):
    got = out_of(exchange(barrier), 128, 5, BUFFER, Options(schedule=schedule, seed=3, checks=True))
    index = np.arange(640)
    np.testing.assert_array_equal(got, index // 128 * 128 + (index % 128 ^ 32))


def test_two_groups_of_warps_use_their_own_barriers():
    body = """shr.u32 %r5, %tid, 6;
    add.u32 %r6, %r5, 1;
    bar.sync %r6, 64;
"""
    got = out_of(exchange(body), 128, 2, BUFFER)
    index = np.arange(256)
    np.testing.assert_array_equal(got, index // 128 * 128 + (index % 128 ^ 32))


@pytest.mark.parametrize("schedule", ["late", "random"])
def test_producers_arrive_and_consumers_wait(schedule):
    body = """mov.u32 %r1, buffer;
    mov.u32 %r2, 0;
    setp.ge.u32 %p1, %tid, 64;
    @%p1 bra CONSUMER;
    mad.lo.u32 %r3, %tid, 4, %r1;
    st.shared.b32 [%r3], %index;
    bar.arrive 1, 128;
    bra.uni END;
CONSUMER:
    bar.sync 1, 128;
    xor.b32 %r4, %tid, 64;
    mad.lo.u32 %r3, %r4, 4, %r1;
    ld.shared.b32 %r2, [%r3];
END:
"""
    got = out_of(body, 128, 3, BUFFER, Options(schedule=schedule, seed=1, checks=True)).reshape(3, 2, 64)
    assert (got[:, 0] == 0).all()
    np.testing.assert_array_equal(got[:, 1], np.arange(3)[:, None] * 128 + np.arange(64))


def test_warps_that_ended_are_not_waited_for():
    body = """setp.ge.u32 %p1, %tid, 64;
    @%p1 exit;
    bar.sync 0;
"""
    out = np.zeros(96, np.uint32)
    run(body + at("out", 4) + "st.global.b32 [%address], 3;", {"out": out}, 96, options=Options())
    np.testing.assert_array_equal(out, [3] * 64 + [0] * 32)


def test_a_deadlock_says_who_waits_for_what():
    body = "setp.ge.u32 %p1, %tid, 32;\n@%p1 bra B;\n.loc 1 8 0\nbar.sync 1;\nbra END;\n"
    body += "B:\n.loc 1 9 0\nbar.sync 2;\nEND:\n"
    with pytest.raises(DeadlockError) as caught:
        run(body, {"out": np.zeros(1, np.uint32)}, 64)
    first, second = caught.value.findings
    assert "waits at barrier 1, where 32 of 64 threads arrived" in str(first)
    assert "waits at barrier 2, where 32 of 64 threads arrived" in str(second)
    assert (first.warp, second.warp) == (0, 1)
    assert (first.source, second.source) == ("snippet.py:8", "snippet.py:9")


def test_a_deadlock_within_a_warp():
    body = "setp.ge.u32 %p1, %tid, 5;\n@%p1 bra B;\nbar.warp.sync -1;\nret;\nB:\nbar.warp.sync 0xfffffff0;"
    with pytest.raises(DeadlockError, match="waits for lanes 5-31 of its warp") as caught:
        run(body, {"out": np.zeros(1, np.uint32)}, 32)
    assert {finding.lanes for finding in caught.value.findings} == {tuple(range(5)), tuple(range(5, 32))}
    body = "setp.ge.u32 %p1, %tid, 5;\nmov.u32 %r1, 0;\n@%p1 bra B;\nshfl.sync.idx.b32 %r2, %r1, 0, 31, -1;\nret;\n"
    with pytest.raises(DeadlockError, match="waits for lanes 5-31 of its warp"):
        run(body + "B:\nshfl.sync.idx.b32 %r2, %r1, 0, 31, -1;", {"out": np.zeros(1, np.uint32)}, 32)


def test_lanes_of_a_warp_meet_wherever_they_wait():
    body = """mov.u32 %r2, 0;
    setp.lt.u32 %p1, %lane, 16;
    @%p1 bra A;
    bar.warp.sync -1;
    mov.u32 %r2, 4;
    bra B;
A:
    mov.u32 %r2, 5;
    bar.warp.sync -1;
B:
"""
    np.testing.assert_array_equal(out_of(body, 64).reshape(2, 2, 16)[:, :, 0], [[5, 4], [5, 4]])


def test_a_lane_must_be_in_its_own_mask():
    with pytest.raises(FaultError, match="not in its own mask 0x0000ffff"):
        run("bar.warp.sync 0xffff;", {"out": np.zeros(1, np.uint32)}, 32)


@pytest.mark.differs_on_hardware("which warps meet is left to it, and the last kernel has a race")
@pytest.mark.parametrize("schedule", ["late", "random"])
def test_a_barrier_completes_with_exactly_its_count(schedule):
    """Of three warps at a barrier for two, one is left alone; four make two pairs that know nothing of each other."""
    options = Options(checks=True, schedule=schedule, seed=2)
    with pytest.raises(DeadlockError, match="32 of 64 threads arrived; missing of the running warps: none"):
        run("bar.sync 1, 64;", {"out": np.zeros(1, np.uint32)}, 96, options=options)
    assert (out_of("bar.sync 1, 64;\nmov.u32 %r2, 3;", 128, options=options) == 3).all()
    if schedule == "late":
        with pytest.raises(CheckError, match="warp 3 wrote it"):
            out_of(exchange("bar.sync 1, 64;", 96), 128, 1, BUFFER, options)


def test_a_warp_counts_whole_at_a_barrier_for_a_number_of_threads():
    assert (out_of("bar.sync 1, 64;\nmov.u32 %r2, 3;", 48) == 3).all()


@pytest.mark.differs_on_hardware("lanes of a warp come to a barrier one after another")
def test_parted_lanes_of_a_warp_that_is_not_full_count_once_at_a_barrier():
    body = "setp.ge.u32 %p1, %tid, 40;\n@%p1 bra A;\nbarrier.sync 1, 64;\nbra B;\nA:\nbarrier.sync 1, 64;\nB:\n"
    assert (out_of(body + "mov.u32 %r2, 3;", 48) == 3).all()


def test_a_deadlock_says_where_each_warp_waits_and_which_are_missing():
    body = "setp.ge.u32 %p1, %tid, 32;\n@%p1 bra B;\n.loc 1 8 0\nbar.sync 1, 96;\nbra END;\n"
    body += "B:\nsetp.ge.u32 %p1, %tid, 64;\n@%p1 bra C;\n.loc 1 9 0\nbar.sync 1, 96;\nbra END;\n"
    body += "C:\n.loc 1 10 0\nbar.sync 2, 64;\nEND:\n"
    with pytest.raises(DeadlockError) as caught:
        run(body, {"out": np.zeros(1, np.uint32)}, 96)
    assert [finding.source for finding in caught.value.findings] == ["snippet.py:8", "snippet.py:9", "snippet.py:10"]
    assert "64 of 96 threads arrived; missing of the running warps: 2" in str(caught.value.findings[0])


def test_a_deadlock_says_which_lanes_are_missing_where_others_of_their_warp_wait():
    body = "setp.ge.u32 %p1, %tid, 2;\n@%p1 bra END;\nAGAIN:\nld.volatile.global.b32 %r1, [%p_out];\n"
    body += "setp.eq.u32 %p2, %r1, 0;\n@%p2 bra AGAIN;\nEND:\nbar.sync 0;\n"
    with pytest.raises(DeadlockError, match=r"62 of 64 threads arrived; missing .*: lanes 0-1 of warp 0"):
        run(body, {"out": np.zeros(1, np.uint32)}, 64)


def test_counts_of_a_barrier_must_agree():
    body = "setp.ge.u32 %p1, %tid, 32;\n@%p1 bra B;\nbar.sync 1, 64;\nbra END;\nB:\nbar.sync 1, 96;\nEND:\n"
    with pytest.raises(FaultError, match="used for 96 threads here, while others arrived at it for 64"):
        run(body, {"out": np.zeros(1, np.uint32)}, 64)


@pytest.mark.parametrize(
    ("barrier", "rule"), [("bar.sync 16;", "none of 0 to 15"), ("bar.sync 1, 40;", "multiple of 32")]
)
def test_rules_of_barriers(barrier, rule):
    with pytest.raises(FaultError, match=rule):
        run(barrier, {"out": np.zeros(1, np.uint32)}, 64)


def test_trap():
    with pytest.raises(FaultError, match="executed trap") as caught:
        run("setp.eq.u32 %p1, %tid, 33;\n@%p1 trap;", {"out": np.zeros(1, np.uint32)}, 64)
    assert (caught.value.findings[0].warp, caught.value.findings[0].lanes) == (1, (1,))


def test_more_ctas_than_run_at_once():
    got = out_of(exchange(), 128, 300, BUFFER, Options(batch_lanes=1024))
    index = np.arange(128 * 300)
    np.testing.assert_array_equal(got, index // 128 * 128 + (index % 128 ^ 32))
