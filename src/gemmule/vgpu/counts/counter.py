"""The observer that counts instructions, bytes and passes."""

from __future__ import annotations

import numpy as np

from gemmule.core.arch import Arch
from gemmule.core.chip import Chip
from gemmule.core.chips import CHIPS

from ..dataflow.control_flow import Block
from ..engine.batch import Batch
from ..engine.lanes import Lanes, Warps, rows_of
from ..engine.observer import Access, AgentAccess, Observer, TmaGlobalAccess
from ..models import banks, caches, sectors
from ..ptx.module import Instruction, Kernel
from ..types import Array
from .classes import class_of, flop_of_lane
from .tally import Counts, InstructionCounts

#: Bytes of a sector and of a line of the caches.
_SECTOR, _LINE = 32, 128
#: Bytes of a row of shared memory as TMA and wgmma access it.
_ROW = 16
#: Bytes of L1 cache beyond those that an SM can have as shared memory, on chips of capability 8.0 and newer.
_L1_BEYOND_SHARED = 28 << 10


class Counter(Observer):
    """Counts the work of a launch.

    Parameters
    ----------
    with_caches : bool
        Whether to put global accesses through the cache model, which takes most of the time.
    chip : Chip, optional
        The chip whose caches they are; by default one of the kernel's architecture. CTA number c runs on
        SM c mod their number; its L1 cache is the part that shared memory of one CTA leaves.

    Attributes
    ----------
    counts : Counts
        The counts, once the launch has ended.
    """

    counts: Counts

    def __init__(self, *, with_caches: bool = False, chip: Chip | None = None) -> None:
        self._with_caches = with_caches
        self._chip = chip
        self._memory: caches.Memory | None = None
        self._multiprocessors = 1

    def begin(self, kernel: Kernel) -> None:
        rows = [
            InstructionCounts(item.line, str(item.source or ""), item.text, class_of(item))
            for item in kernel.instructions
        ]
        self.counts = Counts(kernel.name, rows)
        self._memory = None
        self._flop = [flop_of_lane(item) for item in kernel.instructions]

    def batch_begins(self, batch: Batch) -> None:
        if self._with_caches and self._memory is None:
            chip = self._chip or _chip_for(batch.kernel.target)
            l1_bytes = chip.sm.shared_bytes + _L1_BEYOND_SHARED - -(-batch.shared_end // 128) * 128
            self._memory = caches.Memory(chip.sms, l1_bytes, chip.l2_bytes or 0)
            self._multiprocessors = chip.sms

    def executed(self, batch: Batch, block: Block, lanes: Lanes) -> None:
        if not block.instructions:
            return
        warp = lanes.pick(batch.warp_of_lane)
        warps = 1 + int(np.count_nonzero(warp[1:] != warp[:-1]))
        for instruction in block.instructions:
            row = self.counts.instructions[instruction.index]
            row.warps += warps
            row.threads += lanes.count

    def predicated_off(self, batch: Batch, instruction: Instruction, lanes: Lanes, mask: Array) -> None:
        del batch
        self.counts.instructions[instruction.index].threads -= lanes.count - int(np.count_nonzero(mask))

    def barrier_arrived(self, batch: Batch, instruction: Instruction, lanes: Lanes, barrier: Array) -> None:
        del instruction, barrier
        self.counts.barriers += len(np.unique(lanes.pick(batch.warp_of_lane)))

    def tma_global_access(self, access: TmaGlobalAccess) -> None:
        row = self.counts.instructions[access.instruction.index]
        some = access.size > 0
        start, size = access.start[some], access.size[some]
        row.requests += len(access.lanes)
        row.bytes += int(size.sum())
        row.sectors += int(((start + size - 1) // _SECTOR - start // _SECTOR + 1).sum())
        row.lines += int(((start + size - 1) // _LINE - start // _LINE + 1).sum())
        row.ideal_sectors += -(-int(size.sum()) // _SECTOR)

    def agent_access(self, access: AgentAccess) -> None:
        size = _ROW if access.start is None else access.size
        self.counts.instructions[access.instruction.index].engine_bytes += size * access.rows.size

    def access(self, access: Access) -> None:
        warps = rows_of(access.lanes)
        addresses, active = warps.spread(access.address), warps.active
        row = self.counts.instructions[access.instruction.index]
        if access.space == "global":
            size: int | Array = access.size if access.sizes is None else warps.spread(access.sizes, 1)
            row.requests += len(addresses)
            row.bytes += access.lanes.count * access.size if access.sizes is None else int(access.sizes.sum())
            row.sectors += int(sectors.request_sectors(addresses, active, size).sum())
            row.lines += int(sectors.request_lines(addresses, active, size).sum())
            row.ideal_sectors += int(sectors.ideal_sectors(addresses, active, size).sum())
            if self._memory is not None:
                self._through_caches(access, warps, addresses, size)
        elif access.space == "shared":
            if not access.asynchronous:
                row.requests += len(addresses)
                row.bytes += access.lanes.count * access.size
            if access.instruction.name in ("ldmatrix", "stmatrix"):
                matrices = int(next(part for part in access.instruction.modifiers if part in ("x1", "x2", "x4"))[1:])
                row.wavefronts += int(banks.matrix_wavefronts(addresses, matrices).sum())
                row.ideal_wavefronts += matrices * len(addresses)
            else:
                write = access.write
                row.wavefronts += int(banks.wavefronts(addresses, active, access.size, write).sum())
                row.ideal_wavefronts += int(banks.ideal_wavefronts(addresses, active, access.size, write).sum())

    def _through_caches(self, access: Access, warps: Warps, addresses: Array, size: int | Array) -> None:
        assert self._memory is not None
        batch = access.batch
        request, touched = sectors.touched_sectors(addresses, warps.active, size)
        cta = np.array(batch.ctas)[warps.numbers // batch.geometry.warps]
        multiprocessor = cta[request] % self._multiprocessors
        past_l1 = access.atomic or (access.instruction.name == "cp" and "cg" in access.instruction.modifiers)
        for write in (False, True):
            if access.write if write else access.read:
                self._memory.access(multiprocessor, touched, np.full(len(touched), write), past_l1)

    def end(self) -> None:
        counts = self.counts
        counts.flop = round(sum(row.threads * flop for row, flop in zip(counts.instructions, self._flop, strict=True)))
        if self._memory is not None:
            self._memory.flush()
            traffic = self._memory.traffic
            counts.bytes_by_level = traffic.bytes_by_level()
            counts.reads = {
                "l2": sectors.SECTOR * traffic.l2_loads,
                "memory": sectors.SECTOR * traffic.memory_loads,
            }
            counts.hit_rates = {
                "l1": traffic.l1_load_hits / max(traffic.l1_loads, 1),
                "l2": traffic.l2_load_hits / max(traffic.l2_loads, 1),
            }


def _chip_for(target: str) -> Chip:
    """Return a chip that runs code for an architecture, the newest that is not newer where none is of the same."""
    capability = Arch.parse(target).capability
    known = [chip for chip in CHIPS if chip.l2_bytes]
    same = [chip for chip in known if chip.capability == capability]
    older = [chip for chip in known if chip.capability <= capability]
    return (same or sorted(older, key=lambda chip: chip.capability)[-1:] or known)[0]
