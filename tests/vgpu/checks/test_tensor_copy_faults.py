"""Bulk copies of which something is missing or wrong: what the virtual GPU finds."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.vgpu import CheckError, DeadlockError, FaultError, Options
from support.ptx.copies import (
    COMMIT,
    EXPECT,
    INIT,
    LOAD,
    SHARED,
    STORE,
    map_of,
    names,
)
from support.ptx.hopper import SCHEDULES, run, wait


def broken(rng, replace, by, **options):
    """Load a box, change it, store it: with one thing changed."""
    source, target = rng.integers(0, 99, (2, 8, 64)).astype(np.float16)
    body = (
        INIT
        + EXPECT.replace("BYTES", "1024")
        + LOAD.format(rank=2, map=names("a", (0, 0)))
        + wait("%r1", 0)
        + """
    mad.lo.u32 %r3, %tid, 16, %r2;
    ld.shared.b32 %r4, [%r3];
    bar.sync 0;
    st.shared.b32 [%r3], %r4;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    """
        + STORE.format(rank=2, map=names("d", (0, 0)))
        + COMMIT
        + """cp.async.bulk.wait_group.read 0;
    bar.sync 0;
    st.shared.b32 [%r3+4], %r4;
    """
    )
    assert replace in body
    maps = tuple(map_of(name, array, (64, 8), 128) for name, array in (("a", source), ("d", target)))
    run(body.replace(replace, by), {"a": source, "d": target}, maps=maps, threads=64, shared=SHARED,
        options=Options(checks=True, **options))  # fmt: skip
    np.testing.assert_array_equal(target, source)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("replace", "by", "kinds", "what"),
    [
        ("fence.proxy", "fence.proxy", set(), ""),
        ("fence.proxy.async.shared::cta;", "", {"race"}, "no fence.proxy.async makes it visible"),
        ("fence.mbarrier_init.release.cluster;", "", {"race"}, "no fence.mbarrier_init"),
        ("::cta;\n    bar.sync 0;", "::cta;", {"race"}, "a bulk copy reads"),
        ("cp.async.bulk.wait_group.read 0;", "", {"race", "unfinished"}, "bulk copy or wgmma may still read"),
        ("read 0;\n    bar.sync 0;", "read 0;", {"race"}, "bulk copy or wgmma may still read"),
        ("cp.async.bulk.commit_group;", "", {"race", "unfinished"}, "bulk copy or wgmma may still read"),
        (wait("%r1", 0), "", {"race", "unfinished"}, "asynchronous store wrote it"),
    ],
)  # fmt: skip
@pytest.mark.differs_on_hardware("it reads what is not there yet")
def test_what_is_missing_is_found_in_every_schedule(rng, replace, by, kinds, what, schedule):
    if not kinds:
        broken(rng, replace, by, schedule=schedule)
        return
    with pytest.raises(CheckError) as caught:
        broken(rng, replace, by, schedule=schedule)
    # The text has one for each kind of this kernel's only line.
    assert any(what in finding.message for finding in caught.value.findings)
    # A warp that goes ahead may come before the copy is even asked for.
    assert {finding.kind for finding in caught.value.findings} - {"uninitialised"} == kinds


@pytest.mark.differs_on_hardware("it waits forever")
@pytest.mark.parametrize(("size", "left"), [(2048, 1024), (512, -512)])
def test_bytes_that_do_not_agree(rng, size, left):
    with pytest.raises(DeadlockError, match=f"1 of 1 arrived, {left} bytes pending"):
        broken(rng, "[%r1], 1024", f"[%r1], {size}")


@pytest.mark.differs_on_hardware("a copy may come when the CTA is gone")
def test_bytes_that_nobody_waits_for(rng):
    body = INIT + EXPECT.replace("BYTES", "512") + LOAD.format(rank=2, map=names("a", (0, 0)))
    source = rng.integers(0, 99, (8, 64)).astype(np.float16)
    with pytest.raises(CheckError) as caught:
        run(body, {"a": source}, maps=(map_of("a", source, (64, 8), 128),), shared=SHARED)
    barrier, unfinished = sorted(caught.value.findings, key=lambda finding: finding.kind)
    assert "1 of 1 arrived, -512 bytes pending): expected and received bytes" in barrier.message
    assert "may all have ended before" in unfinished.message


@pytest.mark.parametrize(
    ("replace", "by", "what"),
    [
        ("%m_a, {0, 0}", "%p_a, {0, 0}", "there is no tensor map"),
        ("2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%m_a, {0, 0}]",
         "3d.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%m_a, {0, 0, 0}]", "of 3 directions"),
        ("bytes [%r2]", "bytes [%r2+16]", "multiple of 128"),
        ("[%m_a, {0, 0}]", "[%m_a, {4, 0}]", "element 4 of rows of float16, which is byte 8"),
        ("[%m_d, {0, 0}]", "[%m_d, {4, 0}]", "element 4 of rows of float16, which is byte 8"),
        ("[%m_d, {0, 0}]", "[%m_d, {-8, 0}]", "stored begins at element -8 of rows, before the first"),
        ("bytes [%r2]", "bytes [%r2+16384]", "of shared memory"),
        ("bytes [%r2], [%m_a, {0, 0}], [%r1]", "bytes.multicast::cluster [%r2], [%m_a, {0, 0}], [%r1], 2",
         "of a cluster"),
        ("[%m_a, {0, 0}], [%r1]", "[%m_a, {0, 0}], [%r1+8]", "was not initialised"),
    ],
)  # fmt: skip
def test_faults(rng, replace, by, what):
    with pytest.raises(FaultError, match=what):
        broken(rng, replace, by)
