"""Races in shared memory between the lanes of a warp: one writes and another reads before they are synchronised.

Lanes of a warp may run one after another, whether they take the same path or not; what they wrote is ordered by
``bar.warp.sync`` and by the barriers of the CTA and the cluster, not by shuffles. Each lane has a clock. A meeting of
lanes orders all that their warp did; a wait for an mbarrier orders what those lanes did that had arrived at one, which
may be more than that one orders: races can be missed. Lanes that pass data on by words of shared memory, with
release and acquire, are reported although they may be right.

Most reads are of blocks that nobody writes before all lanes meet, as in a ring of stages. They wait, and are noted lane
by lane only when a write touches one of their blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dataflow.granule import shared_granule
from ..dataflow.warp_order import neighbours
from ..engine.batch import Batch
from ..engine.isa.mbarrier_phases import MBarriers
from ..engine.lanes import WARP, Lanes
from ..engine.observer import Access, AgentAccess
from ..ptx.module import Instruction, Kernel
from ..types import Array
from .collected import Check
from .loops import compiled, pass_lanes, touch_blocks

_ROW = 16
#: The rows whose addresses a lane gives are loaded to, or stored from, other lanes.
_MATRICES = ("ldmatrix", "stmatrix")
#: No accesses to compare with, or to note; no blocks.
_NONE, _NO_BLOCKS = np.zeros((2, 0), np.int64), np.zeros(0, np.bool_)
#: Bytes of a block, as a power of two; no access crosses its end. Reads that wait at most.
_BLOCK, _MOST_WAITING = 7, 256


class LaneRaces(Check):
    """Looks for races in shared memory within warps."""

    def begin(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._granule = shared_granule(kernel)
        self._neighbours = near = neighbours(kernel)
        self._looked_at = near.before_access | near.after_write | near.after_read
        self._loops = compiled(pass_lanes)
        self._touch = next(iter(compiled(touch_blocks)), _touch_blocks)

    def batch_begins(self, batch: Batch) -> None:
        # A time encodes its lane in its low bits. Times that lanes of the warp acquire by a wait, and have acquired.
        self._count = 1 << (batch.lane_count - 1).bit_length()
        self._now = np.arange(batch.lane_count, dtype=np.int64) + self._count
        self._told, self._known = np.zeros(batch.lane_count, np.int64), np.zeros(batch.lane_count, np.int64)
        # No time up to this one is unknown to anybody.
        self._floor = self._count - 1
        pieces = len(batch.shared) // self._granule
        # When a piece was written and read last: times of two lanes, 0 for none.
        self._written, self._read = np.zeros((2, pieces), np.int64), np.zeros((2, pieces), np.int64)
        self._writer = np.zeros(pieces, np.int32)
        # Blocks with writes and reads since all lanes met; the reads that wait, each with the lanes' times then; the
        # largest time of a lane, and as of the last access.
        self._write_blocks, self._read_blocks = np.zeros((2, len(batch.shared) >> _BLOCK), np.bool_)
        self._waiting: list[tuple[Access, Array]] = []
        self._top = self._noted = int(self._now.max())
        self._made = np.zeros(len(batch.shared) // 8, np.int64)

    def _meet(self, batch: Batch, lanes: Lanes) -> None:
        """Order what lanes of these warps did before what the others do next."""
        index = (np.unique(lanes.pick(batch.warp_of_lane))[:, None] * WARP + np.arange(WARP)).reshape(-1)
        self._known[index] = self._now[index]
        self._advance(index)
        self._raise_floor()

    def _raise_floor(self) -> None:
        self._floor = int(self._known.min()) // self._count * self._count + self._count - 1
        if self._noted <= self._floor:
            self._write_blocks[:], self._read_blocks[:] = False, False
            self._waiting.clear()

    def _tell(self, index: Array) -> None:
        self._told[index] = self._now[index]
        self._advance(index)

    def _advance(self, index: Array) -> None:
        if self._waiting:
            # They have the times of before.
            self._now = self._now.copy()
        self._now[index] += self._count
        self._top = max(self._top, int(self._now[index].max()))

    def warp_synced(self, batch: Batch, instruction: Instruction, lanes: Lanes) -> None:
        if instruction.name == "bar":
            self._meet(batch, lanes)

    def barrier_arrived(self, batch: Batch, instruction: Instruction, lanes: Lanes, barrier: Array) -> None:
        del batch, instruction, barrier
        self._tell(lanes.index)

    def barrier_released(self, batch: Batch, lanes: Lanes, barrier: Array) -> None:
        del barrier
        self._meet(batch, lanes)

    def cluster_arrived(self, batch: Batch, instruction: Instruction, lanes: Lanes, releases: bool) -> None:
        del batch, instruction, releases
        self._tell(lanes.index)

    def cluster_left(self, batch: Batch, instruction: Instruction, lanes: Lanes, acquires: bool) -> None:
        del instruction, acquires
        self._meet(batch, lanes)

    def mbarrier_initialised(self, batch: Batch, instruction: Instruction, lanes: Lanes, places: Array) -> None:
        del batch, instruction
        self._made[places] = self._now[lanes.index]

    def mbarrier_arrived(
        self, batch: Batch, instruction: Instruction, lanes: Lanes, places: Array, releases: bool
    ) -> None:
        del releases
        self._check_made(batch, instruction, lanes.index, places)
        self._tell(np.unique(lanes.index))

    def mbarrier_awaited(self, batch: Batch, instruction: Instruction, lanes: Lanes, places: Array) -> None:
        self._check_made(batch, instruction, lanes.index, places)
        index = (np.unique(lanes.index // WARP)[:, None] * WARP + np.arange(WARP)).reshape(-1)
        self._known[index] = np.maximum(self._known[index], self._told[index])
        self._raise_floor()

    def copies_signalled(self, batch: Batch, instruction: Instruction, lanes: Lanes, places: Array) -> None:
        self._check_made(batch, instruction, lanes.index, places)

    def access(self, access: Access) -> None:
        near, number = self._neighbours, access.instruction.index
        if access.space != "shared" or number not in self._looked_at:
            return
        lanes = access.lanes
        many = max(access.size // self._granule, 1)
        base = lanes.pick(access.batch.shared_base)
        if access.write:
            after_read = self._writes_read_block(access, base) and number in near.after_read
        elif self._waits(access, base):
            return
        else:
            after_read = False
        if self._loops and not access.atomic and access.instruction.name not in _MATRICES:
            place = access.address, base, self._granule.bit_length() - 1, many, lanes.index
            if self._passed(access, place, after_read):
                return
        rows = (access.address + base) // self._granule // many
        pieces = rows if many == 1 else (rows[:, None] * many + np.arange(many)).reshape(-1)
        index = lanes.index if many == 1 else np.repeat(lanes.index, many)
        written = self._unmet(self._written, pieces, index, access) if number in near.after_write else None
        if written is not None and not access.atomic:
            earlier = self._kernel.instructions[int(self._writer[pieces[int(written.argmax())]])]
            self._report(access, written, f"another lane of its warp wrote it {earlier.place}", earlier)
        if not access.write:
            # After most reads comes a barrier before any write.
            if number in near.before_write:
                self._note(self._read, pieces, index, access, self._now)
            return
        read = self._unmet(self._read, pieces, index, access) if after_read else None
        if read is not None and not access.atomic:
            self._report(access, read, "another lane of its warp read it")
        if number in near.before_access:
            self._note(self._written, pieces, index, access, self._now)
            self._writer[pieces] = number

    def _writes_read_block(self, access: Access, base: Array) -> bool:
        """Note the blocks of a write; say whether one of them was read, after noting the reads that wait."""
        self._noted = self._top
        self._touch(access.address, base, _BLOCK, _NO_BLOCKS, self._write_blocks)
        if not self._touch(access.address, base, _BLOCK, self._read_blocks, _NO_BLOCKS):
            return False
        self._note_waiting()
        return True

    def _waits(self, access: Access, base: Array) -> bool:
        """Note the blocks of a read; let it wait, or do nothing with it, if nobody wrote there."""
        near, number = self._neighbours, access.instruction.index
        self._noted = self._top
        before = self._write_blocks if number in near.after_write else _NO_BLOCKS
        readers = self._read_blocks if number in near.before_write else _NO_BLOCKS
        if self._touch(access.address, base, _BLOCK, before, readers):
            self._note_waiting()
            return False
        if number in near.before_write:
            self._waiting.append((access, self._now))
            if len(self._waiting) > _MOST_WAITING:
                self._note_waiting()
        return True

    def _note_waiting(self) -> None:
        """Note the reads that wait, lane by lane."""
        for access, now in self._waiting:
            many = max(access.size // self._granule, 1)
            index, base = access.lanes.index, access.lanes.pick(access.batch.shared_base)
            if self._loops and access.instruction.name not in _MATRICES:
                place = access.address, base, self._granule.bit_length() - 1, many, index
                self._loops[0](*place, (_NONE, self._read), (self._known, now, self._floor, self._count - 1))
                continue
            rows = (access.address + base) // self._granule // many
            pieces = rows if many == 1 else (rows[:, None] * many + np.arange(many)).reshape(-1)
            self._note(self._read, pieces, index if many == 1 else np.repeat(index, many), access, now)
        self._waiting.clear()

    def _passed(self, access: Access, place: tuple[Array, Array, int, int, Array], after_read: bool) -> bool:
        """Pass an access in one go, or return False and do nothing."""
        near, number = self._neighbours, access.instruction.index
        (passes,) = self._loops
        clocks = self._known, self._now, self._floor, self._count - 1
        written = self._written if number in near.after_write else _NONE
        if not access.write:
            readers = self._read if number in near.before_write else _NONE
            return bool(passes(*place, (written, readers), clocks))
        read = self._read if after_read else _NONE
        if not all(passes(*place, (before, _NONE), clocks) for before in (written, read) if before is not _NONE):
            return False
        if number in near.before_access:
            passes(*place, (_NONE, self._written), clocks)
            address, base, shift, many, _ = place
            self._writer.reshape(-1, many)[((address + base) >> shift) // many] = number
        return True

    def _unmet(self, times: Array, pieces: Array, index: Array, access: Access) -> Array | None:
        """Return which pieces another lane of the same warp accessed that no meeting has ordered."""
        if not (times[0].take(pieces) > self._floor).any():
            return None
        found = self._late(times, pieces, index // WARP, *_takers(index, access.instruction))
        return found if found.any() else None

    def _late(self, times: Array, pieces: Array, warps: Array, *queries: Array) -> Array:
        found = np.zeros(pieces.shape, np.bool_)
        for time in times:
            marks = time.take(pieces)
            lane = marks & (self._count - 1)
            late = (marks > self._known[lane]) & (lane // WARP == warps)
            for asking in queries:
                late &= lane != asking
            found |= late
        return found

    def _note(self, times: Array, pieces: Array, index: Array, access: Access, now: Array) -> None:
        if access.instruction.name in _MATRICES:
            for time, lane in zip(times, _takers(index, access.instruction), strict=True):
                time[pieces] = now[lane]
            return
        now = now[index]
        before = times[0].take(pieces)
        if (before > self._floor).any():
            lane = before & (self._count - 1)
            later = (before > self._known[lane]) & (lane != index)
            times[1][pieces[later]] = before[later]
        times[0][pieces] = now
        # One of several concurrent lanes counts as the last writer, another as the second.
        lost = times[0].take(pieces) != now
        if lost.any():
            times[1][pieces[lost]] = now[lost]

    def agent_access(self, access: AgentAccess) -> None:
        if access.agent == "wgmma":
            return
        self._note_waiting()
        pieces = access.pieces(self._granule)
        warps = access.lanes // WARP
        which = (
            [(self._written, "wrote")] if access.agent == "store" else [(self._written, "wrote"), (self._read, "read")]
        )
        for times, did in which:
            late = self._late(times, pieces, warps[:, None], access.lanes[:, None])
            if late.any():
                copy = int(np.flatnonzero(late.any(axis=1))[0])
                address = int(pieces[copy, int(late[copy].argmax())]) * self._granule % access.batch.shared_stride
                does = "reads" if access.agent == "store" else "writes"
                size = min(access.size, _ROW)
                where = access.batch.shared_place(address)
                what = f"a copy that it issues {does} {size} bytes at {where}; another lane of its warp {did} it"
                self._add(access.batch, access.instruction, access.lanes[copy : copy + 1], what, address=address)
        if access.barriers is not None:
            self._check_made(access.batch, access.instruction, access.lanes, access.barriers)

    def _check_made(self, batch: Batch, instruction: Instruction, index: Array, places: Array) -> None:
        """Look for mbarriers that another lane of the warp initialised."""
        late = self._late(self._made[None], places, index // WARP, index)
        if late.any():
            place = int(places[late][0])
            what = f"uses the mbarrier at {MBarriers.of(batch).name(place)}; another lane of its warp initialised it"
            self._add(batch, instruction, index[late], what, address=MBarriers.of(batch).address(place))

    def _report(self, access: Access, late: Array, why: str, earlier: Instruction | None = None) -> None:
        bad = late.reshape(access.lanes.count, -1).any(axis=1)
        address = int(access.address[int(bad.argmax())]) % access.batch.shared_stride
        does = "writes" if access.write else "reads"
        what = f"{does} {access.size} bytes at {access.batch.shared_place(address)}; {why}"
        where = {"address": address, "earlier": earlier}
        self._add(access.batch, access.instruction, access.lanes.index[bad], what, **where)

    def _add(self, batch: Batch, instruction: Instruction, index: Array, what: str, **where: Any) -> None:
        what += ", and no bar.warp.sync or barrier orders the two; sync_warp between them would"
        self._collected.add(batch, "race", what, instruction, index, space="shared", **where)


def _touch_blocks(address: Array, base: Array, shift: int, before: Array, noted: Array) -> bool:
    """Do as `touch_blocks` does, with NumPy."""
    blocks = (address + base) >> shift
    found = before.size > 0 and bool(before.take(blocks).any())
    if noted.size:
        noted[blocks] = True
    return found


def _takers(index: Array, instruction: Instruction) -> tuple[Array, ...]:
    """Return the lanes of an access: each its own, or two of those that a row of a matrix belongs to."""
    if instruction.name not in _MATRICES:
        return (index,)
    # Row i of a matrix is spread over lanes 4 i to 4 i + 3, or across the groups of four, where it is a column.
    warp, row = index // WARP * WARP, index % 8
    if "trans" in instruction.modifiers:
        return warp + row // 2, warp + 4 + row // 2
    return warp + 4 * row, warp + 4 * row + 1
