"""Checks: what can be wrong with a kernel beyond its numbers."""

from __future__ import annotations

from ..observe import Observer
from .barrier_use import BarrierUse
from .clocks import Clocks
from .collected import Collected
from .global_races import GlobalRaces
from .registers import UninitialisedRegisters
from .shared_races import SharedRaces
from .unfinished import UnfinishedCopies

__all__ = ["Collected", "all_checks"]


def all_checks(collected: Collected) -> tuple[Observer, ...]:
    """Return every check; what they find goes into `collected`."""
    clocks, registers = Clocks(), UninitialisedRegisters(collected)
    return (
        # Before the checks that ask for it.
        clocks,
        BarrierUse(collected),
        SharedRaces(collected, clocks, registers),
        GlobalRaces(collected, clocks),
        registers,
        UnfinishedCopies(collected, clocks),
    )
