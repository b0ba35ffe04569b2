"""PTX of bulk copies, tensor maps of arrays, and what a box must hold."""

from __future__ import annotations

import itertools

import numpy as np

from gemmule.core.dtype import dtype_named
from gemmule.core.launch import TensorMapParam

SHARED = ".shared .align 1024 .b8 box[16384]; .shared .align 8 .b8 bars[16];"
INIT = """mov.u32 %r1, bars;
    mov.u32 %r2, box;
    setp.eq.u32 %p9, %tid, 0;
    @%p9 mbarrier.init.shared.b64 [%r1], 1;
    fence.mbarrier_init.release.cluster;
    bar.sync 0;
"""
EXPECT = "@%p9 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], BYTES;\n"
LOAD = "@%p9 cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [{map}], [%r1];\n"
STORE = "@%p9 cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group [{map}], [%r2];\n"
COMMIT = "cp.async.bulk.commit_group;\n"


def pieces(name, there, here, size, store):
    """Move `size` bytes between shared memory and an array, 4 bytes a lane at a time."""
    load, put = ("shared", "global") if store else ("global", "shared")
    source, target = (here, there) if store else (there, here)
    return f"""
    mov.u32 %r20, {size // 4};
    mov.u32 %r21, %tid;
    MOVE_{name}:
    setp.ge.u32 %p10, %r21, %r20;
    @%p10 bra MOVED_{name};
    mul.wide.u32 %d20, %r21, 4;
    add.u64 %d21, %p_{name}, %d20;
    mad.lo.u32 %r22, %r21, 4, %r2;
    ld.{load}.b32 %r23, [{source}];
    st.{put}.b32 [{target}], %r23;
    mov.u32 %r24, %ntid.x;
    add.u32 %r21, %r21, %r24;
    bra MOVE_{name};
    MOVED_{name}:
"""


def out_of_shared(name, size):
    return pieces(name, "%d21", "%r22", size, store=True)


def into_shared(name, size):
    return pieces(name, "%d21", "%r22", size, store=False)


def names(operand, place):
    return f"%m_{operand}, {{{', '.join(map(str, place))}}}"


def map_of(operand, array, box, swizzle=0, dtype=None):
    """A tensor map of an array, whose last direction is the map's first."""
    dtype = dtype or dtype_named(array.dtype.name)
    return TensorMapParam(operand, dtype, array.shape[::-1], array.strides[-2::-1], tuple(box), swizzle)


def swizzle_place(offset, swizzle):
    """Where byte `offset` of an aligned box lies: rows of 128, 64 or 32 bytes, chunks exchanged by the row's number."""
    if not swizzle:
        return offset
    # The pattern repeats after eight lines of 128 bytes, whichever the width.
    line = offset // 128
    chunk, within = divmod(offset % swizzle, 16)
    return offset - offset % swizzle + (chunk ^ (line % 8 % (swizzle // 16) if swizzle == 128 else
                                                 line % (swizzle // 16))) * 16 + within  # fmt: skip


def expected_box(array, box, place, swizzle):
    """The bytes of a box in shared memory, element by element."""
    item = array.itemsize
    found = np.zeros(int(np.prod(box)) * item, np.uint8)
    for number, index in enumerate(itertools.product(*(range(side) for side in box[::-1]))):
        where = [at + i for at, i in zip(place[::-1], index, strict=True)]
        if all(0 <= at < extent for at, extent in zip(where, array.shape, strict=True)):
            value = np.frombuffer(array[tuple(where)].tobytes(), np.uint8)
            # Elements of a chunk stay together.
            start = swizzle_place(number * item, swizzle)
            found[start : start + item] = value
    return found


def reduced_piece(size, name, kind):
    """Combine `size` bytes of an array with what lies 16 bytes behind the beginning of another."""
    body = INIT + into_shared("image", size) + "fence.proxy.async.shared::cta;\nbar.sync 0;\nadd.u64 %d1, %p_d, 16;\n"
    body += f"@%p9 cp.reduce.async.bulk.global.shared::cta.bulk_group.{name}.{kind} [%d1], [%r2], {size};\n"
    return body + COMMIT + "cp.async.bulk.wait_group 0;\n"
