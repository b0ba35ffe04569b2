"""Bulk copies: boxes of tensors of 1 to 5 directions, all swizzles, outside of the tensor, multicast, reductions."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gemmule.core.dtype import dtype_named
from gemmule.core.errors import ArgumentError
from gemmule.core.launch import TensorMapParam
from gemmule.vgpu import CheckError, Counter, Options
from gemmule.vgpu.ptx.errors import PtxError
from gemmule.vgpu.tensor_map import combined, rounded_to_tf32
from support.ptx.copies import (
    COMMIT,
    EXPECT,
    INIT,
    LOAD,
    SHARED,
    STORE,
    expected_box,
    into_shared,
    map_of,
    names,
    out_of_shared,
    reduced_piece,
    swizzle_place,
)
from support.ptx.hopper import SCHEDULES, run, wait

CASES = [
    # shape, padding of rows, dtype, box (first direction first), where, swizzle
    ((100,), 0, "float32", (64,), (16,), 0),
    ((100,), 0, "float32", (64,), (60,), 0),
    ((40, 72), 8, "float16", (64, 16), (0, 8), 128),
    ((40, 72), 8, "float16", (64, 16), (32, 30), 128),
    ((40, 72), 0, "float16", (32, 16), (-8, -5), 64),
    ((40, 72), 0, "float16", (16, 40), (64, 5), 32),
    ((40, 70), 2, "float16", (64, 32), (8, 20), 128),
    ((9, 20, 48), 0, "int8", (32, 8, 4), (32, 15, 7), 32),
    ((3, 5, 7, 12), 0, "float32", (8, 4, 3, 2), (8, 4, 3, 1), 0),
    ((3, 3, 4, 5, 8), 0, "float64", (4, 3, 2, 2, 3), (2, 3, 3, -1, 1), 32),
]

#: The hardware stores no box whose rows begin before those of the tensor.
STORED = [case for case in CASES if case[4][0] >= 0]


def array_of(rng, shape, padding, dtype):
    whole = rng.integers(1, 100, (*shape[:-1], shape[-1] + padding)).astype(dtype)
    return whole[..., : shape[-1]]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("shape", "padding", "dtype", "box", "place", "swizzle"), CASES)
def test_loads(rng, shape, padding, dtype, box, place, swizzle, schedule):
    source = array_of(rng, shape, padding, dtype)
    size = int(np.prod(box)) * source.itemsize
    out = np.full(size, 77, np.uint8)
    body = INIT + EXPECT.replace("BYTES", str(size)) + LOAD.format(rank=len(shape), map=names("a", place))
    body += wait("%r1", 0) + out_of_shared("out", size)
    run(body, {"a": source, "out": out}, maps=(map_of("a", source, box, swizzle),), threads=64, shared=SHARED,
        options=Options(schedule=schedule, checks=True))  # fmt: skip
    np.testing.assert_array_equal(out, expected_box(source, box, place, swizzle))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("shape", "padding", "dtype", "box", "place", "swizzle"), STORED)
def test_stores(rng, shape, padding, dtype, box, place, swizzle, schedule):
    target = array_of(rng, shape, padding, dtype)
    before = target.copy()
    size = int(np.prod(box)) * target.itemsize
    given = rng.integers(1, 100, size // target.itemsize).astype(dtype)
    image = given.view(np.uint8)
    body = INIT + into_shared("image", size) + "fence.proxy.async.shared::cta;\nbar.sync 0;\n"
    body += STORE.format(rank=len(shape), map=names("d", place)) + COMMIT + "cp.async.bulk.wait_group 0;\n"
    run(body, {"d": target, "image": image}, maps=(map_of("d", target, box, swizzle),), threads=64, shared=SHARED,
        options=Options(schedule=schedule, checks=True))  # fmt: skip
    # What lies in shared memory must be what a load of the result would bring.
    inside = expected_box(np.ones_like(before, np.uint8), box, place, 0) != 0
    brought = expected_box(target, box, place, swizzle)
    places = np.array([swizzle_place(i * target.itemsize, swizzle) // target.itemsize for i in range(len(given))])
    np.testing.assert_array_equal(brought.view(given.dtype)[places][inside], given[places][inside])
    outside = np.ones(target.shape, np.bool_)
    cut = tuple(slice(max(at, 0), max(at + side, 0)) for at, side in zip(place[::-1], box[::-1], strict=True))
    outside[cut] = False
    np.testing.assert_array_equal(target[outside], before[outside])


REDUCTIONS = [
    ("add", "float32", np.add), ("add", "float16", np.add), ("min", "int32", np.minimum),
    ("max", "float16", np.maximum),
    ("and", "int32", np.bitwise_and), ("or", "int32", np.bitwise_or), ("xor", "int32", np.bitwise_xor),
]  # fmt: skip


@pytest.mark.parametrize(("name", "dtype", "function"), REDUCTIONS)
def test_reductions(rng, name, dtype, function):
    target = rng.integers(-50, 50, (20, 24)).astype(dtype)
    before = target.copy()
    box = (16, 8)
    given = rng.integers(-50, 50, (8, 16)).astype(dtype)
    size = given.nbytes
    reduce = STORE.replace("cp.async", "cp.reduce.async").replace("shared::cta.", f"shared::cta.{name}.")
    body = INIT + into_shared("image", size) + "fence.proxy.async;\nbar.sync 0;\n"
    body += reduce.format(rank=2, map=names("d", (16, 5))) + COMMIT + "cp.async.bulk.wait_group 0;\n"
    run(body, {"d": target, "image": given.reshape(-1).view(np.uint8)}, maps=(map_of("d", target, box),), shared=SHARED)
    before[5:13, 16:24] = function(before[5:13, 16:24], given[:, :8])
    np.testing.assert_array_equal(target, before)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_multicast(rng, schedule):
    """Each CTA of a cluster of two brings half of a box for both."""
    source = rng.integers(0, 99, (16, 64)).astype(np.float16)
    out = np.zeros((2, 2048), np.uint8)
    load = LOAD.replace("bytes [", "bytes.multicast::cluster [").replace("[%r1];", "[%r1], %h1;").replace("%r2", "%r5")
    body = (
        INIT
        + EXPECT.replace("BYTES", "2048")
        + """
    mov.u16 %h1, 3;
    mov.u32 %r3, %cluster_ctarank;
    shl.b32 %r4, %r3, 3;
    mad.lo.u32 %r5, %r3, 1024, %r2;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    """
        + load.format(rank=2, map="%m_a, {0, %r4}")
        + wait("%r1", 0)
    )
    body += "mul.wide.u32 %d1, %r3, 2048;\nadd.u64 %p_out, %p_out, %d1;\n" + out_of_shared("out", 2048)
    body += "barrier.cluster.arrive;\nbarrier.cluster.wait;"
    run(body, {"a": source, "out": out}, maps=(map_of("a", source, (64, 8), 128),), ctas=2, cluster=2, shared=SHARED,
        options=Options(schedule=schedule, checks=True))  # fmt: skip
    for half, at in ((slice(1024), (0, 0)), (slice(1024, None), (0, 8))):
        for cta in (0, 1):
            np.testing.assert_array_equal(out[cta, half], expected_box(source, (64, 8), at, 128))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_pieces(rng, schedule):
    """Memory in one piece into shared memory, and out of it to another place."""
    source, out = rng.integers(0, 99, 640).astype(np.uint8), np.zeros(640, np.uint8)
    body = (
        INIT
        + EXPECT.replace("BYTES", "512")
        + """
    add.u64 %d1, %p_a, 64;
    @%p9 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d1], 512, [%r1];
    """
        + wait("%r1", 0)
        + """
    add.u64 %d2, %p_out, 16;
    @%p9 cp.async.bulk.global.shared::cta.bulk_group [%d2], [%r2], 512;
    """
        + COMMIT
        + "cp.async.bulk.wait_group.read 0;"
    )
    run(body, {"a": source, "out": out}, shared=SHARED, options=Options(schedule=schedule, checks=True))
    np.testing.assert_array_equal(out[16:528], source[64:576])
    assert not out[:16].any()
    assert not out[528:].any()


PIECES = [
    ("add", "u32", np.uint32, np.add), ("add", "s32", np.int32, np.add), ("add", "u64", np.uint64, np.add),
    ("add", "f32", np.float32, np.add), ("add", "f64", np.float64, np.add), ("add.noftz", "f16", np.float16, np.add),
    ("min", "s64", np.int64, np.minimum), ("max", "u32", np.uint32, np.maximum), ("max", "f16", np.float16, np.maximum),
    ("and", "b32", np.uint32, np.bitwise_and), ("or", "b64", np.uint64, np.bitwise_or),
    ("xor", "b32", np.uint32, np.bitwise_xor),
    ("inc", "u32", np.uint32, lambda old, new: np.where(old >= new, 0, old + 1)),
    ("dec", "u32", np.uint32, lambda old, new: np.where((old == 0) | (old > new), new, old - 1)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind", "dtype", "function"), PIECES, ids=[f"{name}-{kind}" for name, kind, *_ in PIECES]
)
def test_reductions_of_pieces(rng, name, kind, dtype, function):
    low = 0 if np.dtype(dtype).kind == "u" else -50
    target, given = rng.integers(low, 50, 64).astype(dtype), rng.integers(low, 50, 32).astype(dtype)
    before = target.copy()
    run(reduced_piece(given.nbytes, name, kind), {"d": target, "image": given.view(np.uint8)}, shared=SHARED)
    at = 16 // before.itemsize
    before[at : at + 32] = function(before[at : at + 32], given)
    np.testing.assert_array_equal(target, before)


@pytest.mark.parametrize(
    ("name", "kind", "what"),
    [("add", "s64", "combined by .min, .max"), ("inc", "s32", "combined by"), ("add", "f16", ".noftz goes with"),
     ("min.noftz", "f16", ".noftz goes with")],
)  # fmt: skip
def test_reductions_that_there_are_not(name, kind, what):
    with pytest.raises(PtxError, match=what):
        run(reduced_piece(64, name, kind), {"d": np.zeros(32, np.uint32), "image": np.zeros(64, np.uint8)},
            shared=SHARED)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_nan_in_reductions(dtype):
    """A number is less, and more, than NaN; NaN of a sum is one for all."""
    kind = dtype_named(dtype).numpy()
    old, new = (np.array(values, kind) for values in ([1, np.nan, np.nan, 3], [np.nan, 2, np.nan, 4]))
    old.view(np.uint16)[1] |= 0x8001
    one = np.array([0x7FFF], np.uint16).view(kind)[0]
    for operation, expected in (("min", [1, 2, one, 3]), ("max", [1, 2, one, 4]), ("add", [one, one, one, 7])):
        found = combined(old, new, operation)
        np.testing.assert_array_equal(found.view(np.uint16), np.array(expected, kind).view(np.uint16))


def test_nan_becomes_one_in_tf32():
    bits = np.array([0x7FC00001, 0xFF800001, 0xFF800000, 0x7F7FFFFF], np.uint32)
    np.testing.assert_array_equal(rounded_to_tf32(bits), [0x7FFFE000, 0x7FFFE000, 0xFF800000, 0x7F800000])


def test_lanes_of_a_warp_that_want_the_same_get_it_once(rng):
    source, out = rng.integers(0, 99, (8, 64)).astype(np.float16), np.zeros(1024, np.uint8)
    body = INIT + EXPECT.replace("BYTES", "1024") + LOAD.format(rank=2, map=names("a", (0, 0))).replace("@%p9 ", "")
    body, maps = body + wait("%r1", 0) + out_of_shared("out", 1024), (map_of("a", source, (64, 8), 128),)
    run(body, {"a": source, "out": out}, maps=maps, shared=SHARED, options=Options())
    np.testing.assert_array_equal(out, expected_box(source, (64, 8), (0, 0), 128))
    # PTX does not promise it.
    with pytest.raises(CheckError, match=r"32 lanes of the warp issue the same TMA load, .* one thread must"):
        run(body, {"a": source, "out": out}, maps=maps, shared=SHARED, options=Options(checks=True))


@pytest.mark.differs_on_hardware("which CTA writes last is open")
def test_ctas_that_write_the_same_box(rng):
    target, image = np.zeros((8, 64), np.float16), np.zeros(1024, np.uint8)
    body = INIT + into_shared("image", 1024) + "fence.proxy.async;\nbar.sync 0;\n"
    body += STORE.format(rank=2, map="%m_d, {0, %r3}") + COMMIT + "cp.async.bulk.wait_group.read 0;"

    def launch(shift):
        text = f"shl.b32 %r3, %cta, {shift};\n" + body
        run(text, {"d": target, "image": image}, maps=(map_of("d", target, (64, 4), 128),), ctas=2, shared=SHARED)

    # Of each CTA four rows of the eight; or the second's begin one row behind the first's.
    launch(2)
    with pytest.raises(
        CheckError, match=r"writes 128 bytes at byte 128 of operand d .*another warp writes it at the same time"
    ):
        launch(0)


def test_counts_of_boxes(rng):
    """Of a box of 8 rows of 128 bytes, 5 rows of 100 bytes are inside: 4 sectors each."""
    source, out = rng.integers(0, 99, (5, 56)).astype(np.float16)[:, :50], np.zeros(1024, np.uint8)
    counter = Counter()
    body = INIT + EXPECT.replace("BYTES", "1024") + LOAD.format(rank=2, map=names("a", (0, 0))) + wait("%r1", 0)
    run(body + out_of_shared("out", 1024), {"a": source, "out": out}, maps=(map_of("a", source, (64, 8), 128),),
        shared=SHARED, observers=(counter,))  # fmt: skip
    (row,) = [row for row in counter.counts.instructions if row.text.find("cp.async.bulk.tensor") >= 0]
    assert (row.requests, row.bytes, row.sectors) == (1, 500, 20)


def test_float32_is_rounded_to_tf32(rng):
    source = (rng.standard_normal((8, 32)) * np.exp2(rng.integers(-140, 127, (8, 32)))).astype(np.float32)
    source[0, :6] = [0.0, -0.0, np.inf, -np.inf, 1 + 2.0**-10 + 2.0**-12, -(1 - 2.0**-12)]
    out = np.zeros(256, np.float32)
    one = dataclasses.replace(map_of("a", source, (32, 8)), tf32=True)
    body = INIT + EXPECT.replace("BYTES", "1024") + LOAD.format(rank=2, map=names("a", (0, 0))) + wait("%r1", 0)
    run(body + out_of_shared("out", 1024), {"a": source, "out": out}, maps=(one,), shared=SHARED)
    # 10 bits behind the first, or fewer for what is subnormal.
    wide = source.reshape(-1).astype(np.float64)
    step = np.exp2(np.maximum(np.floor(np.log2(np.abs(wide, where=wide != 0, out=np.ones(256)))), -126) - 10)
    finite = np.isfinite(wide)
    expected = np.where(finite, np.round(np.where(finite, wide, 0) / step) * step, wide)
    np.testing.assert_array_equal(out.astype(np.float64), expected.astype(np.float32).astype(np.float64))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_what_is_outside_may_be_nan(rng, dtype):
    source = rng.integers(1, 100, (5, 14)).astype(dtype_named(dtype).numpy())
    box = (8, 8)
    out = np.zeros((8, 8), source.dtype)
    body = INIT + EXPECT.replace("BYTES", str(out.nbytes)) + LOAD.format(rank=2, map=names("a", (8, -1)))
    padded = np.zeros((5, 16), source.dtype)
    padded[:, :14] = source
    one = dataclasses.replace(map_of("a", padded[:, :14], box), nan=True)
    arrays = {"a": padded[:, :14], "out": out.reshape(-1).view(np.uint8)}
    run(body + wait("%r1", 0) + out_of_shared("out", out.nbytes), arrays, maps=(one,), shared=SHARED)
    expected = np.full((8, 8), np.nan)
    expected[1:6, :6] = source[:, 8:]
    np.testing.assert_array_equal(out.astype(np.float64), expected)
    # The hardware has one pattern for all types.
    assert (out[np.isnan(out)].view(np.uint16) == 0x7FF7).all()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"dtype": dtype_named("int8"), "nan": True, "swizzle": 64}, "a type of float64"),
        ({"swizzle": 48}, "a swizzle of 0, 32, 64 or 128"), ({"box": (64, 300)}, "sides of 1 to 256"),
        ({"box": (4, 8)}, "multiples of 16 bytes in the first"), ({"pitches": (100,)}, "multiples of 16"),
        ({"extents": (64, 9)}, "reaches to byte 1151 of operand a"), ({"swizzle": 64}, "as wide as its swizzle"),
        ({"offset": 8}, "multiple of 16"), ({"offset": 16}, "reaches to byte 1039 of operand a"),
        ({"extents": (64, 8, 1)}, "1 to 5 directions"),
    ],
)  # fmt: skip
def test_maps_that_the_driver_would_refuse(rng, change, what):
    fields = {"operand": "a", "dtype": dtype_named("float16"), "extents": (64, 8), "pitches": (128,), "box": (64, 8),
              "swizzle": 128} | change  # fmt: skip
    with pytest.raises(ArgumentError, match=what):
        run(
            INIT,
            {"a": rng.integers(0, 99, (8, 64)).astype(np.float16)},
            maps=(TensorMapParam(**fields),),
            shared=SHARED,
        )
