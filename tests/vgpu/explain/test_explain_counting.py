"""What an explanation is counted with: some CTAs of a launch, lines, what is read once, and how long warps may wait."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.core.errors import ArgumentError
from gemmule.core.launch import Launch, TensorParam
from gemmule.vgpu import Counter, Options, launch
from gemmule.vgpu.counts.footprint import Footprint
from gemmule.vgpu.counts.waits import Waits
from gemmule.vgpu.models.sectors import request_lines
from support.ptx.snippets import at, kernel_text, run

LANE = np.arange(32)
COPY = "mov.u32 %r20, buffer;mad.lo.u32 %r20, %lane, 4, %r20;cp.async.ca.shared.global [%r20], [%address], 4;"
BUFFER = ".shared .align 128 .b8 buffer[1024];"


@pytest.mark.parametrize(
    ("addresses", "size", "lines"),
    [(4 * LANE, 4, 1), (4 * LANE + 64, 4, 2), (16 * LANE, 16, 4), (128 * LANE, 4, 32), (0 * LANE, 8, 1),
     (36 * LANE, 4, 9)],
)  # fmt: skip
def test_lines(addresses, size, lines):
    addresses = (7 * 4096 + np.stack([addresses, addresses])).astype(np.int64)
    active = np.ones((2, 32), bool)
    active[1, 1:] = False
    assert request_lines(addresses, active, size).tolist() == [lines, 1]


def test_the_counter_counts_lines():
    counter = Counter()
    body = "mul.lo.u32 %r1, %index, 16;" + at("a", 4, "%r1") + "ld.global.b32 %r2, [%address];"
    run(body, {"a": np.zeros(32 * 16, np.uint32)}, observers=(counter,), options=Options())
    (load,) = [row for row in counter.counts.instructions if row.requests]
    assert (load.lines, load.sectors) == (16, 32)


def some_ctas(ctas):
    out = np.zeros(5 * 32, np.uint32)
    recipe = Launch((5, 1, 1), (32, 1, 1), (TensorParam("out", (), ()),))
    body = at("out", 4) + "add.u32 %r1, %cta, 1;st.global.b32 [%address], %r1;"
    launch(kernel_text(body, ["out"]), recipe, {"out": out}, options=Options(batch_lanes=64), ctas=ctas)
    return out.reshape(5, 32)[:, 7].tolist()


def test_some_ctas_of_a_launch():
    assert some_ctas(None) == [1, 2, 3, 4, 5]
    assert some_ctas(range(1, 4)) == [0, 2, 3, 4, 0]
    assert some_ctas(range(0)) == [0] * 5


@pytest.mark.parametrize("ctas", [range(6), range(-1, 2), range(0, 4, 2)])
def test_ctas_that_a_launch_has_not(ctas):
    with pytest.raises(ArgumentError, match="are not adjacent among the grid's 5 CTAs"):
        some_ctas(ctas)


def test_what_is_read_by_several_counts_once():
    """Two CTAs read the same 64 words of a, in words and in fours; b is written only."""
    footprint = Footprint()
    body = at("a", 4, "%tid") + "ld.global.b32 %r1, [%address];"
    body += "and.b32 %r3, %tid, 7;" + at("a", 16, "%r3") + "ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%address];"
    body += at("b", 4) + "st.global.b32 [%address], %r1;"
    arrays = {"a": np.zeros(100, np.uint32), "b": np.zeros(128, np.uint32)}
    run(body, arrays, 64, 2, observers=(footprint,), options=Options(batch_lanes=64))
    assert footprint.read_bytes() == {"a": 64 * 4}
    assert sorted(map(sorted, footprint.operands.values())) == [["a"], ["a"], ["b"]]
    assert footprint.shared_bytes() == {2: 64 * 4}


@pytest.mark.parametrize("together", [1, 2, 5])
def test_how_many_ctas_read_what(together):
    """CTA c reads 32 words from word 12 c: at most three read the same, however many run at a time."""
    footprint = Footprint()
    body = "mad.lo.u32 %r1, %cta, 12, %lane;" + at("a", 4, "%r1") + "ld.global.b32 %r2, [%address];"
    options = Options(batch_lanes=32 * together)
    run(body, {"a": np.zeros(100, np.uint32)}, 32, 5, observers=(footprint,), options=options)
    readers = np.zeros(80, int)
    for cta in range(5):
        readers[12 * cta : 12 * cta + 32] += 1
    assert footprint.shared_bytes() == {number: 4 * int((readers == number).sum()) for number in (1, 2, 3)}
    assert footprint.read_bytes() == {"a": 80 * 4}


def rounds(body, threads=32):
    waits = Waits()
    arrays = {"a": np.zeros(4096, np.uint32), "out": np.zeros(4096, np.uint32)}
    run(body, arrays, threads, shared=BUFFER, observers=(waits,), options=Options())
    return waits.rounds


LOAD = at("a", 4) + "ld.global.b32 %r1, [%address];"
WORK = "add.u32 %r10, %r10, 1;"


@pytest.mark.parametrize("between", [0, 1, 17])
def test_instructions_between_a_load_and_its_use(between):
    assert rounds(LOAD + WORK * between + "add.u32 %r2, %r1, %r1;") == [between]


def test_the_first_use_counts_and_one_round_has_one_distance():
    two = at("a", 4) + "ld.global.b32 %r1, [%address];ld.global.b32 %r2, [%address+4];"
    assert rounds(two + WORK * 3 + "add.u32 %r3, %r2, %r1;add.u32 %r3, %r1, %r3;") == [3]


def test_a_barrier_ends_a_round():
    use = "add.u32 %r2, %r1, %r1;"
    assert rounds(LOAD + use + LOAD + use) == [0]
    assert rounds(LOAD + use + "bar.sync 0;" + LOAD + WORK + use) == [0, 1]
    # What is asked for before a barrier may be used behind it.
    assert rounds(LOAD + WORK + "bar.sync 0;" + WORK + use) == [3]


def test_a_loop_has_a_round_each_time():
    body = "mov.u32 %r9, 0;\nLOOP:\n" + LOAD + WORK + "add.u32 %r2, %r1, %r1;add.u32 %r9, %r9, 1;"
    body += "setp.lt.u32 %p1, %r9, 5;\n@%p1 bra LOOP;\n"
    assert rounds(body) == [1] * 5


def test_a_loop_that_is_left_ends_a_round():
    """What stands behind an unrolled loop, for the rest, waits anew, though its code comes later."""
    loop = "mov.u32 %r9, 0;\nLOOP:\n" + LOAD + "add.u32 %r2, %r1, %r1;add.u32 %r9, %r9, 1;"
    loop += "setp.lt.u32 %p1, %r9, {};\n@%p1 bra LOOP;\n" + LOAD + WORK + "add.u32 %r2, %r1, %r1;"
    assert rounds(loop.format(1)) == [0, 1]
    assert rounds(loop.format(3)) == [0, 0, 0, 1]


def test_loads_behind_branches_that_only_skip_are_of_one_round():
    body = "setp.lt.u32 %p1, %lane, 40;@!%p1 bra FIRST;" + LOAD + WORK + "add.u32 %r2, %r1, %r1;\nFIRST:\n"
    body += "@!%p1 bra SECOND;" + LOAD + "add.u32 %r2, %r1, %r1;\nSECOND:\n"
    assert rounds(body) == [0]


def test_what_is_never_used_is_not_waited_for():
    assert rounds(LOAD) == []
    assert rounds(LOAD + "mov.u32 %r1, 3;add.u32 %r2, %r1, %r1;") == []


def test_groups_of_copies():
    """With one group left on its way, what is waited for is a round of work older."""
    one = at("a", 4) + COPY + "cp.async.commit_group;"
    steps = len([part for part in one.replace("\n", "").split(";") if part])
    # From the copy: the commit, the wait.
    assert rounds(one + WORK * 4 + "cp.async.wait_group 0;") == [5]
    assert rounds(one + WORK * 4 + one + "cp.async.wait_group 1;") == [5 + steps]
    assert rounds(one + WORK * 4 + "cp.async.wait_group 1;") == []
    assert rounds(one + WORK * 2 + one + "cp.async.wait_all;") == [1]
