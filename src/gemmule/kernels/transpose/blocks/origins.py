"""Origins of blocks in source and target."""

from __future__ import annotations

import cutlass
from cutlass import Int32, Int64, Uint32, cute

from gemmule.kernels.parts.tensors import cute_type
from gemmule.kernels.transpose.blocks.block import AXES


def of_lane(values, lane):
    """Return values of one of the warp's lanes."""
    return tuple(cute.arch.shuffle_sync(value, lane) for value in values)


@cute.jit
def block_origin(block, every):
    """Return the offsets in bytes of a block in source and target, and bits of the axes along which it is last.

    `every` has source and target, of all axes the divisors and shifts, a block's extents, the elements that the last
    block begins earlier, and its bit; and the bytes of an element.
    """
    mSource, item = every[0], every[3]
    # The block's number above the axes that are done, its offsets, and bits of edges.
    found = Uint32(block), Int64(0), Int64(0), Int32(0)
    for axis in cutlass.range_constexpr(AXES):
        # All threads skip the axes with one block, which most problems have.
        if mSource.shape[axis] > 1:
            found = _beyond_axis(found, axis, every)
    _, read_at, write_at, edges = found
    return read_at * item, write_at * item, edges


@cute.jit
def _beyond_axis(found, axis: cutlass.Constexpr[int], every):
    """Return what is left of a block's number beyond an axis, and the offsets and edges with that axis."""
    rest, read_at, write_at, edges = found
    mSource, mTarget, numbers, _ = every
    divisor, shift, extent, earlier, bit = (numbers[AXES * number + axis] for number in range(5))
    above = Uint32(cute.arch.mul_hi(rest, Uint32(divisor))) >> shift
    digit = Int32(rest - above * Uint32(mSource.shape[axis]))
    first = digit * extent
    if digit + 1 == mSource.shape[axis]:
        first -= earlier
        edges |= bit
    read_at += Int64(first) * mSource.stride[axis]
    write_at += Int64(first) * mTarget.stride[axis]
    return above, read_at, write_at, edges


def strided(name: str, axes: int = AXES) -> cute.Tensor:
    """Return a fake tensor of any strides, with extents of 32 bits."""
    extents, strides = tuple(cute.sym_int32() for _ in range(axes)), tuple(cute.sym_int64() for _ in range(axes))
    return cute.runtime.make_fake_tensor(cute_type(name), extents, strides)
