"""A running batch: CTAs with their scheduler, observers and units, the state that instructions share.

It has no instruction of its own. Instructions are functions of a frame: a list of arrays, one for each pair of register
and type that instructions name, each with one element for each running lane; constants are in the same list. So an
instruction is written once and runs on any set of lanes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

from gemmule.vgpu.ptx.module import Instruction
from gemmule.vgpu.report import Finding
from gemmule.vgpu.types import Array

from .batch import Batch, LaunchState
from .lanes import Lanes
from .observer import Access, Observer
from .registers import Copies, RegisterUse
from .scheduler import Scheduler
from .special import fill_specials


class Unit:
    """State that instructions of one kind share, with their operations in flight.

    Parameters
    ----------
    batch : RunningBatch
        The CTAs.
    """

    def __init__(self, batch: RunningBatch) -> None:
        self._batch = batch

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """Return the unit of this class."""
        found: Self = batch.units[cls]
        return found

    def complete_one(self) -> bool:
        """Complete an operation in flight that an mbarrier may wait for; return False where there is none."""
        return False

    def fail_waits(self) -> bool:
        """Fail waits that may fail, since nothing else can run; return False if all those lanes failed before."""
        return False

    def lanes_ended(self) -> None:
        """Release lanes that waited for threads that have ended."""

    def finish(self) -> None:
        """Complete all operations in flight, since all threads have ended."""

    def deadlocks(self) -> Iterator[Finding]:
        """Yield a finding for each warp that waits here."""
        yield from ()


class AsyncUnit(Unit):
    """A unit whose operations complete as the schedule decides.

    Attributes
    ----------
    chance : float
        Probability that an operation completes at once in the random schedule.
    """

    chance = 0.5

    def __init__(self, batch: RunningBatch) -> None:
        super().__init__(batch)
        self._schedule = batch.launch_state.schedule

    def _at_once(self) -> bool:
        """Decide whether an operation completes as it is issued."""
        return self._schedule == "eager" or (
            self._schedule == "random" and bool(self._batch.random.random() < self.chance)
        )

    def _one_of(self, operations: list[Any]) -> Any:
        """Take the operation in flight that completes next."""
        number = int(self._batch.random.integers(len(operations))) if self._schedule == "random" else 0
        return operations.pop(number)


class Frame(list[Any]):
    """The slots of the running lanes.

    Attributes
    ----------
    batch : RunningBatch
        The CTAs that the lanes belong to.
    lanes : Lanes
        The lanes.
    """

    __slots__ = ("_copies", "batch", "lanes")

    def __init__(self, batch: RunningBatch, lanes: Lanes) -> None:
        super().__init__(batch.register_file.template)
        self.batch = batch
        self.lanes = lanes
        self._copies: Copies | None = None

    def part(self, mask: Array, slots: Iterable[int]) -> Frame:
        """Return a frame of those lanes for which `mask` is true, with copies of those slots."""
        frame = Frame(self.batch, self.lanes.where(mask))
        for slot in slots:
            frame[slot] = self[slot][mask]
        return frame

    def fill(self, uses: RegisterUse) -> None:
        """Fill the slots: with the registers themselves for a range of lanes, with copies otherwise."""
        register_file, run = self.batch.register_file, self.lanes.run
        if run is not None:
            for view in uses.views:
                self[view.slot] = register_file.view(view, run)
            return
        self._copies = register_file.copies(self.lanes, uses)
        for view, position in zip(uses.views, uses.positions, strict=True):
            self[view.slot] = self._copies[view.width][position].view(view.dtype)

    def store(self, uses: RegisterUse) -> None:
        """Write results back to the register file, where this frame holds copies."""
        if self._copies is not None:
            self.batch.register_file.store(self.lanes, uses, self._copies)


class RunningBatch(Batch):
    """A batch of CTAs that runs.

    Parameters
    ----------
    launch_state : LaunchState
        State shared by all batches of the launch.
    ctas : sequence of int
        Positions of the CTAs in the grid, cluster by cluster: whole clusters.
    units : sequence of type of Unit
        Units that the instruction set needs.
    observers : tuple of Observer
        Observers of the run.
    """

    def __init__(
        self,
        launch_state: LaunchState,
        ctas: Sequence[int],
        units: Sequence[type[Unit]] = (),
        observers: tuple[Observer, ...] = (),
    ) -> None:
        super().__init__(launch_state, ctas)
        self.observers = observers
        self.scheduler = Scheduler(self)
        self._frames: dict[tuple[int, int, int], Frame] = {}
        fill_specials(self)
        for kind in units:
            self.units[kind] = kind(self)

    def frame(self, lanes: Lanes, uses: RegisterUse) -> Frame:
        """Return a frame for those lanes; the one of a range of lanes is cached."""
        if lanes.run is None:
            frame = Frame(self, lanes)
            frame.fill(uses)
            return frame
        key = (id(uses), lanes.run.start, lanes.run.stop)
        found = self._frames.get(key)
        if found is None:
            found = self._frames[key] = Frame(self, lanes)
            found.fill(uses)
        return found

    def access(
        self, instruction: Instruction, lanes: Lanes, space: str, address: Array, size: int, **what: Any
    ) -> None:
        """Show the observers a memory access; `what` is the rest of an `Access`."""
        access = Access(instruction, self, lanes, space, address, size, **what)
        for observer in self.observers:
            observer.access(access)

    def end(self, instruction: Instruction | None, lanes: Lanes) -> None:
        """End threads."""
        self.alive[lanes.index] = False
        for observer in self.observers:
            observer.exited(self, instruction, lanes)
        for unit in self.units.values():
            unit.lanes_ended()
        self.scheduler.wake()

    def complete_one(self) -> bool:
        """Complete an operation in flight that an mbarrier may wait for; return False where there is none."""
        return any(unit.complete_one() for unit in self.units.values())

    def unblock(self) -> bool:
        """Complete an operation in flight, or else fail waits that may fail; return False where nothing changes."""
        return self.complete_one() or any(unit.fail_waits() for unit in self.units.values())

    def finish(self) -> None:
        """Complete all operations in flight, since all threads have ended."""
        for unit in self.units.values():
            unit.finish()
