"""Bulk copies by TMA: cp.async.bulk of memory in one piece, and of boxes of tensors; their groups and waits.

All lanes of a warp that issue the same copy issue it once, as on the hardware: the instruction is the warp's. The
schedule decides when a copy completes: ``late``, one into shared memory when nothing else can run, one out of it at the
wait for its group; ``eager``, at once; ``random``, at any time.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from gemmule.vgpu.tensor_map import CHUNK, TensorMap
from gemmule.vgpu.types import Array

from ..definition import Build, Step
from ..lanes import Lanes
from ..observer import AgentAccess, TmaGlobalAccess
from ..running_batch import AsyncUnit, Frame, RunningBatch
from ..spaces import address_of, locator
from .bulk_regions import GlobalSide, Piece, Region, Source, check_start, shared_rows
from .mbarrier_phases import SIZE, MBarriers

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
#: Alignment of boxes in shared memory.
_ALIGNMENT = 128


@dataclasses.dataclass
class Load:
    """Copies into shared memory, by one instruction of some warps."""

    region: Source  #: Their source.
    coordinates: Array  #: Array of int64. A row for each copy.
    copy: Array  #: Array of int. For each target, which copy it gets; with multicast a copy has several.
    #: Array of int64, (targets, chunks). Rows of 16 bytes of the batch's shared memory that are written; of smaller
    #: copies, places in units of `size`.
    rows: Array
    barriers: Array  #: Array of int. For each target the mbarrier at which it completes.
    size: int  #: Bytes of a copy.


@dataclasses.dataclass
class Store:
    """Copies out of shared memory, by one instruction of some warps."""

    region: Region  #: Their destination.
    coordinates: Array  #: Array of int64. A row for each copy.
    rows: Array  #: Array of int64, (copies, chunks). Rows of 16 bytes of the batch's shared memory that are read.
    #: lanes, group: Array of int. For each copy the lane that issued it, and which of its groups it belongs to.
    lanes: Array
    group: Array
    operation: str = ""  #: The reduction; empty for a plain write.
    data: Array | None = None  #: Array or None. The data, once they have been read.

    def part(self, mask: Array) -> Store:
        """Return some of the copies."""
        data = None if self.data is None else self.data[mask]
        return Store(
            self.region, self.coordinates[mask], self.rows[mask], self.lanes[mask], self.group[mask], self.operation,
            data,
        )  # fmt: skip


class BulkCopies(AsyncUnit):
    """The bulk copies of a batch that are in flight.

    Attributes
    ----------
    committed : array of int
        For each lane, how many groups of stores it has committed.
    """

    chance = 0.3

    def __init__(self, batch: RunningBatch) -> None:
        super().__init__(batch)
        self._loads: list[Load] = []
        self._stores: list[Store] = []
        self.committed = np.zeros(batch.lane_count, np.int64)

    def load(self, load: Load) -> None:
        """Issue copies into shared memory."""
        if self._at_once():
            self._complete_load(load)
        else:
            self._loads.append(load)

    def store(self, store: Store) -> None:
        """Issue copies out of shared memory."""
        if self._at_once():
            self._read(store)
            self._write(store)
        else:
            self._stores.append(store)

    def commit(self, lanes: Lanes) -> None:
        """Make the stores since the last commit a group."""
        self.committed[lanes.index] += 1

    def wait(self, lanes: Lanes, left: int, *, read_only: bool) -> None:
        """Let all but the last `left` groups of these lanes have read, or be complete."""
        if not self._stores:
            return
        limit = np.full(self._batch.lane_count, -1, np.int64)
        limit[lanes.index] = self.committed[lanes.index] - left - 1
        still: list[Store] = []
        for store in self._stores:
            due = store.group <= limit[store.lanes]
            if due.any():
                done = store if due.all() else store.part(due)
                self._read(done)
                if read_only:
                    still.append(done)
                else:
                    self._write(done)
            if not due.all():
                still.append(store if not due.any() else store.part(~due))
        self._stores = still

    def complete_one(self) -> bool:
        if not self._loads:
            return False
        self._complete_load(self._one_of(self._loads))
        return True

    def finish(self) -> None:
        while self.complete_one():
            pass
        for store in self._stores:
            self._read(store)
            self._write(store)
        self._stores = []

    def _complete_load(self, load: Load) -> None:
        batch = self._batch
        data = load.region.read(batch.memory, load.coordinates)
        if load.size < CHUNK:
            batch.shared_words[load.size][load.rows] = data
        else:
            batch.shared_rows[load.rows] = data if len(load.copy) == len(data) else data[load.copy]
        MBarriers.of(batch).complete_bytes(load.barriers, np.full(len(load.barriers), load.size))

    def _read(self, store: Store) -> None:
        if store.data is None:
            store.data = self._batch.shared_rows[store.rows]

    def _write(self, store: Store) -> None:
        assert store.data is not None
        if store.operation:
            store.region.reduce(self._batch.memory, store.coordinates, store.data, store.operation)
        else:
            store.region.write(self._batch.memory, store.coordinates, store.data)


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
        raise build.error("reductions into shared memory are not modelled by the virtual GPU")
    build.take(*_SHARED)
    if not build.flag("global"):
        raise build.error("copies between shared memories are not modelled by the virtual GPU")
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
        raise build.error("the virtual GPU does not model this instruction")
    return number


def _prefetching(frame: Frame) -> None:
    del frame


def _committing(build: Build) -> Step:
    instruction = build.instruction

    def commit(frame: Frame) -> None:
        batch = frame.batch
        BulkCopies.of(batch).commit(frame.lanes)
        for observer in batch.observers:
            observer.bulk_committed(batch, instruction, frame.lanes)

    return commit


def _waiting(build: Build, left: int, read_only: bool) -> Step:
    instruction = build.instruction

    def wait(frame: Frame) -> None:
        batch = frame.batch
        BulkCopies.of(batch).wait(frame.lanes, left, read_only=read_only)
        for observer in batch.observers:
            observer.bulk_awaited(batch, instruction, frame.lanes, left, read_only)

    return wait


def _different(frame: Frame, keys: list[Array]) -> Array:
    """Return the first of the lanes of each warp that issue the same copy."""
    table = np.stack([frame.lanes.index // 32, *(key.astype(np.int64) for key in keys)], axis=1)
    if len(np.unique(table[:, 0])) == len(table):
        return np.arange(len(table))
    _, first = np.unique(table, axis=0, return_index=True)
    return np.sort(first)


@dataclasses.dataclass(frozen=True)
class _Copies:
    """Copies of one region, by one instruction."""

    region: TensorMap | Piece  #: Their global side.
    coordinates: Array  #: Array of int64. A row for each copy.
    issuers: Array  #: Array of int. For each copy the lane that issued it.
    #: Array of int64, (targets, chunks). Rows of 16 bytes of the batch's shared memory; with multicast a copy has
    #: several targets.
    rows: Array
    copy: Array  #: Array of int. For each target its copy.

    def show(
        self, batch: RunningBatch, build: Build, agent: str, barriers: Array | None = None, *, atomic: bool = False
    ) -> None:
        """Show them to the observers."""
        start, inside, low, high = self.region.rows(self.coordinates)
        width = np.where(inside, (high - low)[:, None], 0)
        first = None if barriers is None else barriers[np.unique(self.copy, return_index=True)[1]]
        box = TmaGlobalAccess(
            build.instruction, batch, self.issuers, start + low[:, None], width, agent == "store", atomic, first
        )
        lanes, size = self.issuers[self.copy], self.region.copy_bytes
        kept = (np.where(inside, low[:, None], 0), np.where(inside, high[:, None], 0)) if agent == "store" else None
        access = AgentAccess(build.instruction, batch, agent, lanes, self.rows, barriers, size, kept)
        for observer in batch.observers:
            observer.tma_global_access(box)
            observer.agent_access(access)


def _load(build: Build, rank: int, multicast: bool, hint: bool) -> Step:
    """Copy into shared memory, and complete at an mbarrier."""
    build.done((3 if rank else 4) + multicast + hint)
    operands = list(build.operands)
    target = locator(build, "shared", address_of(build, operands[0]), _ALIGNMENT if rank else CHUNK)
    size = None if rank else build.source(operands.pop(2), "u32")
    side = GlobalSide(build, address_of(build, operands[1]), rank, size)
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
        if len(chosen) < lanes.count:
            repeated = np.isin(lanes.index // 32, lanes.index[np.delete(np.arange(lanes.count), chosen)] // 32)
            for observer in batch.observers:
                barrier_place = int(place[repeated][0]) // SIZE
                observer.load_repeated(batch, instruction, lanes.index[repeated], barrier_place)
        for key in np.unique(keys[0][chosen]).tolist():
            some = chosen[keys[0][chosen] == key]
            region = side.region(frame, key)
            # Bounds of the whole copy, by the size of its region.
            target(frame.part(np.isin(np.arange(lanes.count), some), slots), region.copy_bytes)
            coordinates = np.stack([part[some].astype(np.int64) for part in keys[1:]], axis=1)
            check_start(frame, build, region, coordinates, some, store=False)
            copy, position, barriers = np.arange(len(some)), first[some], place[some] // SIZE
            if mask_slot is not None:
                copy, rank_of = np.nonzero((masks[some, None] >> np.arange(batch.cluster_ctas)) & 1)
                own = position // batch.shared_stride
                moved = (own - own % batch.cluster_ctas)[copy] + rank_of - own[copy]
                position = position[copy] + moved * batch.shared_stride
                barriers = barriers[copy] + moved * (batch.shared_stride // SIZE)
            rows = shared_rows(batch, region, position)
            issuers = lanes.index[some]
            MBarriers.of(batch).check(instruction, Lanes(issuers[copy]), barriers)
            if batch.observers:
                _Copies(region, coordinates, issuers, rows, copy).show(batch, build, "load", barriers)
            BulkCopies.of(batch).load(Load(region, coordinates, copy, rows, barriers, region.copy_bytes))

    return load


def _store(build: Build, rank: int, operation: str, kind: str, hint: bool) -> Step:
    """Copy out of shared memory, or combine with what is there."""
    build.done((2 if rank else 3) + hint)
    size = None if rank else build.source(build.operands[2], "u32")
    side = GlobalSide(build, address_of(build, build.operands[0]), rank, size, kind)
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
            source(frame.part(np.isin(np.arange(lanes.count), some), slots), region.copy_bytes)
            coordinates = np.stack([part[some].astype(np.int64) for part in keys[1:]], axis=1)
            check_start(frame, build, region, coordinates, some, store=True)
            rows = shared_rows(batch, region, first[some])
            issuers = lanes.index[some]
            if batch.observers:
                copies = _Copies(region, coordinates, issuers, rows, np.arange(len(some)))
                copies.show(batch, build, "store", atomic=bool(operation))
            group = BulkCopies.of(batch).committed[issuers]
            BulkCopies.of(batch).store(Store(region, coordinates, rows, issuers, group, operation))

    return store
