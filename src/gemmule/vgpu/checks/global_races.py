"""Races in global memory: between warps of a CTA, and between CTAs, which only messages order.

Only arrays that the kernel may write are checked. Each piece holds its last reader, and where several CTAs read it
unordered, the last reader of each: a write is compared with a CTA's last read only. Atomic operations, and loads and
stores that acquire, release or are relaxed, do not race with each other.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ..dataflow.granule import global_granule
from ..dataflow.pointers import written_params
from ..engine.batch import Batch
from ..engine.isa.bulk_copy import BulkCopies
from ..engine.lanes import Lanes
from ..engine.observer import Access, TmaGlobalAccess
from ..memory import GLOBAL_BASE, Allocation
from ..ptx.module import Instruction, Kernel
from ..types import Array
from .agent_columns import ATOMIC
from .clocks import ClockCheck, Clocks
from .collected import ONE_WRITER, Collected
from .messages import Messages

#: In place of a reader's CTA: several CTAs.
_SEVERAL = -1
_OTHER_CTA = (
    "nothing orders the two; a release of a flag in global memory by the one (red.release.gpu) and an acquire by the "
    "other (ld.acquire.gpu), or two launches, would"
)


class _Shadow:
    """The last writer and the last readers of each piece of an array."""

    def __init__(self, pieces: int) -> None:
        # CTAs are counted from 1; 0 is none.
        self.writer_cta = np.zeros(pieces, np.int32)
        self.write_mark = np.zeros(pieces, np.int32)
        self.writer = np.zeros(pieces, np.int32)
        self.reader_cta = np.zeros(pieces, np.int32)
        self.read_mark = np.zeros(pieces, np.int32)
        # Of pieces that CTAs read in no order: the mark of each CTA's last read.
        self.readers: dict[int, dict[int, int]] = {}


class GlobalRaces(ClockCheck):
    """Looks for races in global memory.

    Parameters
    ----------
    collected : Collected
        Receives the findings.
    clocks : Clocks
        The warps' clocks.
    messages : Messages
        Messages between clusters.
    """

    def __init__(self, collected: Collected, clocks: Clocks, messages: Messages) -> None:
        super().__init__(collected, clocks)
        self._messages = messages
        self._shadows: dict[int, _Shadow] = {}

    def begin(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._granule = global_granule(kernel)
        self._written = written_params(kernel)
        self._copies_out = any(
            instruction.name == "cp" and "bulk" in instruction.modifiers and "bulk_group" in instruction.modifiers
            for instruction in kernel.instructions
        )
        self._shadows = {}

    def batch_begins(self, batch: Batch) -> None:
        self._watched = {allocation.start for allocation in self._written_arrays(batch)}
        if self._copies_out:
            # Any of the tensors may be where bulk copies go.
            found = (batch.memory.allocation_at(tensor.base) for tensor in batch.launch_state.maps.values())
            self._watched |= {allocation.start for allocation in found if allocation is not None}
        # CTAs of a cluster count as one to others.
        first = np.array(batch.ctas[:: batch.cluster_ctas], np.int32)
        self._cta = first[batch.cta_of_lane // batch.cluster_ctas] + 1

    def _written_arrays(self, batch: Batch) -> list[Allocation]:
        allocations = batch.memory.allocations
        if self._written is None:
            return allocations
        found = []
        for name in self._written:
            start = batch.binder.address_of_name(name)
            pointer = int.from_bytes(batch.params[start : start + 8], "little")
            allocation = batch.memory.allocation_at(pointer - GLOBAL_BASE)
            if allocation is None:
                # A pointer that leads nowhere: perhaps it is no pointer.
                return allocations
            found.append(allocation)
        return found

    def access(self, access: Access) -> None:
        if access.space == "global":
            for part in access.uniform():
                self._access(part)

    def tma_global_access(self, access: TmaGlobalAccess) -> None:
        """See copies of boxes: the pieces wholly inside each row."""
        granule, batch = self._granule, access.batch
        memory = batch.memory
        first = -(-access.start // granule) * granule
        size = np.maximum((access.start + access.size) // granule * granule - first, 0)
        warps = access.lanes // 32
        if access.write:
            column, clock = self._clocks.columns.done(warps), BulkCopies.of(batch).committed[access.lanes] + 1
        else:
            assert access.barriers is not None
            column = self._clocks.columns.barrier(self._clocks.number_of(access.barriers))
            clock = self._clocks.barrier_clock(batch, access.barriers)
        row_of = np.broadcast_to(np.arange(len(first))[:, None], first.shape)
        for width in np.unique(size[size > 0]).tolist():
            chosen = size == width
            rows = row_of[chosen]
            allocation = memory.allocation_at(int(first[chosen][0]))
            if allocation is None or allocation.start not in self._watched:
                continue
            some = Lanes(access.lanes[rows])
            part = Access(
                access.instruction, batch, some, "global", first[chosen], width, not access.write, access.write,
                access.atomic,
            )  # fmt: skip
            self._look(part, allocation, np.ones(len(rows), np.bool_), (column[rows], clock[rows]))

    def _access(self, access: Access) -> None:
        memory = access.batch.memory
        allocation = memory.allocation_at(int(access.address[0]))
        inside = allocation is not None and bool(
            (access.address.min() >= allocation.start) & (access.address.max() < allocation.end)
        )
        if inside:
            assert allocation is not None
            if allocation.start in self._watched:
                self._look(access, allocation, np.ones(access.lanes.count, np.bool_))
            return
        for allocation in memory.allocations:
            mask = (access.address >= allocation.start) & (access.address < allocation.end)
            if allocation.start in self._watched and mask.any():
                self._look(access, allocation, mask)

    def _look(
        self, access: Access, allocation: Allocation, mask: Array, agent: tuple[Array, Array] | None = None
    ) -> None:
        granule = self._granule
        shadow = self._shadows.get(allocation.start)
        if shadow is None:
            # An array may begin in the middle of a piece.
            pieces = (allocation.end - allocation.start) // granule + 2
            shadow = self._shadows[allocation.start] = _Shadow(pieces)
        many = max(access.size // granule, 1)
        first = access.address[mask] // granule - allocation.start // granule
        piece = first[:, None] + np.arange(many)
        index = access.lanes.index[mask]
        warp, cta = access.batch.warp_of_lane[index], self._cta[index]
        self._compare_with_writes(access, shadow, piece, warp, cta, mask)
        column, clock = self._clocks.columns.own[warp], self._clocks.epoch(warp)
        if access.asynchronous:
            # The copy reads between now and the wait for its group.
            column, clock = self._clocks.columns.copies(warp), self._clocks.groups[warp] + 1
        if agent is not None:
            column, clock = agent
        mark = self._clocks.columns.mark(column, clock)
        if access.atomic:
            mark |= ATOMIC
        if access.write:
            self._compare_with_reads(access, shadow, piece, warp, cta, mask)
            shadow.write_mark[piece] = mark[:, None]
            shadow.writer_cta[piece] = cta[:, None]
            shadow.writer[piece] = access.instruction.index
            if not access.atomic:
                lost = (shadow.writer_cta[piece[:, 0]] != cta) | (shadow.write_mark[piece[:, 0]] != mark)
                if lost.any():
                    self._report(access, mask, lost, f"another warp writes it at the same time; {ONE_WRITER}")
        else:
            self._remember_reads(access, shadow, piece, warp, cta, mark)

    def _remember_reads(
        self, access: Access, shadow: _Shadow, piece: Array, warp: Array, cta: Array, mark: Array
    ) -> None:
        known, marks = shadow.reader_cta[piece], shadow.read_mark[piece]
        owner, mark = np.broadcast_to(cta[:, None], piece.shape), np.broadcast_to(mark[:, None], piece.shape)
        several = (known != 0) & (known != owner)
        if several.any():
            # A write after the later of two ordered reads is after both. Being strong does not order reads.
            several &= self._unordered(dataclasses.replace(access, atomic=False), known, marks, warp, cta)[0]
        shadow.reader_cta[piece] = owner
        shadow.read_mark[piece] = mark
        # The last of the lanes that read the same piece together is stored: the others may be of another CTA.
        several |= shadow.reader_cta[piece] != owner
        if several.any():
            crowd = np.isin(piece, piece[several])
            shadow.reader_cta[piece[crowd]] = _SEVERAL
            columns = (array[crowd].tolist() for array in (piece, known, marks, owner, mark))
            for place, before, its_mark, reader, own_mark in zip(*columns, strict=True):
                readers = shadow.readers.setdefault(place, {before: its_mark} if before > 0 else {})
                readers[reader] = own_mark

    def _unordered(self, access: Access, owner: Array, marks: Array, warp: Array, cta: Array) -> tuple[Array, Array]:
        """Return which marks of earlier accesses are not ordered before this one, and which are of other clusters.

        Parameters
        ----------
        owner, marks : array of int, (n, pieces)
            CTA and mark of the earlier access of each piece; CTA 0 is none.
        warp, cta : array of int, (n,)
            Warps and CTAs of the access.
        """
        column, clock = self._clocks.columns.parts(marks)
        other = (owner != 0) & (owner != cta[:, None])
        race: Array = (owner == cta[:, None]) & (self._clocks.known[warp[:, None], column] < clock)
        if other.any():
            rows, places = np.nonzero(other)
            at = rows, places
            other[at] = ~self._messages.knows(warp[rows], owner[at], column[at], clock[at])
            race |= other
        if access.atomic:
            race &= (marks & ATOMIC) == 0
        return race, other

    def _compare_with_writes(
        self, access: Access, shadow: _Shadow, piece: Array, warp: Array, cta: Array, mask: Array
    ) -> None:
        writer = shadow.writer_cta[piece]
        if not writer.any():
            return
        race, other = self._unordered(access, writer, shadow.write_mark[piece], warp, cta)
        if race.any():
            row, column = (int(value) for value in np.argwhere(race)[0])
            earlier = self._kernel.instructions[int(shadow.writer[piece[row, column]])]
            agent = int(self._clocks.columns.parts(shadow.write_mark[piece[row, column]])[0])
            who, why = "another warp", self._clocks.columns.unordered(agent)
            if other[row, column]:
                why = _OTHER_CTA
                who = f"CTA {access.batch.geometry.coordinates(int(writer[row, column]) - 1)}"
            self._report(
                access,
                mask,
                np.asarray(race.any(axis=1)),
                f"{who} wrote it {earlier.place}, and {why}",
                earlier,
            )

    def _compare_with_reads(
        self, access: Access, shadow: _Shadow, piece: Array, warp: Array, cta: Array, mask: Array
    ) -> None:
        reader = shadow.reader_cta[piece]
        if not reader.any():
            return
        race, other = self._unordered(access, reader, shadow.read_mark[piece], warp, cta)
        for row, column in np.argwhere(reader == _SEVERAL).tolist():
            readers = shadow.readers[int(piece[row, column])]
            owners, marks = np.array([[*readers], [*readers.values()]])[:, None]
            of_each, _ = self._unordered(access, owners, marks, warp[row : row + 1], cta[row : row + 1])
            race[row, column] = of_each.any()
        if not access.atomic:
            # What is in order with this write is so with the reads before it, too.
            for place in piece[reader == _SEVERAL].tolist():
                shadow.readers.pop(place, None)
                shadow.reader_cta[place] = 0
        if race.any():
            why = "another warp, CTA or an asynchronous copy reads it, and "
            why += _OTHER_CTA if other[race].any() else self._clocks.columns.unordered(0)
            self._report(access, mask, np.asarray(race.any(axis=1)), why)

    def _report(self, access: Access, mask: Array, bad: Array, why: str, earlier: Instruction | None = None) -> None:
        chosen = np.flatnonzero(mask)[bad]
        address = int(access.address[chosen[0]])
        does = "writes" if access.write else "reads"
        where = access.batch.memory.describe(address)
        self._collected.add(
            access.batch,
            "race",
            f"{does} {access.size} bytes at {where}; {why}",
            access.instruction,
            access.lanes.index[chosen],
            space="global",
            address=access.batch.memory.offset(address),
            earlier=earlier,
        )
