"""The mbarriers of a batch: arrivals and bytes that each waits for, and its phases."""

from __future__ import annotations

import numpy as np

from gemmule.vgpu.dataflow.control_flow import flow_of
from gemmule.vgpu.ptx.module import Instruction
from gemmule.vgpu.types import Array

from ..lanes import Lanes
from ..running_batch import RunningBatch, Unit

#: Bytes of an mbarrier.
SIZE = 8
#: Largest number of arrivals, and of bytes, that one counts.
LIMIT = (1 << 20) - 1
#: A state is a phase, and from this bit on the arrivals that it waited for.
_PENDING = 32


def pending_in(states: Array) -> Array:
    """Return the arrivals that phases waited for when their states were got."""
    found: Array = (states.astype(np.uint64) >> np.uint64(_PENDING)).astype(np.uint32)
    return found


class MBarriers(Unit):
    """The mbarriers of a batch; the place of one is its byte position in the batch's shared memory, divided by 8.

    Attributes
    ----------
    expected : array of int
        Arrivals of a phase; 0 where there is no mbarrier.
    pending : array of int
        Arrivals that the current phase still waits for.
    bytes : array of int
        Bytes that it still waits for; negative where more have arrived than were expected.
    phase : array of int
        Phases completed.
    """

    def __init__(self, batch: RunningBatch) -> None:
        super().__init__(batch)
        places = len(batch.shared) // SIZE
        self.expected = np.zeros(places, np.int32)
        self.pending = np.zeros(places, np.int32)
        self.bytes = np.zeros(places, np.int32)
        self.phase = np.zeros(places, np.int32)
        # Lanes whose wait fails since the phase is not complete; those that failed since the last phase, by block.
        self.failed = np.zeros(batch.lane_count, np.bool_)
        self._failed_before: dict[int, Array] = {}
        # The same of waits that are answered at once, by instruction.
        self._peeked: dict[int, Array] = {}

    def initialise(self, places: Array, counts: Array) -> None:
        """Make mbarriers."""
        self.expected[places] = counts
        self.pending[places] = counts
        self.bytes[places] = 0
        self.phase[places] = 0

    def invalidate(self, places: Array) -> None:
        """Make them ordinary memory again."""
        self.expected[places] = 0

    def check(self, instruction: Instruction, lanes: Lanes, places: Array) -> None:
        """Refuse what was not initialised."""
        missing = self.expected[places] == 0
        if missing.any():
            raise self._batch.fault(
                "barrier", f"there is no mbarrier at {self.name(int(places[missing][0]))}: it was not initialised",
                instruction, lanes, missing, space="shared", address=self.address(int(places[missing][0])),
            )  # fmt: skip

    def expect(self, places: Array, sizes: Array) -> None:
        """Expect more bytes in the current phase."""
        np.add.at(self.bytes, places, sizes)

    def states(self, places: Array, counts: Array) -> Array:
        """Return the states of phases before arrivals, of which those of lower lanes come first."""
        pending = self.pending[places].astype(np.int64)
        if len(np.unique(places)) < len(places):
            order = np.argsort(places, kind="stable")
            before = np.cumsum(counts[order]) - counts[order]
            first = np.concatenate([[True], places[order][1:] != places[order][:-1]])
            start = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
            pending[order] -= before - before[start]
        phase = self.phase[places].astype(np.int64)
        found: Array = (phase | np.maximum(pending, 0) << _PENDING).astype(np.uint64)
        return found

    def check_incomplete(self, instruction: Instruction, lanes: Lanes, places: Array, counts: Array) -> None:
        """Refuse arrivals that complete a phase where they say that they do not."""
        unique, inverse = np.unique(places, return_inverse=True)
        last = (np.bincount(inverse, counts) >= self.pending[unique])[inverse]
        if last.any():
            place = int(places[last][0])
            raise self._batch.fault(
                "barrier", f"arrivals that must not complete a phase complete that of {self.state(place)}", instruction,
                lanes, last, space="shared", address=self.address(place),
            )  # fmt: skip

    def expect_arrivals(self, places: Array) -> None:
        """Expect one more arrival in the current phase, for each of the places."""
        np.add.at(self.pending, places, 1)

    def arrive(self, instruction: Instruction, lanes: Lanes, places: Array, counts: Array) -> None:
        """Count arrivals: those of a warp together, one warp after another.

        More arrivals of a warp than a phase waits for are a fault, as on an H200.
        """
        unique, inverse = np.unique(places, return_inverse=True)
        arrivals = np.bincount(inverse, counts).astype(np.int32)
        over = arrivals > self.pending[unique]
        if over.any():
            late = over[inverse]
            warps = lanes.index // 32
            for warp in np.unique(warps[late]).tolist():
                of_warp = late & (warps == warp)
                self._arrive_of_warp(instruction, lanes, places, np.where(of_warp, counts, 0))
            arrivals[over] = 0
        self.pending[unique] -= arrivals
        self._complete(unique)

    def _arrive_of_warp(self, instruction: Instruction, lanes: Lanes, places: Array, counts: Array) -> None:
        unique, inverse = np.unique(places[counts > 0], return_inverse=True)
        arrivals = np.bincount(inverse, counts[counts > 0]).astype(np.int32)
        over = arrivals > self.pending[unique]
        if over.any():
            place = int(unique[over][0])
            raise self._batch.fault(
                "barrier",
                f"{int(arrivals[over][0])} arrivals, more than {self.state(place)} waits for",
                instruction, lanes, (places == place) & (counts > 0), space="shared", address=self.address(place),
            )  # fmt: skip
        self.pending[unique] -= arrivals
        self._complete(unique)

    def complete_bytes(self, places: Array, sizes: Array) -> None:
        """Count bytes that have arrived."""
        np.subtract.at(self.bytes, places, sizes)
        self._complete(np.unique(places))

    def is_complete(self, places: Array, parity: Array) -> Array:
        """Say whether the phase of that parity has completed: the last one, or the current one has not."""
        found: Array = (self.phase[places] & 1) != (parity & 1)
        return found

    def _complete(self, places: Array) -> None:
        done = places[(self.pending[places] == 0) & (self.bytes[places] == 0) & (self.expected[places] > 0)]
        if not len(done):
            return
        self.phase[done] += 1
        self.pending[done] = self.expected[done]
        self._failed_before, self._peeked = {}, {}
        for observer in self._batch.observers:
            observer.mbarrier_completed(self._batch, done)
        self._batch.scheduler.wake()

    def fail_once(self, instruction: int, index: Array) -> None:
        """Let a wait of lanes fail, unless it has since the last phase: where it does loop, it stops them then."""
        before = self._peeked.setdefault(instruction, np.zeros(self._batch.lane_count, np.bool_))
        fresh = index[~before[index]]
        before[fresh] = self.failed[fresh] = True

    def fail_waits(self) -> bool:
        scheduler, blocks = self._batch.scheduler, flow_of(self._batch.kernel).blocks
        fresh = False
        for block, lanes in scheduler.parked.items():
            if blocks[block].instructions[0].name != "mbarrier":
                continue
            before = self._failed_before.setdefault(block, np.zeros(self._batch.lane_count, np.bool_))
            index = lanes.index[~before[lanes.index]]
            before[index] = self.failed[index] = True
            fresh |= bool(len(index))
        if fresh:
            scheduler.wake()
        return fresh

    def address(self, place: int) -> int:
        """Return the address of an mbarrier within its CTA."""
        return place * SIZE % self._batch.shared_stride

    def cta(self, place: int) -> int:
        """Return the CTA of an mbarrier, counted within the batch."""
        return place * SIZE // self._batch.shared_stride

    def name(self, place: int) -> str:
        """Say where an mbarrier is."""
        label = self._label(place)
        return f"{self.address(place):#x}{f' ({label})' if label else ''}{self._of_cta(place)}"

    def _label(self, place: int) -> str:
        """Return an mbarrier's name in the source; nothing where it has none."""
        tile = self._batch.tile_at(self.address(place))
        if tile is None:
            return ""
        return f"{tile.name}[{(self.address(place) - tile.start) // SIZE}]" if tile.size > SIZE else tile.name

    def _of_cta(self, place: int) -> str:
        batch = self._batch
        if batch.cluster_ctas == 1:
            return ""
        return f" of CTA {batch.geometry.coordinates(batch.ctas[self.cta(place)])}"

    def state(self, place: int) -> str:
        """Say what an mbarrier has counted."""
        expected, pending = int(self.expected[place]), int(self.pending[place])
        parts = [self._label(place), f"phase {int(self.phase[place])}", f"{expected - pending} of {expected} arrived"]
        parts.append(f"{int(self.bytes[place])} bytes pending")
        where = f"{self.address(place):#x}{self._of_cta(place)}"
        return f"mbarrier {where} ({', '.join(part for part in parts if part)})"
