"""Bulk copies: cp.async.bulk of memory in one piece, and of boxes of tensors; their groups and waits.

All lanes of a warp that ask for the same copy get it once, as the hardware has it: the instruction is the warp's.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from gemmule.vgpu.bulk import Load, Store
from gemmule.vgpu.map_bytes import SIZE as MAP_SIZE
from gemmule.vgpu.map_bytes import decoded
from gemmule.vgpu.memory import GLOBAL_BASE, GlobalMemory
from gemmule.vgpu.observe import AgentAccess, BoxAccess
from gemmule.vgpu.ptx.module import Address, Register, Vector
from gemmule.vgpu.tensor_map import CHUNK, TensorMap, combined, element_type

from .define import Build, Step
from .lanes import Lanes
from .loads import address_of
from .mbarriers import SIZE
from .registers import Frame
from .spaces import WINDOWS, locator
from .types import Array

if TYPE_CHECKING:
    from .batch import Batch

_SHARED = ("shared::cta", "shared::cluster", "shared")
_REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
#: Types of elements of pieces, and the operations on them.
_PIECES = {
    "f16": ("float16", ("add", "min", "max")), "bf16": ("bfloat16", ("add", "min", "max")),
    "f32": ("float32", ("add",)), "f64": ("float64", ("add",)),
    "u32": ("uint32", ("add", "min", "max", "inc", "dec")), "s32": ("int32", ("add", "min", "max")),
    "u64": ("uint64", ("add", "min", "max")), "s64": ("int64", ("min", "max")),
    "b32": ("uint32", ("and", "or", "xor")), "b64": ("uint64", ("and", "or", "xor")),
}  # fmt: skip
#: What the copy engine asks of addresses in shared memory, for boxes.
_ALIGNMENT = 128


@dataclasses.dataclass(frozen=True)
class Piece:
    """Memory in one piece, whose rows of coordinates are its first byte within the arena."""

    size: int
    dtype: str = ""

    def rows(self, coordinates: Array) -> tuple[Array, Array, Array, Array]:
        """Return what pieces cover, as `TensorMap.rows` does."""
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


def bulk_copy(build: Build) -> Step:
    """Turn one of the instructions into a step."""
    reduce = build.instruction.name == "cp" and build.flag("reduce")
    build.take("async")
    build.take("bulk")
    if build.flag("commit_group"):
        build.done(0)
        return _committing(build)
    if build.flag("wait_group"):
        read_only = build.flag("read")
        build.done(1)
        return _waiting(build, build.integer(build.operands[0]), read_only)
    if build.flag("prefetch"):
        return _prefetching
    operation = build.take(*_REDUCTIONS) if reduce else ""
    rank = 0
    if build.flag("tensor"):
        rank = int(build.take("1d", "2d", "3d", "4d", "5d")[0])
        build.flag("tile")
    hint = build.flag("L2::cache_hint")
    # The first space is where the copy goes to.
    if build.instruction.modifiers[_first_space(build)] == "global":
        build.take("global")
        build.take("shared::cta", "shared")
        build.take("bulk_group")
        kind = _piece_type(build, operation) if operation and not rank else ""
        return _store(build, rank, operation, kind, hint)
    if operation:
        raise build.error("reductions into shared memory are not known to the virtual GPU")
    build.take(*_SHARED)
    if not build.flag("global"):
        raise build.error("copies between shared memories are not known to the virtual GPU")
    build.take("mbarrier::complete_tx::bytes")
    return _load(build, rank, build.flag("multicast::cluster"), hint)


def _piece_type(build: Build, operation: str) -> str:
    """Return the type of the elements that a reduction of pieces combines."""
    name = build.take(*_PIECES)
    found, operations = _PIECES[name]
    if operation not in operations:
        raise build.error(f"elements of .{name} are combined by .{', .'.join(operations)}")
    if build.flag("noftz") != (operation == "add" and name in ("f16", "bf16")):
        raise build.error(".noftz goes with .add of .f16 and .bf16, and with nothing else")
    return found


def _first_space(build: Build) -> int:
    spaces = (*_SHARED, "global")
    found = (number for number, part in enumerate(build.instruction.modifiers) if part in spaces)
    number = next(found, None)
    if number is None:
        raise build.error("the virtual GPU does not know this instruction")
    return number


def _prefetching(frame: Frame) -> None:
    del frame


def _committing(build: Build) -> Step:
    instruction = build.instruction

    def commit(frame: Frame) -> None:
        batch = frame.batch
        batch.bulk.commit(frame.lanes)
        for observer in batch.observers:
            observer.bulk_committed(batch, instruction, frame.lanes)

    return commit


def _waiting(build: Build, left: int, read_only: bool) -> Step:
    instruction = build.instruction

    def wait(frame: Frame) -> None:
        batch = frame.batch
        batch.bulk.wait(frame.lanes, left, read_only=read_only)
        for observer in batch.observers:
            observer.bulk_awaited(batch, instruction, frame.lanes, left, read_only)

    return wait


def _check_start(
    frame: Frame, build: Build, region: TensorMap | Piece, coordinates: Array, some: Array, *, store: bool
) -> None:
    """Refuse boxes whose rows begin between the 16 bytes that the copy engine moves together, as an H200 does.

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


class _Side:
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
        """Return what tells the copies of lanes apart: the map and coordinates, or address and size."""
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
            # Of several sizes each is looked at with the largest, which may be too much: they are rare.
            _, position, _ = self._find(frame, int(sizes.max()))
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
        found = frame.batch.setting.maps.get(address - WINDOWS["param"])
        if found is not None:
            return found
        memory, position = frame.batch.memory, address - GLOBAL_BASE
        if memory.allocation_at(position) is None or position % MAP_SIZE:
            return "maps are the kernel's parameters, or lie at multiples of 128 bytes of an operand"
        return decoded(memory.data[position : position + MAP_SIZE], memory)


_INTEGERS = {4: np.int32, 8: np.int64}


def _different(frame: Frame, keys: list[Array]) -> Array:
    """Return the first of the lanes of each warp that ask for the same."""
    table = np.stack([frame.lanes.index // 32, *(key.astype(np.int64) for key in keys)], axis=1)
    if len(np.unique(table[:, 0])) == len(table):
        return np.arange(len(table))
    _, first = np.unique(table, axis=0, return_index=True)
    return np.sort(first)


def _shared_rows(batch: Batch, region: TensorMap | Piece, position: Array) -> Array:
    """Return the rows of 16 bytes that copies at positions of the batch's shared memory move."""
    address = position % batch.shared_stride
    base = position - address
    if isinstance(region, TensorMap):
        places = region.places(address)
    else:
        places = address[:, None] + CHUNK * np.arange(region.size // CHUNK)
    rows: Array = (places + base[:, None]) // CHUNK
    return rows


def _bytes_of(region: TensorMap | Piece) -> int:
    return region.box_bytes if isinstance(region, TensorMap) else region.size


def _tell(
    batch: Batch, build: Build, agent: str, region: TensorMap | Piece, coordinates: Array, lanes: Array, rows: Array,
    targets: Array, barriers: Array | None, atomic: bool,
) -> None:  # fmt: skip
    """Tell the observers of copies; `targets` says which copy each row of `rows` belongs to."""
    instruction, size = build.instruction, _bytes_of(region)
    start, inside, low, high = region.rows(coordinates)
    width = np.where(inside, (high - low)[:, None], 0)
    first = None if barriers is None else barriers[np.unique(targets, return_index=True)[1]]
    box = BoxAccess(instruction, batch, lanes, start + low[:, None], width, agent == "store", atomic, first)
    access = AgentAccess(instruction, batch, agent, lanes[targets], rows, barriers, size)
    for observer in batch.observers:
        observer.box_access(box)
        observer.agent_access(access)


def _load(build: Build, rank: int, multicast: bool, hint: bool) -> Step:
    """Copy into shared memory, and tell an mbarrier of it."""
    build.done((3 if rank else 4) + multicast + hint)
    operands = list(build.operands)
    target = locator(build, "shared", address_of(build, operands[0]), _ALIGNMENT if rank else CHUNK)
    size = None if rank else build.source(operands.pop(2), "u32")
    side = _Side(build, address_of(build, operands[1]), rank, size)
    barrier = locator(build, "shared", address_of(build, operands[2]), SIZE)
    mask_slot = build.source(operands[3], "b16") if multicast else None
    instruction, slots = build.instruction, tuple(build.read_slots)

    def load(frame: Frame) -> None:
        batch, lanes = frame.batch, frame.lanes
        keys = side.keys(frame)
        _, place, _ = barrier(frame)
        first = np.asarray(target(frame, CHUNK)[1])
        masks = np.zeros(lanes.count, np.int64)
        if mask_slot is not None:
            masks[...] = frame[mask_slot]
            if (masks >> batch.cluster_ctas).any() or not masks.all():
                bad = (masks >> batch.cluster_ctas != 0) | (masks == 0)
                raise batch.fault(
                    "barrier", f"a copy to the CTAs {int(masks[bad][0]):#06x} of a cluster of {batch.cluster_ctas}",
                    instruction, lanes, bad,
                )  # fmt: skip
        chosen = _different(frame, [*keys, place, first, masks])
        for key in np.unique(keys[0][chosen]).tolist():
            some = chosen[keys[0][chosen] == key]
            region = side.region(frame, key)
            # Bounds of the whole copy, now that its size is known.
            target(frame.part(np.isin(np.arange(lanes.count), some), slots), _bytes_of(region))
            coordinates = np.stack([part[some].astype(np.int64) for part in keys[1:]], axis=1)
            _check_start(frame, build, region, coordinates, some, store=False)
            copy, position, barriers = np.arange(len(some)), first[some], place[some] // SIZE
            if mask_slot is not None:
                copy, rank_of = np.nonzero((masks[some, None] >> np.arange(batch.cluster_ctas)) & 1)
                own = position // batch.shared_stride
                moved = (own - own % batch.cluster_ctas)[copy] + rank_of - own[copy]
                position = position[copy] + moved * batch.shared_stride
                barriers = barriers[copy] + moved * (batch.shared_stride // SIZE)
            rows = _shared_rows(batch, region, position)
            issuers = lanes.index[some]
            batch.mbarriers.check(instruction, Lanes(issuers[copy]), barriers)
            if batch.observers:
                _tell(batch, build, "load", region, coordinates, issuers, rows, copy, barriers, False)
            batch.bulk.load(Load(region, coordinates, copy, rows, barriers, _bytes_of(region)))

    return load


def _store(build: Build, rank: int, operation: str, kind: str, hint: bool) -> Step:
    """Copy out of shared memory, or combine with what is there."""
    build.done((2 if rank else 3) + hint)
    size = None if rank else build.source(build.operands[2], "u32")
    side = _Side(build, address_of(build, build.operands[0]), rank, size, kind)
    source = locator(build, "shared", address_of(build, build.operands[1]), _ALIGNMENT if rank else CHUNK)
    slots = tuple(build.read_slots)

    def store(frame: Frame) -> None:
        batch, lanes = frame.batch, frame.lanes
        keys = side.keys(frame)
        first = np.asarray(source(frame, CHUNK)[1])
        chosen = _different(frame, [*keys, first])
        for key in np.unique(keys[0][chosen]).tolist():
            some = chosen[keys[0][chosen] == key]
            region = side.region(frame, key)
            source(frame.part(np.isin(np.arange(lanes.count), some), slots), _bytes_of(region))
            coordinates = np.stack([part[some].astype(np.int64) for part in keys[1:]], axis=1)
            _check_start(frame, build, region, coordinates, some, store=True)
            rows = _shared_rows(batch, region, first[some])
            issuers = lanes.index[some]
            if batch.observers:
                everyone = np.arange(len(some))
                _tell(batch, build, "store", region, coordinates, issuers, rows, everyone, None, bool(operation))
            group = batch.bulk.committed[issuers]
            batch.bulk.store(Store(region, coordinates, rows, issuers, group, operation))

    return store
