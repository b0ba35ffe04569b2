"""Checks: errors of a kernel beyond wrong numbers."""

from __future__ import annotations

from ..arrays import DeviceArrays
from ..engine.observer import Observer
from .barrier_use import BarrierUse
from .clocks import Clocks
from .collected import Collected
from .gaps import Gaps
from .global_races import GlobalRaces
from .grid_order import GridOrder, Predecessors
from .lane_races import LaneRaces
from .late_reads import LateReads
from .lifetimes import Lifetimes
from .local_memory import UnwrittenLocalMemory
from .mbarrier_use import MBarrierUse
from .messages import Messages
from .product_registers import ProductRegisters
from .registers import UninitialisedRegisters
from .shared_races import SharedRaces
from .store_conflicts import StoreConflicts
from .unfinished import UnfinishedCopies

__all__ = ["Collected", "Predecessors", "all_checks"]


def all_checks(
    collected: Collected, device: DeviceArrays, before: Predecessors | None = None, dependent: bool = False
) -> tuple[Observer, ...]:
    """Return every check of a launch on those operands; their findings go into `collected`.

    `before` has the accesses of the launches before, where one of several is dependent.
    """
    clocks, registers = Clocks(dependent), UninitialisedRegisters(collected)
    messages = Messages(clocks)
    shared = SharedRaces(collected, clocks, registers)
    return (
        # Before the clocks: the waits that it checks advance them.
        MBarrierUse(collected, clocks),
        # Before the other checks, which read them.
        clocks,
        messages,
        BarrierUse(collected),
        shared,
        UnwrittenLocalMemory(collected, registers),
        LateReads(shared),
        LaneRaces(collected),
        GlobalRaces(collected, clocks, messages),
        Gaps(collected, device),
        registers,
        UnfinishedCopies(collected, clocks),
        ProductRegisters(collected),
        Lifetimes(collected, clocks),
        StoreConflicts(collected),
        *([] if before is None else [GridOrder(collected, clocks, before, dependent)]),
    )
