"""Timing that begins on a device as warm as under steady load: its clock is higher while it is cool."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from . import protocol
from .device import BenchDevice, Work
from .timing import Timing, estimate, load, measure


class PacedTimer:
    """Samples works interleaved, after a load that makes up for the pause before.

    Parameters
    ----------
    seconds : float
        Time to spend on each measurement.
    warm_up_seconds : float
        Load before the first.
    loaded_by : int
        Number of the first measurement's works that are that load, where `warm` gave none.
    clock : callable
        Gives seconds; finds pauses in which the device cools down.
    """

    def __init__(
        self,
        device: BenchDevice,
        seconds: float,
        warm_up_seconds: float,
        loaded_by: int = 1,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._device, self._seconds, self._warm_up_seconds = device, seconds, warm_up_seconds
        self._loaded_by, self._clock = loaded_by, clock
        self._cold, self._loaded_at = True, clock()

    def warm(self, work: Work) -> None:
        """Load the device with some work, in the place of what is measured first."""
        load(self._device, [work], self._warm_up_seconds)
        self._cold, self._loaded_at = False, self._clock()

    def measure(
        self,
        works: Sequence[Work],
        sets: int,
        at_least: int = protocol.MIN_ROUNDS,
        before_last: Callable[[], None] = lambda: None,
    ) -> Timing:
        """Sample works in turns, as `timing.measure` does; after more load where the device had nothing to do."""
        paused = self._clock() - self._loaded_at > protocol.PAUSE_SECONDS
        warm_up = protocol.COLD_WARM_UP_SECONDS if paused else protocol.POINT_WARM_UP_SECONDS
        if self._cold:
            loading = works[: self._loaded_by]
            for work in loading:
                # The first call of a work loads its code.
                estimate(self._device, work)
            load(self._device, loading, self._warm_up_seconds)
            self._cold = False
        timing = measure(self._device, works, sets, self._seconds, at_least, warm_up=warm_up, before_last=before_last)
        self._loaded_at = self._clock()
        return timing
