"""Bytes between the L2 cache and device memory, and the hit rate that follows from them.

The model: CTAs start in the order of their numbers and walk along K at the same speed. What several of them read at the
same time is fetched once; nothing of it is left when others come to the same place later. Which CTAs are at the same
place no count tells. There are two figures, for the two ways that were seen:

- in step: all CTAs that run at a time, a wave;
- apart: one CTA of each SM. Those that share an SM are evenly spread along K.

Where L2 has several parts, an SM asks the part next to it. What that does not hold it gets from the
part next to the memory, which is one lookup more, and keeps a copy. CTAs are next to each part with the same chance. A
store is looked up again in the part next to the memory. What all SMs read fits into L2 only if it fits
in one part.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from gemmule.core.chip import Chip
from gemmule.core.problem import GemmProblem, Problem
from gemmule.core.spec import Choice

from .instrument import Counted
from .sample import buffers, k_tile_depth, resized, spanned

# Most bytes of an operand that are laid out to see what a wave reads.
_LARGEST = 1 << 28
_LINE = 128
# Loops over K are unrolled so often, at least.
_UNROLLED = 8


@dataclasses.dataclass(frozen=True)
class Behind:
    """Bytes between the L2 cache and device memory."""

    bytes: int  #: Read and written, by CTAs in step.
    apart_bytes: int  #: The same with CTAs not in step.
    written: int  #: Written bytes, in either case.
    #: copied, apart_copied: Bytes that parts of L2 get from each other, in step and apart.
    copied: int
    apart_copied: int
    how: str  #: Method of counting.

    def hit_rates(self, asked: int, stored: int, partitions: int) -> tuple[float, float]:
        """Return the hit rates of L2, with CTAs in step and not.

        Parameters
        ----------
        asked, stored : int
            Bytes that SMs read from L2, and that they write to it.
        partitions : int
            Parts of the L2 cache.
        """

        def rate(fetched: int, copied: int) -> float:
            lookups = asked + copied + stored + stored * (partitions - 1) / partitions
            return max(0.0, 1 - (fetched + copied) / lookups) if lookups else 1.0

        return rate(self.bytes - self.written, self.copied), rate(self.apart_bytes - self.written, self.apart_copied)


def copied_bytes(shared: Mapping[int, int], partitions: int) -> int:
    """Return the bytes that partitions of L2 get from each other, of bytes by the number of CTAs that read them."""
    asks = 1 / partitions
    return round(sum((partitions - 1) * (1 - (1 - asks) ** readers) * count for readers, count in shared.items()))


def behind_l2(problem: Problem, choice: Choice, chip: Chip, kernel: Counted, ctas: int, blocks: int) -> Behind:
    """Estimate what passes between the L2 cache and device memory, and say how.

    Parameters
    ----------
    problem, choice, chip, kernel
        The launch.
    ctas : int
        Its CTAs; where they stay, as many as there would be if each computed one tile.
    blocks : int
        CTAs that an SM holds.
    """
    least, parts = problem.bytes_min, chip.l2_partitions
    wave = chip.sms * max(blocks, 1)
    if not isinstance(problem, GemmProblem):
        return Behind(least, least, least // 2, 0, 0, "each element in and out")
    written = problem.m * problem.n * problem.d.dtype.itemsize

    def once(how: str) -> Behind:
        copied = (least - written) * (parts - 1)
        return Behind(least, least, written, copied, copied, how)

    if ctas <= wave:
        return once("each operand once: one wave")
    room = chip.l2_bytes // parts if chip.l2_bytes is not None else None
    if room is not None and least <= room:
        return once("each operand once: fits in L2")
    depth = math.lcm(k_tile_depth(choice.config, problem), _UNROLLED)
    # The remainder of K stays, so that the same code runs.
    small = resized(problem, (problem.m, problem.n, min(depth + problem.k % depth, problem.k)))
    assert isinstance(small, GemmProblem)
    if max(spanned(small.a) * small.a.dtype.itemsize, spanned(small.b) * small.b.dtype.itemsize) > _LARGEST:
        return once("least: too long to follow")
    # Stores are not replayed: rows of the result may overlap, and need little memory.
    line = _LINE // small.d.dtype.itemsize
    small = dataclasses.replace(small, d=dataclasses.replace(small.d, row_stride=small.d.row_stride % line or line))
    if choice.signature(small) != choice.signature(problem):
        return once("least: waves not followed")

    def read(together: int) -> tuple[int, int]:
        """Return the bytes that so many CTAs fetch, and those that partitions of L2 get from each other for them."""
        launch = choice.spec.launch(small, choice.config)
        cluster = math.prod(launch.cluster)
        if ctas > math.prod(launch.grid):
            launch = dataclasses.replace(launch, grid=(ctas, 1, 1))
        together = together // cluster * cluster
        shared = kernel.shared_bytes(launch, buffers(small, seed=1), range(together))
        return sum(shared.values()) * problem.k // small.k, copied_bytes(shared, parts) * problem.k // small.k

    fetched, copied = read(wave)
    if room is not None and fetched + written * wave // ctas <= room:
        return once("each operand once: L2 keeps them")
    apart_fetched, apart_copied = (fetched, copied) if blocks <= 1 else read(chip.sms)
    return Behind(
        bytes=written + max(least - written, fetched * ctas // wave),
        apart_bytes=written + max(least - written, apart_fetched * ctas // chip.sms),
        written=written,
        copied=copied * ctas // wave,
        apart_copied=apart_copied * ctas // chip.sms,
        how=f"waves of {wave} CTAs share reads",
    )
