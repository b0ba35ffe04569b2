"""The sides of bulk copies: pieces of global memory, boxes of tensors, and the rows of shared memory that they move."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np

from gemmule.vgpu.map_bytes import SIZE as MAP_SIZE
from gemmule.vgpu.map_bytes import decoded
from gemmule.vgpu.memory import GLOBAL_BASE, GlobalMemory
from gemmule.vgpu.ptx.module import Address, Register, Vector
from gemmule.vgpu.tensor_map import CHUNK, TensorMap, combined, element_type
from gemmule.vgpu.types import Array

from ..batch import Batch
from ..definition import Build
from ..running_batch import Frame
from ..spaces import WINDOWS, locator

_INTEGERS = {4: np.int32, 8: np.int64}


class Source(Protocol):
    """A source of copies, each at coordinates of its own."""

    def read(self, memory: GlobalMemory, coordinates: Array) -> Array:
        """Return pieces as (n, chunks, 2) words of 8 bytes."""


class Region(Source, Protocol):
    """Global memory that copies write or reduce."""

    def write(self, memory: GlobalMemory, coordinates: Array, data: Array) -> None:
        """Write pieces."""

    def reduce(self, memory: GlobalMemory, coordinates: Array, data: Array, operation: str) -> None:
        """Combine pieces with what is there."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """Memory in one piece, whose rows of coordinates are its first byte within the arena."""

    size: int
    dtype: str = ""

    @property
    def copy_bytes(self) -> int:
        """Bytes of a copy."""
        return self.size

    def rows(self, coordinates: Array) -> tuple[Array, Array, Array, Array]:
        """Return the elements that pieces cover, as `TensorMap.rows` does."""
        zeros = np.zeros(len(coordinates), np.int64)
        return coordinates, np.ones(coordinates.shape, np.bool_), zeros, zeros + self.size

    def read(self, memory: GlobalMemory, coordinates: Array) -> Array:
        """Return pieces as (n, chunks, 2) words of 8 bytes."""
        rows = coordinates // CHUNK + np.arange(self.size // CHUNK)
        return memory.words(8).reshape(-1, 2).take(rows, 0)

    def write(self, memory: GlobalMemory, coordinates: Array, data: Array) -> None:
        """Write pieces."""
        rows = coordinates // CHUNK + np.arange(self.size // CHUNK)
        memory.words(8).reshape(-1, 2)[rows] = data

    def reduce(self, memory: GlobalMemory, coordinates: Array, data: Array, operation: str) -> None:
        """Combine pieces with what is there, one after another."""
        kind = element_type(self.dtype)
        words = memory.words(kind.itemsize).view(kind)
        for place, piece in zip(coordinates[:, 0], data, strict=True):
            index = slice(place // kind.itemsize, (place + self.size) // kind.itemsize)
            words[index] = combined(words[index], np.ascontiguousarray(piece).view(kind).reshape(-1), operation)


class GlobalSide:
    """The side of a copy in global memory: a box of a tensor, or a piece.

    Parameters
    ----------
    build : Build
        The instruction.
    operand : Address
        Its address there, with coordinates for a box.
    rank : int
        Directions of the tensor; 0 for a piece.
    size : int or None
        Slot of a piece's size.
    dtype : str
        Type of a piece's elements, where that matters.
    """

    def __init__(self, build: Build, operand: Address, rank: int, size: int | None, dtype: str = "") -> None:
        self._build = build
        self._dtype = dtype
        self._size = size
        self._offset = operand.offset
        if rank:
            (vector,) = operand.extra or (None,)
            items = vector.items if isinstance(vector, Vector) else ()
            if len(items) != rank or not isinstance(operand.base, Register):
                raise build.error(f"a tensor map and {rank} coordinates are expected")
            self._map = build.source(operand.base, "u64")
            self._coordinates = [build.source(item, "s32") for item in items]
        else:
            self._find = locator(build, "global", operand, CHUNK)
        self._rank = rank

    def keys(self, frame: Frame) -> list[Array]:
        """Return the keys of the lanes' copies: map and coordinates, or size and address."""
        count = frame.lanes.count
        if self._rank:
            slots = [self._map, *self._coordinates]
        else:
            assert self._size is not None
            sizes = np.broadcast_to(np.asarray(frame[self._size]), (count,)).astype(np.int64)
            bad = (sizes % CHUNK != 0) | (sizes <= 0)
            if bad.any():
                raise frame.batch.fault(
                    "misaligned", f"a bulk copy of {int(sizes[bad][0])} bytes; it must be a multiple of 16",
                    self._build.instruction, frame.lanes, bad,
                )  # fmt: skip
            _, position, _ = self._find(frame, sizes)
            return [sizes, position]
        return [
            np.broadcast_to(np.asarray(frame[slot]).view(_INTEGERS[frame[slot].itemsize]), (count,)) for slot in slots
        ]

    def region(self, frame: Frame, key: int) -> TensorMap | Piece:
        """Return the tensor or piece that the first of the keys names."""
        if not self._rank:
            return Piece(key, self._dtype)
        found = self._map_at(frame, key + self._offset)
        if isinstance(found, str) or len(found.box) != self._rank:
            everyone = np.ones(frame.lanes.count, np.bool_)
            why = found if isinstance(found, str) else f"that one has {len(found.box)}"
            raise frame.batch.fault(
                "out of bounds", f"there is no tensor map of {self._rank} directions at {key:#x}: {why}",
                self._build.instruction, frame.lanes, everyone,
            )  # fmt: skip
        return found

    def _map_at(self, frame: Frame, address: int) -> TensorMap | str:
        """Return the map at a generic address, or say why there is none."""
        found = frame.batch.launch_state.maps.get(address - WINDOWS["param"])
        if found is not None:
            return found
        memory, position = frame.batch.memory, address - GLOBAL_BASE
        if memory.allocation_at(position) is None or position % MAP_SIZE:
            return "maps are the kernel's parameters, or at multiples of 128 bytes of an operand"
        return decoded(memory.data[position : position + MAP_SIZE], memory)


def check_start(
    frame: Frame, build: Build, region: TensorMap | Piece, coordinates: Array, some: Array, *, store: bool
) -> None:
    """Refuse boxes whose rows begin between the 16 bytes that TMA moves together, as an H200 does.

    It does not store boxes whose rows begin before those of the tensor, either.
    """
    if not isinstance(region, TensorMap):
        return
    before = coordinates[:, 0] < 0
    if store and before.any():
        raise frame.batch.fault(
            "out of bounds",
            f"a box that is stored begins at element {int(coordinates[before, 0][0])} of rows, before the first",
            build.instruction, frame.lanes, np.isin(np.arange(frame.lanes.count), some[before]),
        )  # fmt: skip
    wrong = coordinates[:, 0] * region.itemsize % CHUNK != 0
    if wrong.any():
        first = int(coordinates[wrong, 0][0])
        raise frame.batch.fault(
            "misaligned",
            f"a box begins at element {first} of rows of {region.dtype}, which is byte {first * region.itemsize}; "
            "boxes begin at multiples of 16 bytes of a row",
            build.instruction, frame.lanes, np.isin(np.arange(frame.lanes.count), some[wrong]),
        )  # fmt: skip


def shared_rows(batch: Batch, region: TensorMap | Piece, position: Array) -> Array:
    """Return the rows of 16 bytes that copies at positions of the batch's shared memory move."""
    address = position % batch.shared_stride
    base = position - address
    if isinstance(region, TensorMap):
        places = region.places(address)
    else:
        places = address[:, None] + CHUNK * np.arange(region.size // CHUNK)
    rows: Array = (places + base[:, None]) // CHUNK
    return rows
