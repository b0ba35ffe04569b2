"""Instructions of a whole warp: shuffles, votes, matches, reductions."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.vgpu import CheckError, FaultError
from support.ptx.snippets import at, integers, run

LANE = np.arange(32)


def through(body, source, threads=64):
    """Load %r1, run the body, store %r2."""
    out = np.zeros(len(source), np.uint32)
    body = at("a", 4) + "ld.global.b32 %r1, [%address];" + body + at("out", 4) + "st.global.b32 [%address], %r2;"
    run(body, {"a": source, "out": out}, threads, len(source) // threads)
    return out.reshape(-1, 32)


def expected_shuffle(values, mode, by, clamp):
    mask, limit_bits = clamp >> 8 & 31, clamp & 31
    limit = (LANE & mask) | (limit_bits & ~mask)
    source = {"idx": (LANE & mask) | (by & ~mask), "up": LANE - by, "down": LANE + by, "bfly": LANE ^ by}[mode]
    good = source >= limit if mode == "up" else source <= limit
    return values[:, np.where(good, source, LANE)], good


@pytest.mark.parametrize("width", [32, 8])
@pytest.mark.parametrize("by", [0, 1, 5, 17])
@pytest.mark.parametrize("mode", ["idx", "up", "down", "bfly"])
def test_shuffles(rng, mode, by, width):
    source = integers(rng, np.uint32, 128)
    clamp = (32 - width) << 8 | (0 if mode == "up" else 31)
    got = through(f"shfl.sync.{mode}.b32 %r2|%p1, %r1, {by}, {clamp}, -1;", source)
    expected, good = expected_shuffle(source.reshape(-1, 32), mode, by, clamp)
    np.testing.assert_array_equal(got, expected)
    got = through(f"shfl.sync.{mode}.b32 %r3|%p1, %r1, {by}, {clamp}, -1;\nselp.b32 %r2, 1, 0, %p1;", source)
    np.testing.assert_array_equal(got, np.broadcast_to(good, got.shape))


def test_each_lane_may_ask_for_another(rng):
    source = integers(rng, np.uint32, 64)
    got = through("xor.b32 %r3, %lane, 13;\nshfl.sync.idx.b32 %r2, %r1, %r3, 31, -1;", source)
    np.testing.assert_array_equal(got, source.reshape(-1, 32)[:, LANE ^ 13])


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_votes(rng, share):
    source = (rng.random(128) < share).astype(np.uint32)
    votes = source.reshape(-1, 32) != 0
    start = "setp.ne.u32 %p1, %r1, 0;\n"
    ballot = (votes.astype(np.uint64) << LANE.astype(np.uint64)).sum(axis=1)
    np.testing.assert_array_equal(through(start + "vote.sync.ballot.b32 %r2, %p1, -1;", source)[:, 0], ballot)
    expected = {"all": votes.all(1), "any": votes.any(1), "uni": votes.all(1) | ~votes.any(1)}
    for mode, answer in expected.items():
        got = through(start + f"vote.sync.{mode}.pred %p2, %p1, -1;\nselp.b32 %r2, 1, 0, %p2;", source)
        np.testing.assert_array_equal(got != 0, np.broadcast_to(answer[:, None], got.shape))


def test_matches(rng):
    source = rng.integers(0, 4, 128).astype(np.uint32)
    rows = source.reshape(-1, 32)
    same = ((rows[:, :, None] == rows[:, None, :]).astype(np.uint64) << LANE.astype(np.uint64)).sum(axis=2)
    np.testing.assert_array_equal(through("match.any.sync.b32 %r2, %r1, -1;", source), same)
    source[32:64] = 9
    got = through("match.all.sync.b32 %r2|%p1, %r1, -1;", source)
    assert (got[1] == 0xFFFFFFFF).all()
    assert (got[0] == 0).all()


@pytest.mark.parametrize(
    ("name", "kind", "function"),
    [
        ("add", "u32", np.add), ("min", "s32", np.minimum), ("max", "u32", np.maximum),
        ("and", "b32", np.bitwise_and), ("or", "b32", np.bitwise_or), ("xor", "b32", np.bitwise_xor),
    ],
)  # fmt: skip
def test_reductions(rng, name, kind, function):
    source = integers(rng, np.uint32, 64)
    got = through(f"redux.sync.{name}.{kind} %r2, %r1, -1;", source)
    rows = source.view(np.int32 if kind == "s32" else np.uint32).reshape(-1, 32)
    expected = function.reduce(rows, axis=1, dtype=rows.dtype).view(np.uint32)
    np.testing.assert_array_equal(got, np.broadcast_to(expected[:, None], got.shape))


def test_one_lane_is_elected(rng):
    source = integers(rng, np.uint32, 64)
    got = through("elect.sync %r3|%p1, -1;\nselp.b32 %r2, 1, 0, %p1;", source)
    assert (got.sum(axis=1) == 1).all()


def test_a_part_of_a_warp_exchanges_values(rng):
    source = integers(rng, np.uint32, 64)
    body = """mov.u32 %r2, 5;
    setp.ge.u32 %p1, %lane, 16;
    @%p1 bra SKIP;
    shfl.sync.bfly.b32 %r2, %r1, 3, 31, 0xffff;
    activemask.b32 %r5;
    setp.eq.u32 %p2, %r5, 0xffff;
    selp.b32 %r2, %r2, 0, %p2;
SKIP:
"""
    expected = np.where(LANE < 16, source.reshape(-1, 32)[:, LANE ^ 3], 5)
    np.testing.assert_array_equal(through(body, source), expected)


def test_parted_lanes_meet_where_a_mask_names_them_all():
    """Both sides of a branch come to one shuffle at different times."""
    body = """setp.lt.u32 %p1, %lane, 7;
    mov.u32 %r1, %lane;
    @%p1 bra LESS;
    add.u32 %r1, %r1, 100;
    bra.uni JOIN;
LESS:
    add.u32 %r1, %r1, 200;
JOIN:
    shfl.sync.idx.b32 %r2, %r1, 3, 31, -1;
"""
    assert (through(body, np.zeros(64, np.uint32)) == 203).all()


HALVES = "setp.lt.u32 %p3, %lane, 16;\nselp.b32 %r6, 0x0000ffff, 0xffff0000, %p3;\n"


def test_two_halves_of_a_warp_ask_for_themselves(rng):
    """Both come to the instruction at once, each with its own mask."""
    source = rng.integers(0, 3, 64).astype(np.uint32)
    half = source.reshape(-1, 2, 16)

    def by_half(body):
        got = through(HALVES + body, source).reshape(-1, 2, 16)
        assert (got == got[..., :1]).all()
        return got[..., 0]

    start = "setp.ne.u32 %p1, %r1, 0;\n"
    bit = np.left_shift(1, np.arange(32), dtype=np.int64).reshape(2, 16)
    np.testing.assert_array_equal(by_half("redux.sync.add.u32 %r2, %r1, %r6;"), half.sum(axis=2))
    np.testing.assert_array_equal(by_half("redux.sync.min.u32 %r2, %r1, %r6;"), half.min(axis=2))
    ballot = by_half(start + "vote.sync.ballot.b32 %r2, %p1, %r6;")
    np.testing.assert_array_equal(ballot, ((half != 0) * bit).sum(axis=2))
    for name, answer in (("any", [1, 0]), ("all", [1, 0]), ("uni", [1, 1])):
        asked = by_half(f"vote.sync.{name}.pred %p2, %p3, %r6;\nselp.b32 %r2, 1, 0, %p2;")
        np.testing.assert_array_equal(asked, [answer] * 2)
    elected = by_half("elect.sync %r2|%p1, %r6;")
    np.testing.assert_array_equal(elected, [[0, 16]] * 2)
    got = through(HALVES + "match.any.sync.b32 %r2, %r1, %r6;", source).reshape(-1, 2, 16)
    same = half[..., :, None] == half[..., None, :]
    np.testing.assert_array_equal(got, (same * bit[:, None, :]).sum(axis=3))
    got = through(HALVES + "match.all.sync.b32 %r2|%p1, %r6, %r6;", source).reshape(-1, 2, 16)[..., 0]
    np.testing.assert_array_equal(got, [[0xFFFF, 0xFFFF0000]] * 2)


@pytest.mark.parametrize(
    "instruction",
    [
        "shfl.sync.bfly.b32 %r2, %r1, 1, 31, 0xffff;",
        "vote.sync.ballot.b32 %r2, %p1, 0xffff;",
        "match.any.sync.b32 %r2, %r1, 0xffff;",
        "redux.sync.add.u32 %r2, %r1, 0xffff;",
        "elect.sync %r2|%p1, 0xffff;",
    ],
)
def test_a_lane_must_be_in_its_own_mask(instruction):
    with pytest.raises(FaultError, match="not in its own mask 0x0000ffff") as caught:
        through("setp.eq.u32 %p1, %r1, 0;\n" + instruction, np.zeros(32, np.uint32), 32)
    assert caught.value.findings[0].lanes == tuple(range(16, 32))


def test_lanes_must_agree_on_their_mask():
    with pytest.raises(FaultError, match="come with another mask"):
        through(
            "shl.b32 %r3, 1, %lane;\nor.b32 %r3, %r3, 1;\nredux.sync.add.u32 %r2, %r1, %r3;",
            np.zeros(32, np.uint32),
            32,
        )


@pytest.mark.differs_on_hardware("it uses what is not defined")
def test_a_shuffle_from_a_lane_that_does_not_take_part():
    body = """mov.u32 %r2, 0;
    setp.ge.u32 %p1, %lane, 16;
    @%p1 bra SKIP;
    .loc 1 5 0
    shfl.sync.down.b32 %r3, %r1, 8, 31, 0xffff;
    {}
SKIP:
"""
    with pytest.raises(CheckError, match=r"read at snippet\.py:5 from a lane that does not take part") as caught:
        through(body.format("add.u32 %r2, %r3, 1;"), np.zeros(32, np.uint32), 32)
    assert caught.value.findings[0].lanes == tuple(range(8, 16))
    through(body.format("setp.lt.u32 %p1, %lane, 8;\n@%p1 add.u32 %r2, %r3, 1;"), np.zeros(32, np.uint32), 32)
