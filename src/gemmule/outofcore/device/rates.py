"""How fast a device computes and matrices come and go: measured, or stated."""

from __future__ import annotations

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Rates:
    """Rates that a plan is chosen and predicted with.

    Attributes
    ----------
    compute : float
        FLOP/s of products that are written in the result's type.
    accumulate : float
        FLOP/s of products that are added to a sum in the accumulator's type.
    h2d, d2h : float
        Bytes a second from pinned memory to the device, and back.
    source, sink : float
        Bytes a second at which operands reach pinned memory, and results leave it; infinite where nothing is staged.
    half : int
        Sides m, n and four times the depth k at which a product runs at half its rate.
    launch : float
        Seconds that every operation takes before it begins.
    files : bool
        Whether `source` and `sink` are those of a disk.
    measured : bool
        Whether they were measured on this machine.
    """

    compute: float
    accumulate: float
    h2d: float
    d2h: float
    source: float = math.inf
    sink: float = math.inf
    half: int = 0
    launch: float = 5e-6
    files: bool = False
    measured: bool = False

    def seconds(self, m: int, n: int, k: int, *, added: bool) -> float:
        """Return what a product of that shape takes; `added` where it is added to a sum."""
        rate = self.accumulate if added else self.compute
        filled = 1.0
        for extent in (m, n, 4 * k):
            filled *= extent / (extent + self.half) if extent else 1.0
        return 2 * m * n * k / (rate * filled)

    @property
    def arrival(self) -> float:
        """Bytes a second at which operands reach the device: the slower of the two steps, which overlap."""
        return min(self.h2d, self.source)

    @property
    def departure(self) -> float:
        """Bytes a second at which results leave the device and are where they belong."""
        return min(self.d2h, self.sink)
