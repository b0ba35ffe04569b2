"""Races in shared memory, and loads of uninitialised data.

A shadow holds for each piece of shared memory its last writer and the time of that, and the last read of each warp.
Two accesses of which one writes must be ordered by the clocks of the second's warp.
"""

from __future__ import annotations

import numpy as np

from ..dataflow.effects import registers_in
from ..dataflow.granule import shared_granule
from ..engine.batch import Batch
from ..engine.observer import Access, AgentAccess
from ..ptx.module import Instruction, Kernel, Operand, Vector
from ..types import Array
from .agent_columns import ATOMIC
from .agents import WAIT_FOR_READER, AgentRaces, Shadow
from .clocks import ClockCheck, Clocks, is_asynchronous
from .collected import ONE_WRITER, Collected
from .loops import compiled, note_shared_write, pass_shared_read, pass_shared_write
from .registers import UninitialisedRegisters


class SharedRaces(ClockCheck):
    """Looks for races in shared memory.

    Parameters
    ----------
    collected : Collected
        Receives the findings.
    clocks : Clocks
        The warps' clocks.
    registers : UninitialisedRegisters
        Follows uninitialised values.
    """

    def __init__(self, collected: Collected, clocks: Clocks, registers: UninitialisedRegisters) -> None:
        super().__init__(collected, clocks)
        self._registers = registers

    def begin(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._granule = shared_granule(kernel)
        self._asynchronous = is_asynchronous(kernel)
        self._pass = compiled(pass_shared_read, pass_shared_write)
        self._note = compiled(note_shared_write)

    def agent_access(self, access: AgentAccess) -> None:
        assert self._agents is not None
        self._agents.access(access)

    def batch_begins(self, batch: Batch) -> None:
        pieces = len(batch.shared) // self._granule
        # Clock and column of the last write, 0 for none, and its instruction.
        self._written = np.zeros(pieces, np.int32)
        self._writer = np.zeros(pieces, np.int32)
        self._read = np.zeros((pieces, self._clocks.columns.generic), np.int32)
        # When values that were read were needed, which orders the writes of TMA.
        self._needed = np.zeros_like(self._read) if self._asynchronous else self._read
        self._noted = (self._read, self._needed) if self._asynchronous else (self._read,)
        shadow = Shadow(self._granule, self._written, self._writer, self._needed)
        self._agents = AgentRaces(batch, self._collected, self._clocks, shadow) if self._asynchronous else None

    def access(self, access: Access) -> None:
        if access.space != "shared":
            return
        warp = access.lanes.pick(access.batch.warp_of_lane)
        passed = self._passed(access, warp)
        if passed and access.read:
            return
        rows, many = self._rows(access)
        if not passed:
            before = self._written.reshape(-1, many).take(rows, 0)
            if access.read and not before.all():
                self._uninitialised(access, before == 0)
            unordered = self._unordered(access, before, warp)
            if unordered.any():
                bad = np.asarray(unordered.any(axis=1))
                self._race(access, bad, rows * many + unordered.argmax(axis=1))
            if access.write:
                self._check_reads(access, rows, many, warp)
            else:
                for shadow in self._noted:
                    self._note_read(shadow, rows, many, warp)
        if access.write:
            if self._agents is not None:
                late = self._agents.read_by(rows * many, many, self._clocks.known, warp)
                if late.any():
                    self._report(
                        access, late, f"a bulk copy or wgmma may still read it; {WAIT_FOR_READER} would order the two"
                    )
            self._note_write(access, rows, many, warp)

    def marks(self, access: Access) -> Array:
        """Return for each piece of an access the mark of its last write: the agent and its clock."""
        rows, many = self._rows(access)
        found: Array = self._written.reshape(-1, many).take(rows, 0)
        return found

    def needed(self, access: Access, marks: Array) -> None:
        """See the values of loads needed that were seen before, when each piece had the mark that is given."""
        rows, many = self._rows(access)
        now = self.marks(access)
        is_message = self._clocks.columns.is_told(self._clocks.columns.parts(now)[0])
        overtaken = (now != marks) & is_message
        if overtaken.any():
            bad = np.asarray(overtaken.any(axis=1))
            self._race(access, bad, rows * many + overtaken.argmax(axis=1), late=True)
        self._note_read(self._needed, rows, many, access.lanes.pick(access.batch.warp_of_lane))

    def _rows(self, access: Access) -> tuple[Array, int]:
        """Return for each lane its place in shared memory in units of as many pieces as it accesses, and these."""
        many = max(access.size // self._granule, 1)
        piece = (access.address + access.lanes.pick(access.batch.shared_base)) // self._granule
        return piece // many, many

    def _note_read(self, shadow: Array, rows: Array, many: int, warp: Array) -> None:
        epoch = self._clocks.epoch(warp)
        shadow.reshape(-1, many, self._clocks.columns.generic)[rows, :, self._clocks.columns.own[warp]] = epoch[:, None]

    def _unordered(self, access: Access, before: Array, warp: Array) -> Array:
        """Return which pieces hold a write that did not happen before the access of the warps."""
        clocks = self._clocks
        column, clock = clocks.columns.parts(before)
        unordered: Array = clocks.known.reshape(-1).take((warp[:, None] << clocks.columns.bits) + column) < clock
        if access.atomic:
            unordered &= (before & ATOMIC) == 0
        return unordered

    def _check_reads(self, access: Access, rows: Array, many: int, warp: Array) -> None:
        """Look for reads of other warps that may not be over."""
        clocks = self._clocks
        reads = self._read.reshape(-1, many, clocks.columns.generic).take(rows, 0)
        late = reads > clocks.known[warp, : clocks.columns.generic][:, None, :]
        if late.any():
            bad = np.asarray(late.any(axis=(1, 2)))
            first = int(np.flatnonzero(bad)[0])
            reader = int(late[first].any(axis=0).argmax())
            self._report(access, bad, f"{clocks.columns.who(reader)} read it, and {clocks.columns.unordered(reader)}")

    def _passed(self, access: Access, warp: Array) -> bool:
        """Look at an access in one go, and note it if it reads; return False and do nothing where that finds fault."""
        if not self._pass or access.atomic or access.read == access.write:
            return False
        clocks = self._clocks
        many = max(access.size // self._granule, 1)
        base = access.lanes.pick(access.batch.shared_base)
        place = access.address, base, self._granule.bit_length() - 1, many, warp
        known = clocks.known, clocks.columns.own, clocks.columns.bits
        reads = (self._read,) if access.write else self._noted
        return all(self._pass[access.write](*place, known, self._written, one) for one in reads)

    def _note_write(self, access: Access, rows: Array, many: int, warp: Array) -> None:
        clocks = self._clocks
        if access.asynchronous:
            column, clock = clocks.columns.copies(warp), clocks.groups[warp] + 1
        else:
            column, clock = clocks.columns.own[warp], clocks.epoch(warp)
        mark = clocks.columns.mark(column, clock)
        if access.atomic:
            mark |= ATOMIC
        number, base = access.instruction.index, access.lanes.pick(access.batch.shared_base)
        place = access.address, base, self._granule.bit_length() - 1, many
        if any(note(*place, mark, number, self._written, self._writer) for note in self._note):
            return
        self._written.reshape(-1, many)[rows] = mark[:, None]
        self._writer.reshape(-1, many)[rows] = number
        if not access.atomic:
            # One of several warps that write the same piece in one step is the last writer.
            lost = self._written.reshape(-1, many)[rows, 0] != mark
            if lost.any():
                self._report(access, lost, f"another warp writes it at the same time; {ONE_WRITER}")

    def _race(self, access: Access, bad: Array, pieces: Array, *, late: bool = False) -> None:
        first = int(np.flatnonzero(bad)[0])
        column = int(self._clocks.columns.parts(self._written[pieces[first]])[0])
        earlier = self._kernel.instructions[int(self._writer[pieces[first]])]
        who = self._clocks.columns.who(column)
        if late:
            needed = "no instruction needed the value before the arrival at the mbarrier"
            why = f"{who} writes it {earlier.place}, and {needed}"
            self._report(access, bad, why, "may still read", earlier)
        else:
            why = f"{who} wrote it {earlier.place}, and {self._clocks.columns.unordered(column)}"
            self._report(access, bad, why, earlier=earlier)

    def _report(
        self, access: Access, bad: Array, why: str, does: str | None = None, earlier: Instruction | None = None
    ) -> None:
        first = int(np.flatnonzero(bad)[0])
        address = int(access.address[first]) % access.batch.shared_stride
        if does is None:
            does = "a copy writes" if access.asynchronous else "writes" if access.write else "reads"
        self._collected.add(
            access.batch,
            "race",
            f"{does} {access.size} bytes at {access.batch.shared_place(address)}; {why}",
            access.instruction,
            access.lanes.index[bad],
            space="shared",
            address=address,
            earlier=earlier,
        )

    def _uninitialised(self, access: Access, unwritten: Array) -> None:
        """Follow the uninitialised values: they may never be used.

        Parameters
        ----------
        access : Access
            A load or an atomic operation.
        """
        instruction, batch = access.instruction, access.batch
        if access.atomic and "exch" not in instruction.modifiers:
            # The old value contributes to the new one: a use.
            bad = np.asarray(unwritten.any(axis=1))
            address = int(access.address[bad][0])
            self._collected.add(
                batch,
                "uninitialised",
                f"changes {access.size} bytes at {access.batch.shared_place(address)}, which no thread wrote",
                instruction,
                access.lanes.index[bad],
                space="shared",
                address=address,
            )
            return
        if instruction.name == "red":
            return
        target = instruction.operands[0]
        items = target.items if isinstance(target, Vector) else (target,)
        if instruction.name == "ldmatrix":
            # Any lane of the warp may get the row that one of them names.
            bad = np.asarray(unwritten.any(axis=1))
            warps = np.unique(batch.warp_of_lane[access.lanes.index[bad]])
            index = np.flatnonzero(np.isin(batch.warp_of_lane, warps) & batch.alive)
            self._follow(access, items, index, int(access.address[bad][0]), access.size)
            return
        size = access.size // len(items)
        pieces = np.repeat(unwritten, max(len(items) // unwritten.shape[1], 1), axis=1)
        by_item = np.asarray(pieces.reshape(access.lanes.count, len(items), -1).any(axis=2))
        for number in range(len(items)):
            lanes = by_item[:, number]
            if lanes.any():
                address = int(access.address[lanes][0]) + number * size
                self._follow(access, (items[number],), access.lanes.index[lanes], address, size)

    def _follow(self, access: Access, items: tuple[Operand, ...], index: Array, address: int, size: int) -> None:
        targets = tuple(register for item in items for register in registers_in(item))
        where = f"{size} bytes at {access.batch.shared_place(address)}"
        what = f"loaded {access.instruction.place} from {where}, which no thread wrote"
        self._registers.wrote_undefined(access.batch, access.instruction, targets, index, what)
