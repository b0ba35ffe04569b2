"""Races of TMA and of the tensor cores in shared memory, and their reads of unwritten or unfenced data."""

from __future__ import annotations

import dataclasses

import numpy as np

from ..engine.batch import Batch
from ..engine.isa.bulk_copy import BulkCopies
from ..engine.isa.wgmma import WARPS
from ..engine.observer import AgentAccess
from ..ptx.module import Instruction
from ..types import Array
from .clocks import Clocks
from .collected import Collected

_ROW = 16
_DOES = {
    "load": "a bulk copy writes",
    "async store": "an asynchronous store writes",
    "store": "a bulk copy reads",
    "wgmma": "wgmma reads",
}

#: Ordering of a write after reads of TMA and wgmma, and of a TMA load after those of warps.
WAIT_FOR_READER = (
    "a wait for it (cp_async_bulk_wait_group with read=True, wgmma.wait_group), or for the stage's empty mbarrier,"
)
_EMPTY = (
    "nothing orders the two; an arrival at the stage's empty mbarrier after the read, and the producer's wait for it, "
    "would"
)


@dataclasses.dataclass(frozen=True)
class Shadow:
    """The last writer of each piece of shared memory, and the times of the warps' reads."""

    granule: int  #: Bytes of a piece.
    #: written, writer, read: Array of int32. As in `SharedRaces`; for reads the time at which their values were needed.
    written: Array
    writer: Array
    read: Array


class AgentRaces:
    """Compares the accesses of TMA and the tensor cores with the clocks of the issuing warps.

    Parameters
    ----------
    batch : Batch
        The CTAs.
    collected : Collected
        Takes the findings.
    clocks : Clocks
        The warps' clocks.
    shadow : Shadow
        Accesses of ordinary instructions.
    """

    def __init__(self, batch: Batch, collected: Collected, clocks: Clocks, shadow: Shadow) -> None:
        self._collected = collected
        self._clocks = clocks
        self._shadow = shadow
        self._per_row = max(_ROW // shadow.granule, 1)
        pieces = len(shadow.written)
        groups = -(-clocks.columns.warps // WARPS)
        # The last product of each warpgroup of the CTA that read a piece, and the last bulk copy.
        self._products = np.zeros((pieces, groups), np.int32)
        self._stores = np.zeros(pieces, np.int32)
        self._first_warps = np.arange(groups) * WARPS
        self._kernel = batch.kernel

    def read_by(self, first: Array, many: int, knowledge: Array, warps: Array) -> Array:
        """Return which pieces bulk copies or wgmma may still read, as far as the clocks of the warps say.

        Parameters
        ----------
        first : array of int, (n,)
            First piece of each access.
        many : int
            Pieces of each.
        knowledge : array
            Clocks of the warps, (warps of the batch, agents).
        warps : array of int, (n,)
            The warp of each.
        """
        pieces = first[:, None] + np.arange(many)
        return np.asarray(self._late_reads(pieces, knowledge, warps).any(axis=1))

    def _late_reads(self, pieces: Array, knowledge: Array, warps: Array) -> Array:
        clocks = self._clocks
        marks = self._stores[pieces]
        late: Array = np.zeros(pieces.shape, np.bool_)
        if marks.any():
            column, clock = clocks.columns.parts(marks)
            late |= knowledge[warps[:, None], column] < clock
        products = self._products[pieces]
        if products.any():
            # The warpgroups are those of the CTA whose memory it is.
            cta = pieces * self._shadow.granule // self._stride
            first = cta[:, :, None] * clocks.columns.warps + self._first_warps
            known = knowledge[warps[:, None, None], clocks.columns.product(first)]
            late |= (products > known).any(axis=2)
        return late

    def access(self, access: AgentAccess) -> None:
        """See an access issued to TMA or the tensor cores."""
        self._stride = access.batch.shared_stride
        pieces = access.pieces(self._shadow.granule)
        warps = access.lanes // 32
        if access.agent == "wgmma":
            # The minimum over the four warps: each of them reads.
            four = warps[:, None] + np.arange(WARPS)
            visible, known = (level[four].min(axis=1) for level in (self._clocks.visible, self._clocks.known))
        else:
            visible, known = self._clocks.visible[warps], self._clocks.known[warps]
        if access.agent == "async store":
            # It needs no proxy fence.
            visible = known
        before = self._shadow.written[pieces]
        if access.agent in ("wgmma", "store") and not before.all():
            unwritten = np.asarray(before == 0) & self._leaves(access)
            if unwritten.any():
                self._report(access, unwritten, "uninitialised", "which no thread wrote")
        self._compare_with_writes(access, pieces, before, visible, known)
        if access.barriers is not None:
            self._write(access, pieces, warps)
        else:
            self._read(access, pieces, warps)

    def _leaves(self, access: AgentAccess) -> Array:
        """Return which pieces, (accesses, pieces) or fewer to broadcast, reach products or the tensor."""
        if access.valid_bytes is None:
            return np.ones((1, 1), np.bool_)
        first, end = access.valid_bytes
        width = access.rows.shape[1] * _ROW // first.shape[1]
        size = _ROW // self._per_row
        start = np.arange(0, width, size)
        found: Array = (start < end[:, :, None]) & (start + size > first[:, :, None])
        return found.reshape(len(access.rows), -1)

    def _compare_with_writes(
        self, access: AgentAccess, pieces: Array, before: Array, visible: Array, known: Array
    ) -> None:
        column, clock = self._clocks.columns.parts(before)
        unseen = np.take_along_axis(visible, column, 1) < clock
        if not unseen.any():
            return
        unknown = np.take_along_axis(known, column, 1) < clock
        bad = unknown if unknown.any() else unseen
        first = np.argwhere(bad)[0]
        place = pieces[tuple(first)]
        earlier = self._kernel.instructions[int(self._shadow.writer[place])]
        who = self._clocks.columns.who(int(column[tuple(first)]))
        why = self._clocks.columns.unordered(int(column[tuple(first)]))
        if not unknown.any():
            why = "no fence.proxy.async makes it visible to TMA and the tensor cores"
        self._report(access, bad, "race", f"{who} wrote it {earlier.place}, and {why}", earlier)

    def _read(self, access: AgentAccess, pieces: Array, warps: Array) -> None:
        clocks = self._clocks
        if access.agent == "wgmma":
            clock = clocks.product_groups[warps] + 1
            self._products[pieces, (warps % clocks.columns.warps // WARPS)[:, None]] = clock[:, None]
            return
        clock = BulkCopies.of(access.batch).committed[access.lanes] + 1
        self._stores[pieces] = clocks.columns.mark(clocks.columns.read(warps), clock)[:, None]

    def _write(self, access: AgentAccess, pieces: Array, warps: Array) -> None:
        clocks = self._clocks
        assert access.barriers is not None
        reads = self._shadow.read[pieces]
        late = reads > clocks.known[warps, : clocks.columns.generic][:, None, :]
        if late.any():
            reader = int(np.argwhere(late)[0][2])
            why = f"{clocks.columns.who(reader)} read it, and {_EMPTY}"
            self._report(access, np.asarray(late.any(axis=2)), "race", why)
        late = self._late_reads(pieces, clocks.known, warps)
        if late.any():
            why = f"a bulk copy or wgmma may still read it; {WAIT_FOR_READER} would order the two"
            self._report(access, late, "race", why)
        numbers = clocks.number_of(access.barriers)
        clock = clocks.barrier_clock(access.batch, access.barriers)
        self._shadow.written[pieces] = clocks.columns.mark(clocks.columns.barrier(numbers), clock)[:, None]
        self._shadow.writer[pieces] = access.instruction.index

    def _report(self, access: AgentAccess, bad: Array, kind: str, why: str, earlier: Instruction | None = None) -> None:
        copies = np.asarray(bad.any(axis=1))
        first = int(np.flatnonzero(copies)[0])
        row = access.rows[first, int(bad[first].argmax()) // self._per_row]
        size, start = (access.size, int(access.start[first])) if access.start is not None else (_ROW, 0)
        address = int(row) * _ROW % access.batch.shared_stride + start
        pause = "," if kind == "uninitialised" else ";"
        self._collected.add(
            access.batch,
            kind,
            f"{_DOES[access.agent]} {size} bytes at {access.batch.shared_place(address)}{pause} {why}",
            access.instruction,
            access.lanes[first : first + 1],
            space="shared",
            address=address,
            earlier=earlier,
        )
