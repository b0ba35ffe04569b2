"""Lanes of one warp that use what another of them wrote: ``bar.warp.sync`` or a barrier must come between."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.vgpu import CheckError, Options
from support.ptx.copies import COMMIT, INIT, SHARED, STORE, map_of, names
from support.ptx.hopper import run
from support.ptx.snippets import at, exchange

BUFFER = ".shared .align 16 .b8 buffer[1024];"
TAKE = at("out", 4) + "st.global.b32 [%address], %r2;"
MEET = "bar.warp.sync -1;\n"
#: What stands between two accesses, and whether it orders them.
BETWEEN = [
    ("", False), (MEET, True), ("bar.sync 0;\n", True), ("bar.sync 1, 64;\n", True), ("fence.acq_rel.cta;\n", False),
    ("shfl.sync.idx.b32 %r9, %tid, 0, 31, -1;\n", False),
]  # fmt: skip

pytestmark = pytest.mark.differs_on_hardware("some have races")


def expect(words, body, arrays=None, shared=BUFFER, **how):
    """Run a body, which must be found to race in words that say how; or in nothing, where there are none."""
    arrays = {"out": np.zeros(64, np.uint32)} if arrays is None else arrays
    how |= {"threads": 64, "shared": shared, "options": Options(checks=True)}
    if not words:
        run(body, arrays, **how)
        return
    with pytest.raises(CheckError, match=words) as caught:
        run(body, arrays, **how)
    assert {finding.kind for finding in caught.value.findings} == {"race"}


@pytest.mark.parametrize(("between", "ordered"), BETWEEN)
def test_a_read_of_what_another_lane_wrote(between, ordered):
    expect("" if ordered else "another lane of its warp wrote it", exchange(between, shift=1) + TAKE)


@pytest.mark.parametrize(("between", "ordered"), BETWEEN)
def test_a_write_to_what_another_lane_has_read(between, ordered):
    body = exchange(MEET, shift=1) + between + "mad.lo.u32 %r3, %tid, 4, %r1;\nst.shared.b32 [%r3], 5;\n" + TAKE
    expect("" if ordered else "another lane of its warp read it", body)


def test_lanes_know_what_they_wrote_themselves():
    expect("", exchange("", shift=0) + "st.shared.b32 [%r3], 7;\nld.shared.b32 %r2, [%r3];\n" + TAKE)


def test_a_word_that_one_lane_writes_for_all():
    one = "mov.u32 %r1, buffer;\nsetp.eq.u32 %p1, %lane, 0;\nmov.b32 %r2, 0;\n"
    one += "mad.lo.u32 %r1, %warp, 4, %r1;\n@%p1 st.shared.b32 [%r1], 9;\n"
    load = "ld.shared.b32 %r2, [%r1];\n" + TAKE
    expect("another lane of its warp wrote it", one + load)
    expect("", one + MEET + load)
    # The lane itself may read it, but it overtakes others that have read it when it writes the next.
    again = load.replace(TAKE, "add.u32 %r2, %r2, 1;\n") + "@%p1 st.shared.b32 [%r1], %r2;\n"
    expect("another lane of its warp read it", one + MEET + again)
    expect("", one + MEET + again.replace("ld.shared", "@%p1 ld.shared"))


MATRIX = """mov.u32 %r1, buffer;
    mad.lo.u32 %r1, %warp, 128, %r1;
    and.b32 %r3, %lane, 7;
    mad.lo.u32 %r3, %r3, 16, %r1;
    mad.lo.u32 %r4, %lane, 4, %r1;
"""


@pytest.mark.parametrize("between", ["", MEET])
def test_rows_of_matrices_belong_to_no_lane(between):
    words = "" if between else "another lane of its warp wrote it"
    store = MATRIX + "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r3], {%tid};\n" + between
    expect(words, store + "ld.shared.b32 %r2, [%r4];\n" + TAKE)
    load = MATRIX + "st.shared.b32 [%r4], %tid;\n" + between
    expect(words, load + "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [%r3];\n" + TAKE)


@pytest.mark.parametrize("between", ["", MEET])
def test_a_copy_of_what_other_lanes_wrote(between):
    target = np.zeros((8, 64), np.float16)
    body = INIT + "mad.lo.u32 %r3, %lane, 32, %r2;\nmov.b32 %r4, 0;\nsetp.lt.u32 %p3, %tid, 32;\n"
    for half in (0, 16):
        body += f"@%p3 st.shared.v4.b32 [%r3+{half}], {{%r4, %r4, %r4, %r4}};\n"
    body += "fence.proxy.async.shared::cta;\n" + between
    body += STORE.format(rank=2, map=names("d", (0, 0))) + COMMIT + "cp.async.bulk.wait_group.read 0;\n"
    expect("" if between else "another lane of its warp wrote it", body, {"d": target}, SHARED,
           maps=(map_of("d", target, (64, 8), 128),))  # fmt: skip


@pytest.mark.parametrize("between", ["", MEET])
def test_an_mbarrier_that_another_lane_made(between):
    body = INIT.replace("bar.sync 0;\n", "").replace("[%r1], 1;", "[%r1], 32;")
    body += f"setp.lt.u32 %p3, %tid, 32;\n{between}@%p3 mbarrier.arrive.shared.b64 _, [%r1];\n"
    expect("" if between else "another lane of its warp initialised it", body, shared=SHARED)


CONFLICT = "mov.u32 %r1, buffer;\nshr.u32 %r2, %tid, 1;\nmad.lo.u32 %r3, %r2, 4, %r1;\nst.shared.b32 [%r3], {};\n"


def test_lanes_that_store_different_values_to_one_place_of_shared_memory():
    expect(
        r"several lanes store different values at byte 0 of buffer \(0x400 of shared memory\)", CONFLICT.format("%tid")
    )
    expect("", CONFLICT.format("%r2"))
    expect("", CONFLICT.format("7"))


def test_lanes_that_store_different_values_to_one_word_of_an_array():
    body = "shr.u32 %r2, %tid, 1;\nmad.wide.u32 %address, %r2, 4, %p_out;\nst.global{}.b32 [%address], {};\n"
    expect("several lanes store different values at byte 0 of operand out", body.format("", "%tid"))
    expect("", body.format("", "%r2"))
    # Of strong stores any may stay, and the author says so.
    expect("", body.format(".relaxed.gpu", "%tid"))
