"""Rates of a device, of its links and of the matrices' storage: measured, or stated."""

from __future__ import annotations

import dataclasses
import math

from gemmule.core.block_triangle import BlockTriangle
from gemmule.core.dataclass import dataclass

#: Waves of CTAs that a product leaves idle while another stream computes, on one of several, times how many these are:
#: as measured with 20 to 65 products of float32 on two and on four streams of an H200.
_LEFT_IDLE = 0.17


@dataclass(frozen=True)
class Rates:
    """Rates that a plan is chosen and predicted with."""

    compute: float  #: FLOP/s of products that are written in the result's type.
    accumulate: float  #: FLOP/s of products that are added to a sum in the accumulator's type.
    #: h2d, d2h: Bytes a second from pinned memory to the device, and back.
    h2d: float
    d2h: float
    #: source, sink: Bytes a second at which operands reach pinned memory, and results leave it; infinite where nothing
    #: is staged.
    source: float = math.inf
    sink: float = math.inf
    #: Sides m, n and four times the depth k at which a product runs at half its rate; where `waves` is known, the depth
    #: alone.
    half: int = 0
    launch: float = 5e-6  #: Seconds that every operation takes before it begins.
    #: Seconds that the host takes to queue an operation: none begins before all earlier ones are queued.
    issue: float = 0.0
    #: Seconds in which a byte of the device's memory is allocated, by who queues what first fills it.
    allocate: float = 0.0
    files: bool = False  #: Whether `source` and `sink` are those of a disk.
    measured: bool = False  #: Whether they were measured on this machine.
    #: side, depth: Sides and depth of the products that were measured; 0 where the rates are those of very large ones.
    #: Adding to a sum takes longer than writing a result by the same time for every depth.
    side: int = 0
    depth: int = 0
    #: Rows and columns that a CTA computes, and how many CTAs run at a time: a product takes whole waves of them. Zeros
    #: where that is not known.
    waves: tuple[int, int, int] = (0, 0, 0)
    #: Rows and columns of the steps of a staircase above which products are not computed where it is not needed; 0
    #: where everything is computed.
    stairs: int = 0
    #: The share of the links' rates that strided copies reach in pinned memory, for lines of so many
    #: bytes of a line on, ascending. Empty where lines do not matter.
    lines: tuple[tuple[int, float], ...] = ()
    #: Bytes of a line at which strided lines are read and written at half the rates of `source` and `sink`.
    staged_line: float = 0.0
    longest: float = math.inf  #: Bytes of the longest line that is read at once: what a pinned buffer holds.
    #: Seconds that a product takes for each element of its operands before it begins: of kernels that split them into
    #: parts. `compute` and `accumulate` are the rates of what follows.
    split: float = 0.0
    #: Seconds that a product takes for each element of its result after it has multiplied: of kernels that join parts.
    join: float = 0.0
    pin: float = 0.0  #: Seconds in which a byte of pinned memory is made.
    #: Shares of `source` and `sink` that are left while the other one works, too.
    duplex_shares: tuple[float, float] = (1.0, 1.0)
    #: slow, fast: `source` and `sink` as they were in the slowest and the fastest part of what was measured, as shares
    #: of them.
    slow: tuple[float, float] = (1.0, 1.0)
    fast: tuple[float, float] = (1.0, 1.0)
    ready: float = 0.0  #: Seconds that go by before anything else, besides those that the device's memory takes.

    def seconds(
        self, m: int, n: int, k: int, *, added: bool, lanes: int = 1, needed: BlockTriangle | None = None
    ) -> float:
        """Return the time of a product of that shape; `added` where it is added to a sum, `needed` if it is not all.

        With several `lanes` (streams that compute), the others fill most of the SMs that its last wave leaves idle.
        """
        if not self.stairs:
            needed = None
        rate = self.accumulate if added and not self.depth else self.compute
        filled = 1.0
        for extent in (4 * k,) if self.waves[2] else (m, n, 4 * k):
            filled *= extent / (extent + self.half) if extent else 1.0
        found = 2 * self._elements(m, n, lanes, needed) * k / (rate * filled)
        if self.side:
            found *= self.side * self.side / self._elements(self.side, self.side)
        area = m * n if needed is None else needed.tiles(m, n)
        if added and self.depth:
            found += 2 * area * self.depth * max(1 / self.accumulate - 1 / self.compute, 0.0)
        return found + self.split * (m + n) * k + self.join * area

    def _elements(self, m: int, n: int, lanes: int = 1, needed: BlockTriangle | None = None) -> float:
        """Return how many elements of a result take as long as whole waves of CTAs."""
        tall, wide, ctas = self.waves
        if not ctas:
            return m * n if needed is None else needed.tiles(m, n)
        taken = -(-m // tall) * -(-n // wide) if needed is None else needed.tiles(m, n, tall, wide)
        return (-(-taken // ctas) * ctas if lanes == 1 else taken + _LEFT_IDLE / lanes * ctas) * tall * wide

    def arriving(self, nbytes: int, line: float) -> float:
        """Return the seconds in which that many bytes reach the device, from lines of so many bytes on the host."""
        return self._through(nbytes, self.h2d, self.source, min(line, self.longest))

    def departing(self, nbytes: int, line: float) -> float:
        """Return the seconds in which that many bytes leave the device, to lines of so many bytes on the host."""
        return self._through(nbytes, self.d2h, self.sink, line)

    def _through(self, nbytes: int, link: float, stage: float, line: float) -> float:
        """Return the time of the slower step: what is staged crosses the link in long lines."""
        if math.isinf(stage):
            share = next((share for least, share in reversed(self.lines) if line >= least), 1.0)
            return nbytes / (link * share)
        return max(nbytes / link, nbytes / stage * (1 + self.staged_line / line if line else 1.0))

    def at(self, share: tuple[float, float]) -> Rates:
        """Return the rates with such shares of `source` and `sink`."""
        return dataclasses.replace(self, source=self.source * share[0], sink=self.sink * share[1])

    def duplex(self, bytes_in: int, bytes_out: int) -> Rates:
        """Return the rates at which so much comes and goes, at the same time for as long as there is both."""
        if self.one_disk or self.duplex_shares == (1.0, 1.0) or math.inf in (self.source, self.sink):
            return self
        source, sink = (rate * share for rate, share in zip((self.source, self.sink), self.duplex_shares, strict=True))
        both = min(bytes_in / source, bytes_out / sink)
        come = both + (bytes_in - both * source) / self.source
        leave = both + (bytes_out - both * sink) / self.sink
        return dataclasses.replace(
            self, source=bytes_in / come if come else self.source, sink=bytes_out / leave if leave else self.sink
        )

    @property
    def one_disk(self) -> bool:
        """Whether operands and results take turns at a disk."""
        return self.files and math.isfinite(self.source) and math.isfinite(self.sink)

    @property
    def arrival(self) -> float:
        """Bytes a second at which operands reach the device: the slower of the two steps, which overlap."""
        return min(self.h2d, self.source)
