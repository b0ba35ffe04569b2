"""Shared memory of CTAs of a cluster that may have ended while others, or the copy engine, use it."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.vgpu import CheckError, Options
from support.ptx.copies import EXPECT, INIT, LOAD, SHARED, map_of
from support.ptx.hopper import SCHEDULES, run, wait

#: Every CTA writes its word, and the cluster meets; then CTA 1 does something with that of CTA 0.
REMOTE = """
    .shared .align 16 .b8 data[512];
    mov.u32 %r1, data;
    mad.lo.u32 %r1, %lane, 4, %r1;
    st.shared.b32 [%r1], %lane;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    mov.u32 %r10, %cluster_ctarank;
    setp.eq.u32 %p1, %r10, 1;
    mapa.shared::cluster.u32 %r2, %r1, 0;
    @%p1 USE
    LAST
"""
USES = {
    "load": "ld.shared::cluster.b32 %r3, [%r2];",
    "store": "st.shared::cluster.b32 [%r2], %lane;",
    "atomic": "atom.shared::cluster.add.u32 %r3, [%r2], 1;",
}
MEET = "barrier.cluster.arrive;\nbarrier.cluster.wait;"


def use(what, last, schedule):
    body = REMOTE.replace("USE", USES[what]).replace("LAST", last)
    run(body, {"out": np.zeros(32, np.uint32)}, ctas=2, cluster=2, options=Options(schedule=schedule, checks=True))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("what", USES)
def test_memory_that_is_waited_for_may_be_used(what, schedule):
    use(what, MEET, schedule)


@pytest.mark.differs_on_hardware("a CTA uses the memory of one that may have ended")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "last", ["", "barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;"], ids=["none", "relaxed"]
)
@pytest.mark.parametrize("what", USES)
def test_memory_of_ctas_that_may_have_ended(what, last, schedule):
    with pytest.raises(CheckError) as caught:
        use(what, last, schedule)
    (finding,) = caught.value.findings
    assert (finding.kind, finding.cta) == ("unfinished", (1, 0, 0))
    assert "uses shared memory of CTA (0, 0, 0), whose warps may all have ended before" in finding.message


#: CTA 1 brings a box for both CTAs, and each waits for it, or does not.
MULTICAST = (
    INIT
    + EXPECT.replace("BYTES", "1024")
    + """
    mov.u16 %h1, 3;
    mov.u32 %r3, %cluster_ctarank;
    setp.ne.u32 %p8, %r3, 0;
    and.pred %p7, %p8, %p9;
    barrier.cluster.arrive;
    barrier.cluster.wait;
"""
    + LOAD.format(rank=2, map="%m_a, {0, 0}")
    .replace("%p9", "%p7")
    .replace("bytes [", "bytes.multicast::cluster [")
    .replace("[%r1];", "[%r1], %h1;")
)


@pytest.mark.differs_on_hardware("a copy may come when the CTA is gone")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("waits", [True, False])
def test_a_copy_for_a_cta_that_may_have_ended(rng, waits, schedule):
    source = rng.integers(0, 99, (8, 64)).astype(np.float16)
    # CTA 0 leaves at once, or when its share is there.
    body = MULTICAST + ("" if waits else "@!%p8 bra END;\n") + wait("%r1", 0) + "END:\n"
    given = {"maps": (map_of("a", source, (64, 8), 128),), "ctas": 2, "cluster": 2, "shared": SHARED}
    options = Options(schedule=schedule, checks=True)
    if waits:
        run(body, {"a": source}, options=options, **given)
        return
    with pytest.raises(CheckError, match=r"uses shared memory of CTA \(0, 0, 0\), whose warps may all have ended"):
        run(body, {"a": source}, options=options, **given)
