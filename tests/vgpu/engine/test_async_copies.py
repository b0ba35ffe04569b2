"""cp.async: groups, waits, zero fill, and the schedules of completion."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.vgpu import CheckError, FaultError, Options
from support.ptx.snippets import at, integers, run

BUFFER = ".shared .align 16 .b8 buffer[8192];"
SCHEDULES = ["late", "eager", "random"]


def copies(tail, size=4, way="ca", wait="cp.async.commit_group;\ncp.async.wait_group 0;"):
    return (
        at("a", size)
        + f"""mov.u32 %r1, buffer;
    mad.lo.u32 %r3, %tid, {size}, %r1;
    {tail.replace("COPY", f"cp.async.{way}.shared.global [%r3], [%address], {size}")}
    {wait}
"""
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("size", "way"), [(4, "ca"), (8, "ca"), (16, "ca"), (16, "cg")])
def test_sizes(rng, size, way, schedule):
    words = size // 4
    source, out = integers(rng, np.uint32, 64 * words), np.zeros(64 * words, np.uint32)
    back = "".join(f"ld.shared.b32 %r5, [%r3+{4 * i}];st.global.b32 [%address+{4 * i}], %r5;" for i in range(words))
    body = copies("COPY;", size, way) + at("out", size) + back
    run(body, {"a": source, "out": out}, 64, shared=BUFFER, options=Options(schedule=schedule, checks=True))
    np.testing.assert_array_equal(out, source)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("form", ["%r6", "%p1", "!%p2"])
def test_what_is_not_read_is_zero(rng, form, schedule):
    """A source size of 0, or a predicate to ignore the source: the address may then lie anywhere."""
    source, out = integers(rng, np.uint32, 64), np.full(64, 7, np.uint32)
    prepare = """and.b32 %r5, %tid, 1;
    setp.ne.u32 %p1, %r5, 0;
    not.pred %p2, %p1;
    selp.u32 %r6, 0, 4, %p1;
    @%p1 mov.u64 %address, 1;
    COPY, """
    body = copies(prepare + form + ";") + at("out", 4) + "ld.shared.b32 %r5, [%r3];st.global.b32 [%address], %r5;"
    run(body, {"a": source, "out": out}, 64, shared=BUFFER, options=Options(schedule=schedule, checks=True))
    np.testing.assert_array_equal(out, np.where(np.arange(64) % 2, 0, source))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_part_of_the_source_is_read(rng, schedule):
    """Lane i reads i mod 17 bytes of 16, the last of them up to the very end of the array."""
    source, out = rng.integers(1, 256, 32 * 16, np.uint8), np.zeros((32, 16), np.uint8)
    body = "rem.u32 %r6, %tid, 17;" + copies("COPY, %r6;", 16, "cg") + at("out", 16)
    body += "ld.shared.v4.b32 {%r5, %r7, %r8, %r9}, [%r3];st.global.v4.b32 [%address], {%r5, %r7, %r8, %r9};"
    options = Options(schedule=schedule, checks=True)
    run(body, {"a": source[: 31 * 16 + 31 % 17], "out": out}, 32, shared=BUFFER, options=options)
    kept = np.arange(16) < (np.arange(32) % 17)[:, None]
    np.testing.assert_array_equal(out, np.where(kept, source.reshape(32, 16), 0))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_groups_complete_in_order(rng, schedule):
    source, out = integers(rng, np.uint32, 192), np.zeros(64, np.uint32)
    body = (
        at("a", 4)
        + """mov.u32 %r1, buffer;
    mad.lo.u32 %r3, %tid, 4, %r1;
    cp.async.ca.shared.global [%r3], [%address], 4;
    cp.async.commit_group;
    cp.async.ca.shared.global [%r3+256], [%address+256], 4;
    cp.async.commit_group;
    cp.async.ca.shared.global [%r3+512], [%address+512], 4;
    cp.async.commit_group;
    cp.async.wait_group 2;
    ld.shared.b32 %r5, [%r3];
    cp.async.wait_group 1;
    ld.shared.b32 %r6, [%r3+256];
    cp.async.wait_all;
    ld.shared.b32 %r7, [%r3+512];
    add.u32 %r5, %r5, %r6;
    add.u32 %r5, %r5, %r7;"""
        + at("out", 4)
        + "st.global.b32 [%address], %r5;"
    )
    run(body, {"a": source, "out": out}, 64, shared=BUFFER, options=Options(schedule=schedule, checks=True))
    np.testing.assert_array_equal(out, source.reshape(3, 64).sum(axis=0, dtype=np.uint32))


@pytest.mark.differs_on_hardware("it reads what copies have not brought yet")
def test_late_copies_show_a_missing_wait(rng):
    source = integers(rng, np.uint32, 64)
    results = {}
    for schedule in ("late", "eager"):
        out = np.zeros(64, np.uint32)
        body = copies("COPY;", wait="cp.async.commit_group;") + at("out", 4)
        body += "ld.shared.b32 %r5, [%r3];st.global.b32 [%address], %r5;"
        run(body, {"a": source, "out": out}, 64, shared=BUFFER, options=Options(schedule=schedule))
        results[schedule] = out
    np.testing.assert_array_equal(results["eager"], source)
    # Nothing was copied yet: shared memory holds what it held.
    assert (results["late"] == 0xFFFFFFFF).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("wait", "kinds"),
    [
        ("", {"race", "unfinished"}),
        ("cp.async.commit_group;", {"race", "unfinished"}),
        ("cp.async.wait_group 0;", {"race", "unfinished"}),
        ("cp.async.commit_group;\ncp.async.wait_group 1;", {"race", "unfinished"}),
        ("cp.async.commit_group;\ncp.async.wait_group 0;", {"race"}),
        ("cp.async.commit_group;\nbar.sync 0;\ncp.async.wait_group 0;", {"race"}),
        ("cp.async.commit_group;\ncp.async.wait_group 0;\nbar.sync 0;", set()),
        ("cp.async.wait_all;\nbar.sync 0;", set()),
    ],
)
@pytest.mark.differs_on_hardware("it reads what copies have not brought yet")
def test_the_check_finds_missing_waits_in_every_schedule(rng, wait, kinds, schedule):
    """Every warp reads what another one copied."""
    source, out = integers(rng, np.uint32, 64), np.zeros(64, np.uint32)
    body = copies("COPY;", wait=wait) + "xor.b32 %r3, %r3, 128;" + at("out", 4)
    body += "ld.shared.b32 %r5, [%r3];st.global.b32 [%address], %r5;"
    options = Options(schedule=schedule, checks=True)
    if not kinds:
        run(body, {"a": source, "out": out}, 64, shared=BUFFER, options=options)
        np.testing.assert_array_equal(out, source[np.arange(64) ^ 32])
        return
    with pytest.raises(CheckError) as caught:
        run(body, {"a": source, "out": out}, 64, shared=BUFFER, options=options)
    assert {finding.kind for finding in caught.value.findings} == kinds


def test_overwriting_what_others_still_read(rng):
    source, out = integers(rng, np.uint32, 64), np.zeros(64, np.uint32)
    body = copies("COPY;", wait="cp.async.wait_all;\nbar.sync 0;") + "xor.b32 %r4, %r3, 128;ld.shared.b32 %r5, [%r4];"
    body += ".loc 1 33 0\ncp.async.ca.shared.global [%r3], [%address], 4;\ncp.async.wait_all;"
    body += at("out", 4) + "st.global.b32 [%address], %r5;"
    with pytest.raises(CheckError, match=r"snippet.py:33.*a copy writes 4 bytes.*warp \d read it"):
        run(body, {"a": source, "out": out}, 64, shared=BUFFER)


@pytest.mark.parametrize(
    ("body", "what"),
    [("add.u64 %address, %address, 256;COPY;", "operand a"), ("add.u32 %r3, %r3, 8192;COPY;", "of shared memory"),
     ("add.u64 %address, %address, 2;COPY;", "operand a"), ("mov.u32 %r9, 5;COPY, %r9;", "more than 4")],
)  # fmt: skip
def test_copies_outside_of_memory(body, what):
    with pytest.raises(FaultError, match=what):
        run(copies(body), {"a": np.zeros(64, np.uint32)}, 64, shared=BUFFER)
