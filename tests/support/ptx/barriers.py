"""PTX around mbarriers: a pipeline, counts of arrivals and bytes, clusters, asynchronous stores."""

from __future__ import annotations

from support.ptx.hopper import wait
from support.ptx.snippets import at

SHARED = ".shared .align 8 .b8 bars[64]; .shared .align 16 .b8 data[8192];"
#: Thread 0 makes two mbarriers; then all meet.
INIT = """mov.u32 %r1, bars;
    setp.eq.u32 %p9, %tid, 0;
    @%p9 mbarrier.init.shared.b64 [%r1], COUNT0;
    @%p9 mbarrier.init.shared.b64 [%r1+8], COUNT1;
    bar.sync 0;
"""


def init(first=1, second=1):
    return INIT.replace("COUNT0", str(first)).replace("COUNT1", str(second))


PIPELINE = """
    mov.u32 %r2, data;
    mad.lo.u32 %r2, %lane, 4, %r2;
    mov.u32 %r3, 0;
    mov.u32 %r4, 0;
    setp.ne.u32 %p1, %warp, 0;
    @%p1 bra CONSUMER;
    PRODUCER:
    xor.b32 %r5, %r4, 1;
    EMPTY
    LOAD
    ld.global.b32 %r6, [%address];
    st.shared.b32 [%r2], %r6;
    mbarrier.arrive.shared.b64 _, [%r1];
    add.u32 %r3, %r3, 1;
    xor.b32 %r4, %r4, 1;
    setp.lt.u32 %p2, %r3, 5;
    @%p2 bra PRODUCER;
    bra END;
    CONSUMER:
    FULL
    ld.shared.b32 %r6, [%r2];
    RELEASE
    STORE
    st.global.b32 [%address], %r6;
    add.u32 %r3, %r3, 1;
    xor.b32 %r4, %r4, 1;
    setp.lt.u32 %p2, %r3, 5;
    @%p2 bra CONSUMER;
    END:
"""


def pipeline(empty=True, full=True, release=True):
    """Warp 0 hands five rows of 32 words to warp 1 through one buffer."""
    index = "mad.lo.u32 %r8, %r3, 32, %lane;\n"
    body = PIPELINE.replace("EMPTY", wait("%r1+8", "%r5") if empty else "")
    body = body.replace("FULL", wait("%r1", "%r4") if full else "")
    body = body.replace("RELEASE", "mbarrier.arrive.shared.b64 _, [%r1+8];" if release else "")
    return init(32, 32) + body.replace("LOAD", index + at("a", 4, "%r8")).replace("STORE", index + at("out", 4, "%r8"))


COUNTS = [
    # What 32 lanes do, and the parity of the phase under way afterwards.
    ("mbarrier.arrive.shared.b64 _, [%r1];", 32, 1),
    ("mbarrier.arrive.shared.b64 _, [%r1];", 33, 0),
    ("mbarrier.arrive.release.cta.shared::cta.b64 _, [%r1], 3;", 96, 1),
    ("mbarrier.arrive.shared.b64 _, [%r1], 3;", 97, 0),
    # After the first phase it is for 32 fewer.
    ("mbarrier.arrive_drop.shared.b64 _, [%r1]; mbarrier.arrive.shared.b64 _, [%r1];", 64, 1),
    ("mbarrier.arrive_drop.shared.b64 _, [%r1]; mbarrier.arrive.shared.b64 _, [%r1]; "
     "mbarrier.arrive.shared.b64 _, [%r1];", 64, 0),
    ("@%p9 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 64; bar.warp.sync -1; "
     "mbarrier.arrive.shared.b64 _, [%r1];", 32, 0),
    ("@%p9 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 64; bar.warp.sync -1; "
     "mbarrier.arrive.shared.b64 _, [%r1]; "
     "@%p9 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], 64;", 32, 1),
    ("@%p9 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], 64; bar.warp.sync -1; "
     "@%p9 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 64;", 1, 1),
]  # fmt: skip


CLUSTER = """
    mov.u32 %r10, %cluster_ctarank;
    FENCE
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    xor.b32 %r11, %r10, 1;
    mov.u32 %r2, data;
    mad.lo.u32 %r2, %tid, 4, %r2;
    mapa.shared::cluster.u32 %r3, %r2, %r11;
    mapa.shared::cluster.u32 %r4, %r1, %r11;
    st.shared::cluster.b32 [%r3], %index;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r4];
    WAIT
    ld.shared.b32 %r5, [%r2];
    LAST
"""


def cluster(fence="fence.mbarrier_init.release.cluster;", last=True, waits=True):
    body = init(64) + CLUSTER.replace("FENCE", fence).replace("WAIT", wait("%r1", 0) if waits else "")
    body = body.replace("LAST", "barrier.cluster.arrive;\nbarrier.cluster.wait;" if last else "")
    return body + at("out", 4) + "st.global.b32 [%address], %r5;"


ASYNC_STORES = """
    @%p9 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 1024;
    mov.u32 %r10, %cluster_ctarank;
    fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    xor.b32 %r11, %r10, 1;
    mov.u32 %r2, data;
    mad.lo.u32 %r2, %tid, 16, %r2;
    mapa.shared::cluster.u32 %r3, %r2, %r11;
    mapa.shared::cluster.u32 %r4, %r1, TARGET;
    add.u32 %r6, %index, 1000;
    STORE
    WAIT
    ld.shared.v4.b32 {%r12, %r13, %r14, %r15}, [%r2];
"""


#: By how many words they store at once.
_STORES = {
    4: "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%r3], {%index, %r6, %index, %r6}, [%r4];",
    2: "".join(
        f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r3+{start}], {{%index, %r6}}, [%r4];\n"
        for start in (0, 8)
    ),
    1: "".join(
        f"st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r3+{start}], {word}, [%r4];\n"
        for start, word in ((0, "%index"), (4, "%r6"), (8, "%index"), (12, "%r6"))
    ),
}


def async_stores(waits=True, target="%r11", words=4):
    body = init(1) + ASYNC_STORES.replace("STORE", _STORES[words]).replace(
        "WAIT", wait("%r1", 0) if waits else ""
    ).replace("TARGET", target)
    return body + at("out", 16) + "st.global.v4.b32 [%address], {%r12, %r13, %r14, %r15};"


def phases(what, count, form="test_wait"):
    """Make an mbarrier, do something with it, and store which of the parities is said to be complete."""
    body = init(count) + what + "bar.warp.sync -1;"
    for parity in (0, 1):
        body += f"mbarrier.{form}.parity.shared.b64 %p{1 + parity}, [%r1], {parity};\n"
    body += "selp.u32 %r2, 1, 0, %p1;\nselp.u32 %r3, 2, 0, %p2;\nor.b32 %r2, %r2, %r3;\n"
    return body + at("out", 4) + "st.global.b32 [%address], %r2;"


SIGNALLED = """
    mov.u32 %r2, data;
    mad.lo.u32 %r2, %lane, 16, %r2;
    setp.ne.u32 %p1, %warp, 0;
    @%p1 bra CONSUMER;
    ADDRESS
    cp.async.ca.shared.global [%r2], [%address], 16;
    cp.async.ca.shared.global [%r2+512], [%address+512], 16;
    SIGNAL
    bra END;
    CONSUMER:
    WAIT
    ld.shared.v4.b32 {%r12, %r13, %r14, %r15}, [%r2];
    ld.shared.v4.b32 {%r16, %r17, %r18, %r19}, [%r2+512];
    OUT
    st.global.v4.b32 [%address], {%r12, %r13, %r14, %r15};
    st.global.v4.b32 [%address+512], {%r16, %r17, %r18, %r19};
    END:
"""


def signalled(counted=True, waits=True, signals=True):
    """Warp 0 copies 1024 bytes, and an mbarrier tells warp 1 when they are there; it counts them, or one more."""
    arrive = "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r1];"
    if not counted:
        arrive = arrive.replace(".noinc", "") + "\nmbarrier.arrive.shared.b64 _, [%r1];"
    body = SIGNALLED.replace("SIGNAL", arrive if signals else "mbarrier.arrive.shared.b64 _, [%r1];")
    body = body.replace("ADDRESS", at("a", 16, "%lane")).replace("OUT", at("out", 16, "%lane"))
    return init(32) + body.replace("WAIT", wait("%r1", 0) if waits else "")


#: What one lane does with an mbarrier for five, and what is pending in the last state then.
PENDING = [
    ("mbarrier.arrive.shared.b64 %d1, [%r1];", 5),
    ("mbarrier.arrive.shared.b64 %d1, [%r1], 3;\nmbarrier.arrive.shared.b64 %d1, [%r1];", 2),
    ("mbarrier.arrive.noComplete.release.cta.shared::cta.b64 %d1, [%r1], 4;", 5),
    (
        "mbarrier.arrive.noComplete.shared.b64 %d1, [%r1], 2;\n"
        "mbarrier.arrive_drop.noComplete.shared.b64 %d1, [%r1], 2;",
        3,
    ),
    ("mbarrier.arrive.shared.b64 %d1, [%r1], 5;\nmbarrier.arrive.shared.b64 %d1, [%r1];", 5),
    # After the first phase it is for two fewer.
    ("mbarrier.arrive_drop.shared.b64 %d1, [%r1], 2;\nmbarrier.arrive.shared.b64 %d1, [%r1], 3;\n"
     "mbarrier.arrive.shared.b64 %d1, [%r1];", 3),
]  # fmt: skip


def pending(what):
    """Let one lane use an mbarrier, and store how many arrivals the last state waited for."""
    body = init(5) + "setp.ne.u32 %p1, %tid, 0;\n@%p1 bra END;\n" + what
    body += "\nmbarrier.pending_count.b64 %r2, %d1;\n" + at("out", 4) + "st.global.b32 [%address], %r2;\nEND:"
    return body
