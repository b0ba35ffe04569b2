"""Barriers in shared memory: phases, parities, counts, bytes, clusters; and what is wrong with their use."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.vgpu import CheckError, DeadlockError, FaultError, Options, VirtualGpuError
from support.ptx.barriers import (
    COUNTS,
    PENDING,
    SHARED,
    async_stores,
    cluster,
    init,
    pending,
    phases,
    pipeline,
    signalled,
)
from support.ptx.hopper import SCHEDULES, run
from support.ptx.snippets import at, integers


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_buffer_passes_from_warp_to_warp(rng, schedule):
    source, out = integers(rng, np.uint32, 160), np.zeros(160, np.uint32)
    run(pipeline(), {"a": source, "out": out}, threads=64, shared=SHARED,
        options=Options(schedule=schedule, checks=True, seed=int(rng.integers(99))))  # fmt: skip
    np.testing.assert_array_equal(out, source)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("missing", ["empty", "full"])
@pytest.mark.differs_on_hardware("it reads what is not there yet")
def test_a_wait_that_is_missing_is_found(rng, missing, schedule):
    source, out = integers(rng, np.uint32, 160), np.zeros(160, np.uint32)
    with pytest.raises(VirtualGpuError) as caught:
        run(pipeline(**{missing: False}), {"a": source, "out": out}, threads=64, shared=SHARED,
            options=Options(schedule=schedule, checks=True))  # fmt: skip
    # A warp that runs ahead by two phases makes the other wait forever.
    # Findings of before are told too.
    kinds = [finding.kind for finding in caught.value.findings]
    assert set(kinds) <= {"race", "uninitialised", "deadlock"}
    assert set(kinds) & {"race", "deadlock"}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_pipeline_that_stands_still_says_where(rng, schedule):
    source, out = integers(rng, np.uint32, 160), np.zeros(160, np.uint32)
    with pytest.raises(DeadlockError) as caught:
        run(pipeline(release=False), {"a": source, "out": out}, threads=64, shared=SHARED,
            options=Options(schedule=schedule))  # fmt: skip
    producer, consumer = sorted(caught.value.findings, key=lambda finding: finding.warp)
    assert (producer.warp, consumer.warp) == (0, 1)
    assert "0x408 (bars[1], phase 0, 0 of 32 arrived, 0 bytes pending)" in producer.message
    assert "0x400 (bars[0], phase 1, 0 of 32 arrived" in consumer.message


@pytest.mark.parametrize("form", ["try_wait", "test_wait"])
@pytest.mark.parametrize(("what", "count", "phase"), COUNTS)
def test_phases_complete_with_their_counts(what, count, phase, form):
    out = np.full(32, 9, np.uint32)
    run(phases(what, count, form), {"out": out}, shared=SHARED, options=Options())
    # Complete is the phase of the parity that is not under way.
    assert (out == (1 if phase else 2)).all()


def test_warps_complete_phases_one_after_another():
    """Four warps arrive at an mbarrier for one of them: four phases."""
    out = np.full(128, 9, np.uint32)
    body = init(32) + "mbarrier.arrive.shared.b64 %d1, [%r1];\nbar.sync 0;\ncvt.u32.u64 %r2, %d1;\n"
    body += "mbarrier.test_wait.parity.shared.b64 %p1, [%r1], 1;\nselp.u32 %r2, 1, 0, %p1;\n"
    run(body + at("out", 4) + "st.global.b32 [%address], %r2;", {"out": out}, threads=128, shared=SHARED,
        options=Options())  # fmt: skip
    assert (out == 1).all()


def test_a_state_names_its_phase():
    """A state asks for the phase in which it was got, also when another has passed since."""
    out = np.full(32, 9, np.uint32)
    body = (
        init(32)
        + """mbarrier.arrive.shared.b64 %d1, [%r1];
    bar.warp.sync -1;
    mbarrier.test_wait.shared.b64 %p1, [%r1], %d1;
    @%p9 mbarrier.arrive.shared.b64 %d2, [%r1];
    bar.warp.sync -1;
    mov.pred %p2, 0;
    @%p9 mbarrier.test_wait.shared.b64 %p2, [%r1], %d2;
    selp.u32 %r2, 1, 0, %p1;
    @%p2 mov.u32 %r2, 7;
    """
    )
    run(body + at("out", 4) + "st.global.b32 [%address], %r2;", {"out": out}, shared=SHARED, options=Options())
    assert (out == 1).all()


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("mov.u32 %r1, bars; mbarrier.arrive.shared.b64 _, [%r1];", "was not initialised"),
        (init(1) + "@%p9 mbarrier.inval.shared.b64 [%r1]; bar.sync 0; mbarrier.arrive.shared.b64 _, [%r1];",
         "was not initialised"),
        ("mov.u32 %r1, bars; mbarrier.init.shared.b64 [%r1], 0;", "for 0 arrivals"),
        (init(16) + "mbarrier.arrive.shared.b64 _, [%r1];", r"32 arrivals, more than mbarrier 0x400 of CTA .* waits"),
        ("mov.u32 %r1, bars; mbarrier.init.shared.b64 [%r1+4], 1;", "multiple of 8"),
        ("mov.u32 %r1, bars; mapa.shared::cluster.u32 %r2, %r1, 2; "
         "st.shared::cluster.b32 [%r2], %r1;", "names no CTA of a cluster of 2"),
    ],
)  # fmt: skip
def test_faults(body, what):
    with pytest.raises(FaultError, match=what):
        run(body, {"out": np.zeros(32, np.uint32)}, ctas=2, cluster=2, shared=SHARED)


@pytest.mark.differs_on_hardware("nothing orders the use of the mbarrier behind its initialisation")
def test_an_mbarrier_must_be_known_before_it_is_used():
    body = (
        init(32).replace("bar.sync 0;", "@%p1 bra END; setp.ne.u32 %p1, %warp, 0;")
        + """
    mov.u32 %r3, 0;
    DELAY:
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p2, %r3, 5;
    @%p2 bra DELAY;
    mbarrier.arrive.shared.b64 _, [%r1];
    END:
    """
    )
    with pytest.raises(CheckError, match="initialised, and nothing orders the two"):
        run(body, {"out": np.zeros(64, np.uint32)}, threads=64, shared=SHARED)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ctas_of_a_cluster_reach_each_other(schedule):
    out = np.zeros(4 * 64, np.uint32)
    run(cluster(), {"out": out}, threads=64, ctas=4, cluster=2, shared=SHARED,
        options=Options(schedule=schedule, checks=True))  # fmt: skip
    np.testing.assert_array_equal(out, np.arange(256) ^ 64)


@pytest.mark.parametrize(
    ("change", "kind", "what"),
    [({"fence": ""}, "race", "whose initialisation no fence"), ({"last": False}, None, ""),
     ({"waits": False}, "race", "wrote it")],
)  # fmt: skip
@pytest.mark.differs_on_hardware("it reads what is not there yet")
def test_what_a_cluster_must_wait_for(change, kind, what):
    out = np.zeros(4 * 64, np.uint32)

    def launch():
        run(cluster(**change), {"out": out}, threads=64, ctas=4, cluster=2, shared=SHARED)

    if kind is None:
        # The wait for the own mbarrier says that the other is done with this CTA.
        launch()
        return
    with pytest.raises(CheckError, match=what) as caught:
        launch()
    assert kind in {finding.kind for finding in caught.value.findings}


RELAXED = ("barrier.cluster.arrive.aligned", "barrier.cluster.arrive.relaxed.aligned")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_fence_of_initialisations_needs_no_more_than_a_relaxed_arrival(schedule):
    out = np.zeros(4 * 64, np.uint32)
    # Without the barrier of the CTA each warp knows of the initialisation from the cluster's alone.
    body = cluster().replace(*RELAXED).replace("bar.sync 0;", "")
    run(body, {"out": out}, threads=64, ctas=4, cluster=2, shared=SHARED,
        options=Options(schedule=schedule, checks=True))  # fmt: skip
    np.testing.assert_array_equal(out, np.arange(256) ^ 64)


def test_a_relaxed_arrival_passes_on_no_initialisation_without_the_fence():
    body = cluster(fence="").replace(*RELAXED)
    with pytest.raises(CheckError, match="initialised, and nothing orders the two"):
        run(body, {"out": np.zeros(256, np.uint32)}, threads=64, ctas=4, cluster=2, shared=SHARED)


def test_a_relaxed_arrival_passes_on_nothing_else():
    """Another CTA's word, written before the fence, and an mbarrier made after it."""
    body = init(64) + "mov.u32 %r2, data;\nst.shared.b32 [%r2], 1;\nfence.mbarrier_init.release.cluster;\n"
    meet = "barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;\n"
    other = "mov.u32 %r10, %cluster_ctarank;\nxor.b32 %r11, %r10, 1;\nmapa.shared::cluster.u32 %r3, {}, %r11;\n"
    last = "barrier.cluster.arrive;\nbarrier.cluster.wait;\n"
    arrays = {"out": np.zeros(64, np.uint32)}
    with pytest.raises(CheckError, match="wrote it"):
        run(body + meet + other.format("%r2") + "ld.shared::cluster.b32 %r5, [%r3];\n" + last, arrays,
            ctas=2, cluster=2, shared=SHARED)  # fmt: skip
    late = "@%p9 mbarrier.init.shared.b64 [%r1+16], 64;\n"
    arrive = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3+16];\n"
    with pytest.raises(CheckError, match="initialised, and nothing orders the two"):
        run(body + late + meet + other.format("%r1") + arrive + last, arrays, ctas=2, cluster=2, shared=SHARED)


@pytest.mark.differs_on_hardware("a CTA uses the memory of one that may have ended")
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_arrivals_at_ctas_that_may_have_ended(schedule):
    body = (
        init(1)
        + """fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    mov.u32 %r10, %cluster_ctarank;
    setp.eq.u32 %p1, %r10, 0;
    mapa.shared::cluster.u32 %r4, %r1, 0;
    and.pred %p1, %p1, %p9;
    not.pred %p1, %p1;
    setp.eq.and.u32 %p2, %tid, 0, %p1;
    @%p2 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r4];
    """
    )
    with pytest.raises(CheckError, match="may all have ended before") as caught:
        run(body, {"out": np.zeros(64, np.uint32)}, ctas=2, cluster=2, shared=SHARED,
            options=Options(schedule=schedule, checks=True))  # fmt: skip
    assert {finding.kind for finding in caught.value.findings} == {"unfinished"}


def test_a_cluster_barrier_names_who_is_missing():
    body = "mov.u32 %r10, %cluster_ctarank;\nsetp.eq.u32 %p1, %r10, 1;\n@%p1 bar.sync 1, 64;\n"
    with pytest.raises(DeadlockError, match=r"barrier of its cluster; missing: \(1, 0, 0\) warp 0"):
        run(body + "barrier.cluster.arrive;\nbarrier.cluster.wait;", {"out": np.zeros(4, np.uint32)}, ctas=2, cluster=2)


@pytest.mark.parametrize(
    ("body", "what"),
    [("barrier.cluster.arrive;barrier.cluster.arrive;", "again"), ("barrier.cluster.wait;", "without having arrived")],
)
def test_cluster_barriers_in_turn(body, what):
    with pytest.raises(FaultError, match=what):
        run(body, {"out": np.zeros(4, np.uint32)}, ctas=2, cluster=2)


@pytest.mark.parametrize("words", [1, 2, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_asynchronous_stores(schedule, words):
    out = np.zeros((128, 4), np.uint32)
    run(async_stores(words=words), {"out": out}, threads=64, ctas=2, cluster=2, shared=SHARED,
        options=Options(schedule=schedule, checks=True))  # fmt: skip
    np.testing.assert_array_equal(out, (np.arange(128) ^ 64)[:, None] + [0, 1000, 0, 1000])


@pytest.mark.differs_on_hardware("it reads what is not there yet")
@pytest.mark.parametrize("words", [1, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_asynchronous_stores_that_nobody_waits_for(schedule, words):
    out = np.zeros((128, 4), np.uint32)
    with pytest.raises(CheckError, match="asynchronous store wrote it") as caught:
        run(async_stores(waits=False, words=words), {"out": out}, threads=64, ctas=2, cluster=2, shared=SHARED,
            options=Options(schedule=schedule, checks=True))  # fmt: skip
    assert {finding.kind for finding in caught.value.findings} >= {"unfinished"}


def test_an_asynchronous_store_tells_an_mbarrier_beside_it():
    with pytest.raises(FaultError, match="are in different CTAs"):
        run(async_stores(target="%r10"), {"out": np.zeros((128, 4), np.uint32)}, threads=64, ctas=2, cluster=2,
            shared=SHARED)  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("counted", [True, False])
def test_copies_tell_an_mbarrier(rng, counted, schedule):
    source, out = integers(rng, np.uint32, 256), np.zeros(256, np.uint32)
    run(signalled(counted), {"a": source, "out": out}, threads=64, shared=SHARED,
        options=Options(schedule=schedule, checks=True, seed=int(rng.integers(99))))  # fmt: skip
    np.testing.assert_array_equal(out, source)


@pytest.mark.differs_on_hardware("it reads what is not there yet")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("change", [{"waits": False}, {"signals": False}], ids=str)
def test_copies_of_which_no_mbarrier_tells(rng, change, schedule):
    source, out = integers(rng, np.uint32, 256), np.zeros(256, np.uint32)
    with pytest.raises(CheckError) as caught:
        run(signalled(**change), {"a": source, "out": out}, threads=64, shared=SHARED,
            options=Options(schedule=schedule, checks=True))  # fmt: skip
    kinds = {finding.kind for finding in caught.value.findings}
    assert kinds - {"uninitialised"} == ({"race"} if "waits" in change else {"race", "unfinished"})


@pytest.mark.parametrize(("what", "count"), PENDING)
def test_what_a_state_waited_for(what, count):
    out = np.zeros(32, np.uint32)
    run(pending(what), {"out": out}, shared=SHARED)
    assert out[0] == count


def test_states_of_lanes_that_arrive_together():
    out = np.zeros(32, np.uint32)
    body = init(32) + "mbarrier.arrive.shared.b64 %d1, [%r1];\nmbarrier.pending_count.b64 %r2, %d1;\n"
    run(body + at("out", 4) + "st.global.b32 [%address], %r2;", {"out": out}, shared=SHARED)
    np.testing.assert_array_equal(np.sort(out), np.arange(1, 33))


def test_arrivals_that_say_they_complete_nothing():
    with pytest.raises(FaultError, match="must not complete a phase complete that of mbarrier 0x400"):
        run(pending("mbarrier.arrive.noComplete.shared.b64 %d1, [%r1], 5;"), {"out": np.zeros(32, np.uint32)},
            shared=SHARED)  # fmt: skip
