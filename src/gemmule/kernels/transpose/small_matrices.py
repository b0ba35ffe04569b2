"""What transposes of small matrices of 1 or 2 bytes share: what they refuse, specialisations, and the launch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from gemmule.core.dtype import opaque_dtype
from gemmule.core.launch import Launch
from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import MAX_GRID
from gemmule.core.spec import Signature

from .byte_tile_config import tile_params, why_not_touching

_WARP = 32


def why_not_elements(problem: TransposeProblem, largest: Mapping[int, int]) -> str | None:
    """Say why elements of this size, or that lie apart, are not taken; `largest` has bytes by the size of elements."""
    if problem.itemsize not in largest:
        known = " or ".join(map(str, largest))
        return f"elements of {problem.itemsize} bytes are not supported; the kernel moves {known} bytes"
    return why_not_touching(problem)


def why_not_small(problem: TransposeProblem, largest: Mapping[int, int], along_source: int) -> str | None:
    """Say why matrices are too large, or too many for one launch with so many CTAs along the source's rows."""
    most, size = largest[problem.itemsize], bytes_of(problem)
    if size > most:
        return f"matrices of {size} bytes, more than {most}, are moved in tiles"
    if math.prod(problem.batch[1:]) > 1:
        return f"a batch of {problem.batch} has more than one dimension"
    if along_source > MAX_GRID[1] or max(problem.batch, default=0) > MAX_GRID[2]:
        return f"{along_source} CTAs along the source's rows are more than the {MAX_GRID[1]} of a launch"
    return None


def bytes_of(problem: TransposeProblem) -> int:
    """Return the bytes of all matrices of the batch."""
    return problem.rows * problem.cols * math.prod(problem.batch) * problem.itemsize


def element_signature(itemsize: int) -> Signature:
    """Return the specialisation for an element size."""
    return (("element", opaque_dtype(itemsize).name),)


def element_signatures(sizes: Iterable[int]) -> tuple[Signature, ...]:
    """Return every specialisation."""
    return tuple(map(element_signature, sizes))


def word_launch(problem: TransposeProblem, tiles: tuple[int, int], warps: int) -> Launch:
    """Return the launch recipe: a thread for each word, `tiles` CTAs along the source's rows and the target's."""
    along_source, along_target = tiles
    return Launch(
        grid=(along_target, along_source, math.prod(problem.batch)),
        block=(_WARP * warps, 1, 1),
        shared_bytes=0,
        params=tile_params(problem),
        overlaps=True,
    )
