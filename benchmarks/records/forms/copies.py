"""Boxes of tensors, in and out of shared memory: directions, swizzles, types, places, multicast; pieces."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from . import Form, Prepared, random_bits  # isort: skip
from gemmule.core.dtype import DTYPES, DType, Kind, dtype_named
from support.ptx.copies import (
    COMMIT,
    EXPECT,
    INIT,
    LOAD,
    SHARED,
    STORE,
    into_shared,
    map_of,
    names,
    out_of_shared,
)
from support.ptx.hopper import wait

RANKS, SWIZZLES = range(1, 6), (0, 32, 64, 128)
PLACES = ("inside", "beyond the last", "before the first", "outside")
#: Types of tensor maps, which have none of complex numbers.
REAL = tuple(dtype for dtype in DTYPES if dtype.kind is not Kind.COMPLEX)
#: Sides of a box behind the first, and extents of the tensor.
SIDES, EXTENTS = (5, 3, 2, 3), (9, 5, 4, 5)
#: Bytes of a box's rows where there is no swizzle.
PLAIN_ROW = 48
FLOATS = ("float64", "float32", "float16", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Box:
    """A box of a tensor whose rows end anywhere."""

    rank: int
    swizzle: int
    dtype: DType
    where: str

    @property
    def sides(self) -> tuple[int, ...]:
        """Elements of the box, neighbours first."""
        return ((self.swizzle or PLAIN_ROW) // self.dtype.itemsize, *SIDES[: self.rank - 1])

    @property
    def size(self) -> int:
        """Bytes of the box."""
        return int(np.prod(self.sides)) * self.dtype.itemsize

    @property
    def extents(self) -> tuple[int, ...]:
        """Elements of the tensor, neighbours first; rows are no multiple of 16 bytes."""
        return (self.sides[0] + 24 // self.dtype.itemsize + (self.dtype.itemsize < 8), *EXTENTS[: self.rank - 1])

    @property
    def place(self) -> tuple[int, ...]:
        """Where the box begins: in a row at a multiple of 16 bytes."""
        step = 16 // self.dtype.itemsize
        if self.where == "inside":
            return (step, 3, 1, 1, 2)[: self.rank]
        if self.where == "beyond the last":
            first, *others = (extent - side // 2 - 1 for extent, side in zip(self.extents, self.sides, strict=True))
            return (first // step * step, *others)
        if self.where == "before the first":
            return (-step, -2, -1, -1, -1)[: self.rank]
        if self.where == "between 16 bytes":
            return (1, 3, 1, 1, 2)[: self.rank]
        return (-(-self.extents[0] // step) * step + step, *(0,) * (self.rank - 1))

    def tensor(self, random: np.random.RandomState) -> np.ndarray:
        """Return a tensor of any bits, whose rows are padded to a multiple of 16 bytes."""
        item = self.dtype.itemsize
        padded = -(-self.extents[0] * item // 16) * 16 // item
        whole = random_bits(random, (*self.extents[:0:-1], padded), np.dtype(self.dtype.numpy()))
        return whole[..., : self.extents[0]]

    def __str__(self) -> str:
        return f"{self.rank}d, {self.dtype}, swizzle {self.swizzle}, {self.where}"


def load(box: Box, random: np.random.RandomState, *, shift: int = 0, tf32: bool = False, nan: bool = False,
         hint: bool = False, registers: bool = False) -> Prepared:  # fmt: skip
    """Bring a box, `shift` bytes behind the beginning of shared memory."""
    tensor, out = box.tensor(random), np.full(box.size, 77, np.uint8)
    place: Sequence[object] = box.place
    body = INIT + f"add.u32 %r2, %r2, {shift};\n" + EXPECT.replace("BYTES", str(box.size))
    if registers:
        body += "".join(f"mov.b32 %r{40 + i}, {at};\n" for i, at in enumerate(box.place))
        place = [f"%r{40 + i}" for i in range(box.rank)]
    copy = LOAD.format(rank=box.rank, map=names("a", place))
    if hint:
        body += "mov.b64 %d9, 0x14F0000000000000;\n"
        copy = copy.replace("bytes [", "bytes.L2::cache_hint [").replace("[%r1];", "[%r1], %d9;")
    body += copy + wait("%r1", 0) + out_of_shared("out", box.size)
    one = dataclasses.replace(map_of("a", tensor, box.sides, box.swizzle, box.dtype), tf32=tf32, nan=nan)
    return body, {"a": tensor, "out": out}, {"maps": (one,), "threads": 64, "shared": SHARED}


def store(box: Box, random: np.random.RandomState, *, operation: str = "", shift: int = 0,
          ordinary: bool = False) -> Prepared:  # fmt: skip
    """Take a box out of shared memory, or combine it with what is there."""
    tensor, image = box.tensor(random), random_bits(random, (box.size,), np.dtype(np.uint8))
    if ordinary:
        count = box.size // box.dtype.itemsize
        kind = np.dtype(box.dtype.numpy())
        tensor[...] = (random.randn(*tensor.shape) * 9).astype(kind)
        image = (random.randn(count) * 9).astype(kind).view(np.uint8)
    body = INIT + f"add.u32 %r2, %r2, {shift};\n" + into_shared("image", box.size)
    body += "fence.proxy.async.shared::cta;\nbar.sync 0;\n"
    copy = STORE.format(rank=box.rank, map=names("d", box.place))
    if operation:
        copy = copy.replace("cp.async", "cp.reduce.async").replace("shared::cta.", f"shared::cta.{operation}.")
    body += copy + COMMIT + "cp.async.bulk.wait_group 0;\n"
    one = map_of("d", tensor, box.sides, box.swizzle, box.dtype)
    return body, {"d": tensor, "image": image}, {"maps": (one,), "threads": 64, "shared": SHARED}


MULTICAST = """
    mov.u32 %r3, %cluster_ctarank;
    mad.lo.u32 %r5, %r3, 1024, %r2;
    mul.wide.u32 %d5, %r3, 8;
    add.u64 %d5, %p_plan, %d5;
    ld.global.v2.b32 {%r6, %r7}, [%d5];
    cvt.u16.u32 %h1, %r6;
    mul.wide.u32 %d6, %tid, 16;
    mad.lo.u32 %r8, %tid, 16, %r2;
    mov.b32 %r9, 0;
    st.shared.v4.b32 [%r8], {%r9, %r9, %r9, %r9};
    st.shared.v4.b32 [%r8+2048], {%r9, %r9, %r9, %r9};
    fence.proxy.async.shared::cta;
    setp.ne.and.u32 %p3, %r6, 0, %p9;
    @%p9 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], %r7;
    barrier.cluster.arrive;
    barrier.cluster.wait;
"""


def multicast(masks: Sequence[int], piece: bool, random: np.random.RandomState) -> Prepared:
    """Each CTA of a cluster brings a box, or a piece, for those that its mask names."""
    ctas = len(masks)
    source = random_bits(random, (8 * ctas, 64), np.dtype(np.float16))
    expected = [1024 * sum(mask >> rank & 1 for mask in masks) for rank in range(ctas)]
    plan = np.array(list(zip(masks, expected, strict=True)), np.uint32)
    out = np.full((ctas, 4096), 77, np.uint8)
    body = INIT + MULTICAST
    if piece:
        body += "mul.wide.u32 %d7, %r3, 1024;\nadd.u64 %d7, %p_a, %d7;\n@%p3 cp.async.bulk.shared::cluster.global."
        body += "mbarrier::complete_tx::bytes.multicast::cluster [%r5], [%d7], 1024, [%r1], %h1;\n"
    else:
        copy = LOAD.replace("bytes [", "bytes.multicast::cluster [").replace("[%r1];", "[%r1], %h1;")
        body += "shl.b32 %r4, %r3, 3;\n"
        body += copy.replace("%r2", "%r5").replace("%p9", "%p3").format(rank=2, map="%m_a, {0, %r4}")
    body += wait("%r1", 0) + "mul.wide.u32 %d1, %r3, 4096;\nadd.u64 %p_out, %p_out, %d1;\n"
    body += out_of_shared("out", 4096) + "barrier.cluster.arrive;\nbarrier.cluster.wait;"
    how = {
        "maps": (map_of("a", source, (64, 8), 128),),
        "ctas": ctas,
        "cluster": ctas,
        "shared": SHARED,
        "threads": 128,
    }
    return body, {"a": source, "out": out, "plan": plan}, how


def pieces(size: int, random: np.random.RandomState) -> Prepared:
    """Memory in one piece into shared memory, and out of it to another place."""
    source, out = random_bits(random, (size + 96,), np.dtype(np.uint8)), np.full(size + 96, 77, np.uint8)
    body = INIT + EXPECT.replace("BYTES", str(size)) + "add.u64 %d1, %p_a, 48;\nadd.u64 %d2, %p_out, 16;\n"
    body += "@%p9 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
    body += f"[%r2+32], [%d1], {size}, [%r1];\n" + wait("%r1", 0)
    body += f"@%p9 cp.async.bulk.global.shared::cta.bulk_group [%d2], [%r2+32], {size};\n" + COMMIT
    return body + "cp.async.bulk.wait_group 0;", {"a": source, "out": out}, {"shared": SHARED}


def forms() -> Iterator[Form]:
    """Yield them all."""
    for number, (rank, swizzle, where) in enumerate(itertools.product(RANKS, SWIZZLES, PLACES)):
        # Each type in its turn, and not always with the same swizzle and place.
        box = Box(rank, swizzle, REAL[(number + number // 8 + number // 16) % len(REAL)], where)
        yield Form("load", str(box), functools.partial(load, box))
        yield Form("store", str(box), functools.partial(store, box))
    for dtype, where in itertools.product(REAL, PLACES[:3]):
        box = Box(2, 128, dtype, where)
        yield Form("load of every type", str(box), functools.partial(load, box))
    for swizzle, shift in itertools.product(SWIZZLES, (128, 384, 640, 1024)):
        box = Box(2, swizzle, dtype_named("float16"), "inside")
        name = f"{box}, {shift} bytes on"
        yield Form("load", name, functools.partial(load, box, shift=shift))
        yield Form("store", name, functools.partial(store, box, shift=shift))
    for where in PLACES:
        box = Box(2, 128, dtype_named("float32"), where)
        yield Form("load", f"{box}, rounded to TF32", functools.partial(load, box, tf32=True))
        yield Form("load", f"{box}, cache hint", functools.partial(load, box, hint=True))
        yield Form("load", f"{box}, coordinates in registers", functools.partial(load, box, registers=True))
    for dtype, swizzle in itertools.product(FLOATS, (0, 128)):
        for where in PLACES[1:]:
            box = Box(2, swizzle, dtype_named(dtype), where)
            yield Form("load", f"{box}, NaN outside", functools.partial(load, box, nan=True))
    box = Box(2, 64, dtype_named("float32"), "beyond the last")
    yield Form("load", f"{box}, rounded to TF32, NaN outside", functools.partial(load, box, tf32=True, nan=True))
    for masks in ((3, 3), (1, 2), (2, 1), (3, 0), (15, 15, 15, 15), (5, 10, 5, 10), (1, 3, 7, 15), (8, 4, 2, 1)):
        for piece in (False, True):
            name = f"{'piece' if piece else 'box'}, masks {' '.join(map(str, masks))}"
            yield Form("multicast", name, functools.partial(multicast, masks, piece))
    for size in (16, 48, 112, 1040, 8192):
        yield Form("piece", f"{size} bytes", functools.partial(pieces, size))


def refused() -> Iterator[Form]:
    """Yield what breaks a context: boxes that begin between the 16 bytes that are moved together."""
    box = Box(2, 64, dtype_named("float16"), "between 16 bytes")
    yield Form("refused", f"load {box}", functools.partial(load, box))
    yield Form("refused", f"store {box}", functools.partial(store, box))
