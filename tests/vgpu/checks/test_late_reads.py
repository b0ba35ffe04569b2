"""Loads that may still be under way when a barrier is told, behind which the copy engine writes."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.vgpu import CheckError, Options
from support.ptx.barriers import SHARED as GENERIC
from support.ptx.barriers import pipeline
from support.ptx.copies import EXPECT, LOAD, SHARED, map_of, names
from support.ptx.hopper import SCHEDULES, run, wait
from support.ptx.snippets import at

INIT = """mov.u32 %r1, bars;
    mov.u32 %r2, box;
    setp.eq.u32 %p9, %tid, 0;
    @%p9 mbarrier.init.shared.b64 [%r1], 1;
    @%p9 mbarrier.init.shared.b64 [%r1+8], 32;
    fence.mbarrier_init.release.cluster;
    bar.sync 0;
    setp.ne.u32 %p1, %warp, 0;
    @%p1 bra CONSUMER;
"""
READ = "mad.lo.u32 %r3, %lane, 4, %r2;\nld.shared.b32 %r4, [%r3];\nxor.b32 %r5, %r4, -1;\n"
TELL = "mbarrier.arrive.shared.b64 _, [%r1+8];\n"
STORE = at("out", 4, "%lane") + "st.global.b32 [%address], %r5;\n"
GENERIC_LOAD = "cvt.u64.u32 %d1, %r3;\ncvta.shared.u64 %d2, %d1;\nld.b32 %r4, [%d2]"
MATRIX_LOAD = """and.b32 %r8, %lane, 7;
    mad.lo.u32 %r8, %r8, 16, %r2;
    ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r4}, [%r8]"""


def two_boxes(rng, consumer, **options):
    """Warp 0 brings a box, and another into the same place when warp 1 has told it; this reads both."""
    source, out = rng.integers(0, 99, (2, 32)).astype(np.int32), np.zeros((2, 32), np.int32)

    def load(row):
        return EXPECT.replace("BYTES", "128") + LOAD.format(rank=2, map=names("a", (0, row)))

    body = INIT + load(0) + wait("%r1+8", 0) + load(1) + "bra END;\nCONSUMER:\n" + wait("%r1", 0) + consumer
    body += wait("%r1", 1) + "ld.shared.b32 %r6, [%r3];\nxor.b32 %r6, %r6, -1;\nadd.u32 %r7, %lane, 32;\n"
    body += at("out", 4, "%r7") + "st.global.b32 [%address], %r6;\nEND:\n"
    run(body, {"a": source, "out": out}, maps=(map_of("a", source, (32, 1)),), threads=64, shared=SHARED,
        options=Options(checks=True, **options))  # fmt: skip
    np.testing.assert_array_equal(out, ~source)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "consumer",
    [
        READ + STORE + TELL,
        READ + "shfl.sync.idx.b32 %r5, %r5, %lane, 31, -1;\n" + TELL + STORE,
        READ + "bar.sync 1, 32;\n" + TELL + STORE,
        READ + "fence.proxy.async.shared::cta;\n" + TELL + STORE,
        READ + "setp.eq.u32 %p3, %r5, 7;\n@%p3 bra AGAIN_7;\nAGAIN_7:\n" + TELL + STORE,
    ],
    ids=["stored", "exchanged", "barrier", "fence", "branch"],
)
def test_what_was_needed_before_is_there(rng, consumer, schedule):
    two_boxes(rng, consumer, schedule=schedule)


@pytest.mark.differs_on_hardware("mostly the load is there in time")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "consumer",
    [
        READ + TELL + STORE,
        READ + "bar.warp.sync -1;\n" + TELL + STORE,
        # The warp knows of the second box by then.
        READ + TELL + wait("%r1", 1) + STORE,
        READ.replace("ld.shared.b32 %r4, [%r3]", GENERIC_LOAD) + TELL + STORE,
        READ.replace("ld.shared.b32 %r4, [%r3]", MATRIX_LOAD) + TELL + STORE,
        "mov.u32 %r6, 5;\n" + READ.replace("ld.", "@!%p9 ld.") + TELL + STORE,
    ],
    ids=["told", "met", "waited again", "generic", "matrix", "guarded"],
)
def test_a_load_on_its_way_is_found_in_every_schedule(rng, consumer, schedule):
    with pytest.raises(
        CheckError, match=r"warp 1 read it, and nothing orders the two|no instruction needed the value before"
    ) as caught:
        two_boxes(rng, consumer, schedule=schedule)
    assert {finding.kind for finding in caught.value.findings} == {"race"}


UNUSED = """mad.lo.u32 %r3, %lane, 4, %r2;
    ld.shared.b32 %r4, [%r3];
    mov.u32 %r5, %r4;
    mov.u32 %r8, 0;
    TURN:
    setp.eq.u32 %p3, %r8, 0;
    @%p3 bra NEXT;
    st.shared.b32 [%r3+4096], %r5;
    bra DONE;
    NEXT:
    mov.u32 %r8, 1;
    TELL
    WAIT
    ld.shared.b32 %r9, [%r3];
    mov.u32 %r5, %r9;
    bra TURN;
    DONE:
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_value_that_nothing_uses_is_not_waited_for(rng, schedule):
    """The register that the store reads held it once, but other values since."""
    two_boxes(rng, READ + STORE + UNUSED.replace("TELL", TELL).replace("WAIT", wait("%r1", 1)), schedule=schedule)


def test_what_ordinary_instructions_write_waits_for_loads(rng):
    """The same pipeline without the copy engine, whose consumer stores what it read when it has told."""
    a, out = rng.integers(0, 99, 160).astype(np.int32), np.zeros(160, np.int32)
    run(pipeline(), {"a": a, "out": out}, threads=64, shared=GENERIC, options=Options(checks=True))
    np.testing.assert_array_equal(out, a)
