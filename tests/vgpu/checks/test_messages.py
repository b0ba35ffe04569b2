"""What CTAs tell each other through global memory: a flag that is released and acquired orders, any less is a race."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.vgpu import CheckError, DeadlockError, Options
from gemmule.vgpu.dataflow.polling import polling_blocks
from gemmule.vgpu.ptx.parser import parse
from gemmule.vgpu.workers import can_be_spread
from support.ptx.hopper import SCHEDULES
from support.ptx.snippets import kernel_text, run

#: All threads of CTA 0 write, then one of them sets a flag; one thread of every other CTA waits for it, then all read.
TELL = """
    mul.wide.u32 %offset, %tid, 4;
    add.u64 %address, %p_data, %offset;
    setp.ne.u32 %p1, %cta, 0;
    setp.eq.u32 %p2, %tid, 0;
    @%p1 bra READ;
    st.global.b32 [%address], %tid;
    {before}
    @%p2 {leave}
    bra DONE;
READ:
    {early}
    @!%p2 bra THERE;
AGAIN:
    {look}
    setp.eq.u32 %p3, %r1, 0;
    @%p3 bra AGAIN;
    {behind}
THERE:
    bar.warp.sync 0xffffffff;
    {after}
    ld.global.b32 %r2, [%address];
    mul.wide.u32 %offset, %index, 4;
    add.u64 %address, %p_out, %offset;
    st.global.b32 [%address], %r2;
DONE:
"""
RIGHT = {
    "before": "bar.sync 0;", "leave": "st.release.gpu.global.b32 [%p_flag], 1;", "early": "", "behind": "",
    "look": "ld.acquire.gpu.global.b32 %r1, [%p_flag];", "after": "bar.sync 0;",
}  # fmt: skip
FENCED = {
    "leave": "bra SET;\nbra DONE;\nSET:\nmembar.gl;\nst.relaxed.gpu.global.b32 [%p_flag], 1;",
    "look": "ld.relaxed.gpu.global.b32 %r1, [%p_flag];", "behind": "fence.acq_rel.gpu;",
}  # fmt: skip
THREADS, CTAS = 64, 3


def told(lanes=16384, schedule="late", **parts):
    """Run it, in batches of so many lanes; the threads' numbers come out."""
    run_told(TELL, RIGHT | parts, lanes, schedule)


def run_told(text, parts, lanes=16384, schedule="late"):
    out = np.zeros((CTAS, THREADS), np.uint32)
    arrays = {"data": np.zeros(THREADS, np.uint32), "flag": np.zeros(1, np.uint32), "out": out}
    options = Options(checks=True, batch_lanes=lanes, schedule=schedule)
    run(text.format(**parts), arrays, THREADS, CTAS, options=options)
    assert (out[1:] == np.arange(THREADS)).all()


@pytest.mark.parametrize("lanes", [16384, THREADS], ids=["together", "one after another"])
@pytest.mark.parametrize("schedule", ["late", "random"])
@pytest.mark.parametrize(
    "parts",
    [
        {},
        FENCED,
        FENCED | {"look": "ld.volatile.global.b32 %r1, [%p_flag];", "behind": "membar.sys;"},
        {"leave": "red.release.gpu.global.add.u32 [%p_flag], 1;"},
        {"leave": "atom.acq_rel.sys.global.exch.b32 %r3, [%p_flag], 1;"},
    ],
)  # fmt: skip
def test_a_flag_orders(parts, schedule, lanes):
    told(lanes, schedule, **parts)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_warp_may_come_to_a_barrier_lane_by_lane(schedule):
    """One lane polls, as `if (threadIdx.x == 0) while (!flag); __syncthreads();` is compiled."""
    text = TELL.replace("bar.warp.sync 0xffffffff;", "")
    run_told(text, RIGHT, schedule=schedule)
    elsewhere = text.replace("{early}", "{early}\n@%p2 bra AGAIN;\nbar.sync 0;\nbra READ_IT;").replace(
        "ld.global.b32 %r2", "READ_IT:\nld.global.b32 %r2"
    )
    with pytest.raises(CheckError, match=r"lanes 0 arrive .* instead, but the instruction is for whole warps"):
        run_told(elsewhere, RIGHT, schedule=schedule)


@pytest.mark.parametrize("lanes", [16384, THREADS], ids=["together", "one after another"])
@pytest.mark.parametrize(
    "parts",
    [
        {"leave": "st.relaxed.gpu.global.b32 [%p_flag], 1;"},
        {"look": "ld.relaxed.gpu.global.b32 %r1, [%p_flag];"},
        {"before": ""},
        {"after": ""},
        {"leave": "st.global.b32 [%p_flag], 1;"},
        {"leave": "st.release.cta.global.b32 [%p_flag], 1;"},
        {"leave": "red.global.add.u32 [%p_flag], 1;"},
        FENCED | {"behind": ""},
        FENCED | {"leave": "bra SET;\nbra DONE;\nSET:\nmembar.cta;\nst.relaxed.gpu.global.b32 [%p_flag], 1;"},
    ],
)
def test_anything_less_is_a_race(parts, lanes):
    with pytest.raises(CheckError) as found:
        told(lanes, **parts)
    assert {finding.kind for finding in found.value.findings} == {"race"}
    assert all(finding.space == "global" for finding in found.value.findings)


def test_what_is_written_after_the_flag_is_not_told():
    late = "st.release.gpu.global.b32 [%p_flag], 1;\nst.global.b32 [%address], %tid;"
    with pytest.raises(CheckError, match="race"):
        told(leave=late)


def test_what_one_was_told_is_told_on():
    """CTA 0 tells CTA 1, and that tells CTA 2 by another flag."""
    body = """
    mul.wide.u32 %offset, %cta, 4;
    add.u64 %address, %p_flags, %offset;
    setp.eq.u32 %p1, %cta, 0;
    @%p1 st.global.b32 [%p_data], 7;
    @%p1 bra SET;
AGAIN:
    ld.acquire.gpu.global.b32 %r1, [%address+-4];
    setp.eq.u32 %p2, %r1, 0;
    @%p2 bra AGAIN;
SET:
    {}
    setp.ne.u32 %p3, %cta, 2;
    @%p3 bra DONE;
    ld.global.b32 %r2, [%p_data];
    st.global.b32 [%p_out], %r2;
DONE:
"""
    for leave, right in (
        ("st.release.gpu.global.b32 [%address], 1;", True),
        ("st.relaxed.gpu.global.b32 [%address], 1;", False),
    ):
        out = np.zeros(1, np.uint32)
        arrays = {"data": np.zeros(1, np.uint32), "flags": np.zeros(3, np.uint32), "out": out}
        # CTA 0 releases; only what CTA 1 does with it differs.
        text = body.format(f"@%p1 st.release.gpu.global.b32 [%address], 1;\n@!%p1 {leave}")
        if right:
            run(text, arrays, 1, 3)
            assert out[0] == 7
        else:
            with pytest.raises(CheckError, match="race"):
                run(text, arrays, 1, 3)


def test_the_last_of_several_reads_what_all_have_written():
    """Each CTA writes and counts itself; the one that comes last adds up, as the sum of a grid is computed."""
    body = """
    mul.wide.u32 %offset, %cta, 4;
    add.u64 %address, %p_data, %offset;
    st.global.b32 [%address], %cta;
    atom.{}.gpu.global.add.u32 %r1, [%p_flag], 1;
    setp.ne.u32 %p1, %r1, 3;
    @%p1 bra DONE;
    ld.global.v4.b32 {{%r2, %r3, %r4, %r5}}, [%p_data];
    add.u32 %r2, %r2, %r3;
    add.u32 %r4, %r4, %r5;
    add.u32 %r2, %r2, %r4;
    st.global.b32 [%p_out], %r2;
DONE:
"""
    for order in ("acq_rel", "acquire", "release"):
        out = np.zeros(1, np.uint32)
        arrays = {"data": np.zeros(4, np.uint32), "flag": np.zeros(1, np.uint32), "out": out}
        if order == "acq_rel":
            run(body.format(order), arrays, 1, 4)
            assert out[0] == 6
        else:
            with pytest.raises(CheckError, match="race"):
                run(body.format(order), arrays, 1, 4)


#: Every CTA reads what one of them writes after a barrier of the whole grid.
GRID = """
    {load}.global.b32 %r1, [%p_data];
    setp.ne.u32 %p2, %cta, {writer};
    @!%p2 bra WRITER;
    {arrive}
    bra REST;
WRITER:
    {arrive}
AGAIN:
    ld.acquire.gpu.global.b32 %r2, [%p_flag];
    setp.lt.u32 %p1, %r2, {all};
    @%p1 bra AGAIN;
    st.global.b32 [%p_data], 7;
REST:
    mul.wide.u32 %offset, %cta, 4;
    add.u64 %address, %p_out, %offset;
    st.global.b32 [%address], %r1;
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("writer", [0, 2, 3])
@pytest.mark.parametrize("load", ["ld", "ld.relaxed.gpu"])
def test_a_write_after_reads_by_several_ctas(load, writer, schedule):
    """All reads must be ordered before it, strong ones too: one that is not is found, whichever CTA's was the last."""
    # The last CTA may run after the others.
    options = Options(schedule, checks=True, batch_lanes=32 if writer == 3 else 16384)
    for arrivals in (4, 3):
        out = np.zeros(4, np.uint32)
        arrays = {"data": np.ones(1, np.uint32), "flag": np.zeros(1, np.uint32), "out": out}
        arrive = "red.release.gpu.global.add.u32 [%p_flag], 1;"
        text = GRID.format(load=load, writer=writer, arrive=arrive, all=arrivals)
        if arrivals == 3:
            # The CTA after the writer does not arrive.
            absent = f"setp.ne.u32 %p3, %cta, {(writer + 1) % 4};\nsetp.ne.u32 %p2"
            text = text.replace("setp.ne.u32 %p2", absent).replace("red.release", "@%p3 red.release")
            with pytest.raises(CheckError, match="race"):
                run(text, arrays, 1, 4, options=options)
        else:
            run(text, arrays, 1, 4, options=options)
            assert (out == 1).all()
            assert arrays["data"][0] == 7


def test_a_flag_that_nobody_sets_is_a_deadlock():
    with pytest.raises(DeadlockError, match=r"polls? for a word that no running thread writes"):
        told(leave="bra DONE;")


def test_a_cta_that_waits_for_a_later_batch_is_a_deadlock():
    backwards = {"before": "", "leave": "bra DONE;", "early": ""}
    text = TELL.format(**RIGHT | backwards).replace("setp.ne.u32 %p1, %cta, 0;", "setp.eq.u32 %p1, %cta, 0;")
    text = text.replace("@%p2 bra DONE;", "@%p2 st.release.gpu.global.b32 [%p_flag], 1;")
    arrays = {"data": np.zeros(THREADS, np.uint32), "flag": np.zeros(1, np.uint32),
              "out": np.zeros((2, THREADS), np.uint32)}  # fmt: skip
    run(text, arrays, 32, 2, options=Options())
    assert (arrays["out"][0, :32] == np.arange(32)).all()
    arrays["flag"][:] = 0
    with pytest.raises(DeadlockError):
        run(text, arrays, 32, 2, options=Options(batch_lanes=32))


def polls(loop):
    text = kernel_text(f"mov.u32 %r1, 0;\nAGAIN:\n{loop}\n@%p1 bra AGAIN;", {"flag": 0})
    return bool(polling_blocks(parse(text)))


@pytest.mark.parametrize(
    ("loop", "found"),
    [
        ("ld.acquire.gpu.global.b32 %r2, [%p_flag];\nsetp.eq.u32 %p1, %r2, 0;", True),
        ("ld.volatile.global.b32 %r2, [%p_flag];\nnanosleep.u32 20;\nsetp.eq.u32 %p1, %r2, 0;", True),
        ("ld.global.b32 %r2, [%p_flag];\nsetp.eq.u32 %p1, %r2, 0;", False),
        ("ld.volatile.global.b32 %r2, [%p_flag];\nadd.u32 %r1, %r1, 1;\nsetp.lt.u32 %p1, %r1, 9;", False),
        ("ld.volatile.global.b32 %r2, [%p_flag];\nmov.u32 %r3, %clock;\nsetp.lt.u32 %p1, %r3, 9;", False),
        ("ld.volatile.global.b32 %r2, [%p_flag];\nst.global.b32 [%p_flag], 1;\nsetp.eq.u32 %p1, %r2, 0;", False),
        ("atom.global.cas.b32 %r2, [%p_flag], 0, 1;\nsetp.ne.u32 %p1, %r2, 0;", True),
        ("atom.global.exch.b32 %r2, [%p_flag], 1;\nsetp.ne.u32 %p1, %r2, 0;", True),
        ("atom.global.add.u32 %r2, [%p_flag], 1;\nsetp.ne.u32 %p1, %r2, 9;", False),
    ],
)  # fmt: skip
def test_loops_that_only_wait(loop, found):
    assert polls(loop) == found


def test_ctas_that_talk_stay_in_one_process():
    for instruction, free in (
        ("ld.acquire.gpu.global.b32 %r1, [%p_flag];", False),
        ("st.release.gpu.global.b32 [%p_flag], 1;", False),
        ("ld.volatile.shared.b32 %r1, [%r2];", True),
        ("ld.global.b32 %r1, [%p_flag];", True),
    ):
        assert can_be_spread(parse(kernel_text(instruction, {"flag": 0}))) == free


TWO_POLLS = """
    setp.eq.u32 %p1, %lane, 0;
    @!%p1 bra DONE;
    setp.eq.u32 %p2, %warp, 1;
    @%p2 bra OTHER;
FIRST:
    ld.acquire.gpu.global.b32 %r1, [%p_flag];
    setp.eq.u32 %p3, %r1, 0;
    @%p3 bra FIRST;
    ld.global.b32 %r3, [%p_data];
    st.global.b32 [%p_out], %r3;
    bra DONE;
OTHER:
    st.global.b32 [%p_data], 7;
SECOND:
    ld.acquire.gpu.global.b32 %r1, [%p_flag+4];
    setp.eq.u32 %p3, %r1, 0;
    @%p3 bra SECOND;
    st.release.gpu.global.b32 [%p_flag], 1;
DONE:
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_of_two_loops_that_poll_each_has_its_turn(schedule):
    """The second one's word is there: it goes on, and sets that of the first, which stands lower in the code."""
    out = np.zeros(1, np.uint32)
    arrays = {"data": np.zeros(1, np.uint32), "flag": np.array([0, 1], np.uint32), "out": out}
    run(TWO_POLLS, arrays, 64, 1, options=Options(checks=True, schedule=schedule))
    assert out[0] == 7


READERS = """
    setp.eq.u32 %p1, %cta, 0;
    @%p1 bra WRITER;
    ld.global.b32 %r3, [%p_data];
    mul.wide.u32 %offset, %cta, 4;
    add.u64 %address, %p_out, %offset;
    st.global.b32 [%address], %r3;
    setp.ne.u32 %p2, %cta, 2;
    @%p2 bra DONE;
    red.release.gpu.global.add.u32 [%p_flag], 1;
    bra DONE;
WRITER:
    ld.acquire.gpu.global.b32 %r1, [%p_flag];
    setp.ne.u32 %p3, %r1, 1;
    @%p3 bra WRITER;
    st.global.b32 [%p_data], 7;
DONE:
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_reader_that_tells_nobody_is_found_beside_one_that_does(schedule):
    arrays = {"data": np.full(1, 5, np.uint32), "flag": np.zeros(1, np.uint32), "out": np.zeros(4, np.uint32)}
    with pytest.raises(CheckError, match="nothing orders the two"):
        run(READERS, arrays, 1, 3, options=Options(checks=True, schedule=schedule))
