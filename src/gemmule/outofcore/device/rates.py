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
    files: bool = False
    measured: bool = False

    @property
    def arrival(self) -> float:
        """Bytes a second at which operands reach the device: the slower of the two steps, which overlap."""
        return min(self.h2d, self.source)

    @property
    def departure(self) -> float:
        """Bytes a second at which results leave the device and are where they belong."""
        return min(self.d2h, self.sink)
