"""Tensor maps: the elements of TMA boxes in global memory, and their places in shared memory.

PTX ISA, "Tensors" and "Tiled mode"; CUDA driver API, cuTensorMapEncodeTiled. A box is in shared memory row by row,
16 bytes at a time; a swizzle of 32, 64 or 128 bytes exchanges these within rows of as many bytes, by the bits of the
address above them.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import ml_dtypes
import numpy as np

from gemmule.core.errors import ArgumentError
from gemmule.core.launch import TensorMapParam

from .memory import GLOBAL_BASE, GlobalMemory
from .types import Array

#: Bytes that are moved together.
CHUNK = 16
_LONGEST_SIDE, _LONGEST_EXTENT, _LONGEST_PITCH = 256, 1 << 32, 1 << 40
#: Types for which the driver allows NaN outside of the tensor.
_WITH_NAN = ("float64", "float32", "float16", "bfloat16")
#: Bits of an address that each swizzle changes, by those three places above.
SWIZZLE_MASKS = {0: 0, 32: 0x10, 64: 0x30, 128: 0x70}


def swizzled(address: Array, swizzle: int) -> Array:
    """Return where a swizzle of so many bytes puts what belongs to an address."""
    found: Array = address ^ ((address >> 3) & SWIZZLE_MASKS[swizzle])
    return found


@dataclasses.dataclass(frozen=True)
class TensorMap:
    """A tensor map of one launch."""

    base: int  #: Byte of the arena at which the tensor begins.
    dtype: str  #: Type of its elements.
    itemsize: int  #: Bytes of an element.
    #: extents, pitches, box: As in `TensorMapParam`.
    extents: tuple[int, ...]
    pitches: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int  #: Bytes of the pattern in shared memory.
    tf32: bool = False  #: Whether loads round float32 to TF32.
    nan: bool = False  #: Whether elements outside of the tensor are NaN rather than zero.

    @classmethod
    def of(cls, param: TensorMapParam, address: int, memory: GlobalMemory) -> TensorMap:
        """Return the map that a recipe describes, for an operand at that address.

        Raises
        ------
        ArgumentError
            If the driver would refuse the map, or it leads outside of the operand.
        """
        item = param.dtype.itemsize
        base = address + param.offset - GLOBAL_BASE
        found = cls(
            base, param.dtype.name, item, param.extents, param.pitches, param.box, param.swizzle, param.tf32, param.nan
        )
        found.check(f"the tensor map of operand {param.operand}", memory)
        return found

    def check(self, what: str, memory: GlobalMemory) -> None:
        """Refuse a map that the driver would refuse, or that leads outside of an array; `what` names it.

        Raises
        ------
        ArgumentError
            With the rule that it breaks.
        """
        inner, rank = self.box[0] * self.itemsize, len(self.extents)
        address = GLOBAL_BASE + self.base
        rules = (
            (1 <= rank <= 5 and len(self.box) == rank and len(self.pitches) == rank - 1,
             f"extents {self.extents}, pitches {self.pitches} and box {self.box} must be of 1 to 5 directions"),
            (all(0 < extent <= _LONGEST_EXTENT for extent in self.extents), f"extents {self.extents} of 1 to 2**32"),
            (all(0 < side <= _LONGEST_SIDE for side in self.box), f"a box {self.box} of sides of 1 to 256"),
            (all(0 <= pitch < _LONGEST_PITCH and pitch % 16 == 0 for pitch in self.pitches),
             f"pitches {self.pitches} of multiples of 16 bytes below 2**40"),
            (address % 16 == 0, f"an address {address:#x} that is a multiple of 16"),
            (inner % 16 == 0, f"boxes of multiples of 16 bytes in the first direction, not {inner}"),
            (self.swizzle in SWIZZLE_MASKS, f"a swizzle of 0, 32, 64 or 128 bytes, not {self.swizzle}"),
            (self.swizzle in (0, inner), f"boxes as wide as its swizzle of {self.swizzle} bytes, not {inner}"),
            (not self.nan or self.dtype in _WITH_NAN, f"a type of {', '.join(_WITH_NAN)}, not {self.dtype}"),
        )  # fmt: skip
        for holds, rule in rules:
            if not holds:
                raise ArgumentError(f"{what} needs {rule}")
        steps = zip(self.extents[1:], self.pitches, strict=True)
        end = self.base + self.extents[0] * self.itemsize + sum((extent - 1) * pitch for extent, pitch in steps)
        allocation = memory.allocation_at(self.base)
        if allocation is None or end > allocation.end:
            raise ArgumentError(f"{what} reaches to {memory.describe(end - 1)}")

    @property
    def copy_bytes(self) -> int:
        """Bytes of a box."""
        return math.prod(self.box) * self.itemsize

    def places(self, address: Array) -> Array:
        """Return the 16-byte chunks in shared memory of boxes that begin at those addresses: (n, chunks)."""
        return swizzled(address[:, None] + CHUNK * np.arange(self.copy_bytes // CHUNK), self.swizzle)

    def rows(self, coordinates: Array) -> tuple[Array, Array, Array, Array]:
        """Return the elements of the tensor that boxes cover, row by row.

        Parameters
        ----------
        coordinates : array of int64, (n, directions)
            First addresses of the boxes.

        Returns
        -------
        start : array of int64, (n, rows)
            Byte of the arena of each row's first element.
        inside : array of bool, (n, rows)
            Whether the row lies within the tensor in all directions but the first.
        low, high : array of int64, (n,)
            Bytes of a row, from its start, inside the tensor in the first direction.
        """
        first = coordinates[:, 0].astype(np.int64) * self.itemsize
        start = self.base + first[:, None]
        inside: Array = np.ones(start.shape, np.bool_)
        for number, (extent, side, pitch) in enumerate(
            zip(self.extents[1:], self.box[1:], self.pitches, strict=True), 1
        ):
            place = coordinates[:, number, None].astype(np.int64) + np.arange(side)
            # The first of the directions runs fastest.
            start = (start[:, None, :] + (place * pitch)[:, :, None]).reshape(len(start), -1)
            inside = (inside[:, None, :] & ((place >= 0) & (place < extent))[:, :, None]).reshape(len(start), -1)
        width = self.box[0] * self.itemsize
        low = np.clip(-first, 0, width)
        high = np.clip(self.extents[0] * self.itemsize - first, 0, width)
        return start, inside, low, high

    def _units(self, coordinates: Array) -> tuple[int, Array, Array]:
        """Return the largest unit in which boxes can be moved, its number in the arena, and whether it is inside."""
        start, inside, low, high = self.rows(coordinates)
        shifts = np.bitwise_or.reduce(coordinates[:, 0].astype(np.int64) * self.itemsize)
        unit = math.gcd(CHUNK, int(shifts), self.extents[0] * self.itemsize)
        along = unit * np.arange(self.box[0] * self.itemsize // unit)
        in_row = (along >= low[:, None]) & (along < high[:, None])
        valid = inside[:, :, None] & in_row[:, None, :]
        position = start[:, :, None] + along
        index = np.where(valid, position, self.base) // unit
        return unit, index, valid

    def read(self, memory: GlobalMemory, coordinates: Array) -> Array:
        """Return boxes as (n, chunks, 2) words of 8 bytes; elements outside of the tensor are zero, or NaN."""
        unit, index, valid = self._units(coordinates)
        words = memory.words(8).reshape(-1, 2) if unit == CHUNK else memory.words(unit)
        data = words.take(index, 0)
        if not valid.all():
            data[~valid] = 0
        if self.tf32:
            data = rounded_to_tf32(data)
        if self.nan and not valid.all():
            # The hardware's NaN, whatever the type: 0x7ff7 again and again.
            filled = np.ascontiguousarray(data).view(np.uint8).reshape(*valid.shape, unit)
            last = np.where(
                np.arange(self.box[0] * self.itemsize).reshape(-1, unit) % 2, np.uint8(0x7F), np.uint8(0xF7)
            )
            data = np.where(valid[..., None], filled, last)
        return data.reshape(len(coordinates), -1).view(np.uint64).reshape(len(coordinates), -1, 2)

    def write(self, memory: GlobalMemory, coordinates: Array, data: Array) -> None:
        """Write boxes, (n, chunks, 2) words of 8 bytes, as far as they are inside the tensor."""
        unit, index, valid = self._units(coordinates)
        flat = np.ascontiguousarray(data).reshape(len(coordinates), -1)
        if unit == CHUNK:
            memory.words(8).reshape(-1, 2)[index[valid]] = flat.reshape(*index.shape, 2)[valid]
        else:
            memory.words(unit)[index[valid]] = flat.view(f"u{unit}").reshape(index.shape)[valid]

    def reduce(self, memory: GlobalMemory, coordinates: Array, data: Array, operation: str) -> None:
        """Combine boxes with what the tensor holds, one box after another."""
        kind = element_type(self.dtype)
        words = memory.words(self.itemsize).view(kind)
        for place, box in zip(coordinates, data, strict=True):
            start, inside, low, high = self.rows(place[None])
            along = self.itemsize * np.arange(self.box[0])
            valid = inside[0, :, None] & ((along >= low[0]) & (along < high[0]))
            index = ((start[0, :, None] + along) // self.itemsize)[valid]
            given = np.ascontiguousarray(box).view(kind).reshape(valid.shape)[valid]
            words[index] = combined(words[index], given, operation)


def rounded_to_tf32(words: Array) -> Array:
    """Round float32 to the nearest number of 11 significant bits, ties to even; infinity is exact, NaN canonical."""
    bits = np.ascontiguousarray(words).view(np.uint32)
    rounded = (bits + np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1))) & np.uint32(0xFFFFE000)
    found: Array = np.where(bits & np.uint32(0x7F800000) == np.uint32(0x7F800000), bits, rounded)
    found = np.where(bits & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000), np.uint32(0x7FFFE000), found)
    return found.view(words.dtype)


def element_type(name: str) -> np.dtype[Any]:
    """Return the NumPy type of elements."""
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def combined(old: Array, new: Array, operation: str) -> Array:
    """Return the result of a reduction, element by element."""
    if operation == "inc":
        return np.where(old >= new, 0, old + 1).astype(old.dtype)
    if operation == "dec":
        return np.where((old == 0) | (old > new), new, old - 1).astype(old.dtype)
    function = {
        "add": np.add, "min": np.fmin, "max": np.fmax,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    }[operation]  # fmt: skip
    found: Array = function(old, new).astype(old.dtype)
    if old.dtype.itemsize == 2:
        # One NaN for all; a number is less, and more, than it.
        found.view(np.uint16)[np.isnan(found)] = 0x7FFF
    return found
