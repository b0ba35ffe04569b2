"""What passes between the L2 cache and device memory, and the hit rate that follows from it.

The model: CTAs start in the order of their numbers, and L2 holds what was read last. How much of it serves another CTA
depends on how far CTAs drift apart, which no count tells. So there are two figures, and a launch lies between them:

- in step: all CTAs that run at a time, a wave, walk along K together. What several of them read is fetched once.
- apart: CTAs start one after another, evenly spread in time. One finds what another has read only if L2 still holds
  it: as many CTAs, in order, share their reads as have operands that fit into L2 together.

Where L2 has several parts, each keeps a copy of what it gets from another: what all multiprocessors read takes room in
each, and the size of one part counts. A read that a part does not hold asks the part that is beside the memory, and is
looked up there once more; so is a store. In step multiprocessors beside every part want the same; apart one does.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

from gemmule.core.chips import Chip
from gemmule.core.launch import Launch
from gemmule.core.problem import GemmProblem, Problem
from gemmule.core.spec import Choice

from .instrument import Counted
from .sample import buffers, resized, slice_depth, spanned

# Most bytes of an operand that are laid out to see what a wave reads.
_LARGEST = 1 << 28
_LINE = 128
# Loops over K are unrolled so often, at least.
_UNROLLED = 8


@dataclasses.dataclass(frozen=True)
class Behind:
    """Bytes between the L2 cache and device memory.

    Attributes
    ----------
    bytes : int
        Read and written, by CTAs in step.
    apart_bytes : int
        The same by CTAs that drift apart.
    written : int
        Of both, what is written.
    how : str
        How it was counted.
    """

    bytes: int
    apart_bytes: int
    written: int
    how: str

    def hit_rates(self, asked: int, stored: int, partitions: int) -> tuple[float, float]:
        """Return the share of the lookups in L2 that find what they ask for, by CTAs in step and apart.

        Parameters
        ----------
        asked, stored : int
            Bytes that multiprocessors read from L2, and that they write to it.
        partitions : int
            Parts of the L2 cache.
        """
        elsewhere = (partitions - 1) / partitions

        def rate(fetched: int, copies: float) -> float:
            lookups = asked + copies * fetched + (1 + elsewhere) * stored
            return max(0.0, 1 - (1 + copies) * fetched / lookups) if lookups else 1.0

        return (
            rate(self.bytes - self.written, partitions - 1),
            rate(self.apart_bytes - self.written, elsewhere),
        )


def behind_l2(problem: Problem, choice: Choice, chip: Chip, kernel: Counted, recipe: Launch, blocks: int) -> Behind:
    """Estimate what passes between the L2 cache and device memory, and say how.

    Parameters
    ----------
    problem, choice, chip, kernel, recipe
        The launch.
    blocks : int
        CTAs that a multiprocessor holds.
    """
    least = problem.bytes_min
    ctas, wave = math.prod(recipe.grid), chip.sms * max(blocks, 1)
    if not isinstance(problem, GemmProblem):
        return Behind(least, least, least // 2, "each element in and out")
    written = problem.m * problem.n * problem.d.dtype.itemsize

    def once(how: str) -> Behind:
        return Behind(least, least, written, how)

    if ctas <= wave:
        return once("each operand once: one wave")
    holds = chip.l2_bytes // chip.l2_partitions if chip.l2_bytes is not None else None
    if holds is not None and least <= holds:
        return once("each operand once: fits in L2")
    depth = math.lcm(slice_depth(choice.config, problem), _UNROLLED)
    # What is left of K at the end stays, so that the same code runs.
    small = resized(problem, (problem.m, problem.n, min(depth + problem.k % depth, problem.k)))
    assert isinstance(small, GemmProblem)
    if max(spanned(small.a) * small.a.dtype.itemsize, spanned(small.b) * small.b.dtype.itemsize) > _LARGEST:
        return once("least: too long to follow")
    # What is written is not looked at: rows of the result may lie on each other, and need little memory.
    line = _LINE // small.d.dtype.itemsize
    small = dataclasses.replace(small, d=dataclasses.replace(small.d, row_stride=small.d.row_stride % line))
    if choice.signature(small) != choice.signature(problem):
        return once("least: waves not followed")
    fresh = kernel.fresh_bytes(choice.spec.launch(small, choice.config), buffers(small, seed=1), range(wave))
    read = [total * problem.k // small.k for total in itertools.accumulate(fresh)]
    if holds is not None and read[-1] + written * wave // ctas <= holds:
        return once("each operand once: L2 keeps them")
    together = wave
    if holds is not None:
        # A CTA finds what it has read itself, however little L2 holds.
        together = max(1, sum(total <= holds for total in read))
    least_read = least - written
    in_step, apart = (max(least_read, read[count - 1] * ctas // count) for count in (wave, together))
    return Behind(written + in_step, written + apart, written, f"waves of {wave} CTAs share reads")
