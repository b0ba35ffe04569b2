"""Transposes to short rows without gaps, in tiles of whole rows of the target: their limits and launch recipe."""

from __future__ import annotations

import dataclasses
import math

from gemmule.core.arch import Arch
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.launch import Launch
from gemmule.core.problem import TransposeProblem
from gemmule.core.spec import Signature
from gemmule.kernels.parts.hopper_facts import SMS
from gemmule.kernels.transpose.refusals import (
    rows_are_aligned,
    target_is_aligned,
    why_not_contiguous,
    why_not_itemsize,
    why_not_separate,
)
from gemmule.kernels.transpose.small_batches import is_small_batch
from gemmule.kernels.transpose.spec import element_signature, launch_tiles, transpose_spec
from gemmule.kernels.transpose.tile_config import SECTOR, WARP, WORD
from gemmule.kernels.transpose.whole_rows.config import WholeRowsConfig

_ITEMSIZES = (1, 2)
# Bytes of the source's rows of which most lanes of a warp have a word.
_MIN_ROW = 64
# Bytes of the target's rows that were measured to be faster than spans and than whole sectors, of matrices from so many
# bytes on and of smaller ones.
_SHORTEST, _LONGEST, _LARGE, _LONGEST_SMALL = 40, 500, 32_000_000, 220
# Bytes of rows of whole sectors from which on tiles of sectors were measured to be faster.
_WHOLE_LINE = 128
# Elements of rows a multiple of which leaves few banks to the lanes of a warp.
_MEETING = 8
# Microseconds of a launch; seconds of an H200's CTA for its first words, for each part of its rows that a warp reads,
# and for a word of it; bytes a second. Fitted to 105 times of 37 transposes.
_LAUNCH, _FIRST, _PART, _A_WORD, _BYTES_A_SECOND = 1.09, 0.09e-6, 0.8e-6, 24e-9, SMS * 27.3e9
# Waves of CTAs of small batches whose bytes and waits overlap less, and the norm of both, else a Euclidean one.
_FEW_WAVES, _NORM = 2, 1.35
# Threads of a CTA that take longer where rows have more bytes, and a factor: they hold more of the L1 cache.
_FEW_THREADS, _ROW_OF_FEW, _OF_FEW = 128, 128, 1.2
_RESIDENT_BYTES = 219 << 10


def refuse_whole_rows(problem: TransposeProblem) -> str | None:
    """Return why no whole rows can be moved, or None where that depends on the config."""
    if reason := (
        why_not_itemsize(problem, _ITEMSIZES) or why_not_contiguous(problem) or why_not_separate(problem, WORD)
    ):
        return reason
    if problem.rows > 1 and problem.target.row_stride != problem.cols:
        return f"rows of {problem.cols} elements have gaps between them"
    if rows_are_aligned(problem):
        return "every row is aligned to 16 bytes: whole vectors are faster"
    if problem.rows * problem.itemsize < _MIN_ROW:
        return f"rows of {problem.rows} elements are less than {_MIN_ROW} bytes"
    size = problem.cols * problem.itemsize
    if size >= _WHOLE_LINE and target_is_aligned(problem, SECTOR):
        return f"rows of {size} bytes are whole sectors: tiles of any rows share none"
    # Those of batches are compared with tiles of merged axes.
    is_large = bool(problem.batch) or problem.bytes_min >= 2 * _LARGE
    longest = _LONGEST if is_large else _LONGEST_SMALL
    if not _SHORTEST <= size <= longest:
        return f"rows of {size} bytes; those of {_SHORTEST} to {longest} are faster as whole rows"
    return None


def _cost(problem: TransposeProblem, config: WholeRowsConfig, gpu: GpuRates) -> float:
    """Return about the microseconds that tiles take, of their bytes and of what each wave of CTAs waits for."""
    words = -(-problem.cols * problem.itemsize // WORD)
    # Parts of rows that a warp reads one after another.
    parts = -(-config.spans * -(-words // config.blocks) // (config.threads // WARP))
    alone = _FIRST + parts * (_PART + _A_WORD * config.in_flight(problem.itemsize))
    resident = min(_RESIDENT_BYTES // config.rows_shared_bytes(problem), config.resident(problem.itemsize))
    waves = -(-math.prod(config.grid(problem)) // (gpu.multiprocessors * max(resident, 1)))
    moved = problem.bytes_min / _BYTES_A_SECOND * SMS / gpu.multiprocessors
    norm = _NORM if waves <= _FEW_WAVES and is_small_batch(problem) else 2.0
    is_large = config.threads == _FEW_THREADS and problem.cols * problem.itemsize > _ROW_OF_FEW
    return (_OF_FEW if is_large else 1.0) * (_LAUNCH + 1e6 * math.pow(moved**norm + (waves * alone) ** norm, 1 / norm))


def _whole_rows_signature(itemsize: int, swizzle: str) -> Signature:
    return (*element_signature(itemsize), ("swizzle", swizzle))


def _signature(problem: TransposeProblem, config: WholeRowsConfig) -> Signature:
    del config
    return _whole_rows_signature(problem.itemsize, "none" if problem.cols % _MEETING else "vectors")


def _signatures(arch: Arch) -> tuple[Signature, ...]:
    del arch
    return tuple(_whole_rows_signature(size, swizzle) for size in _ITEMSIZES for swizzle in ("none", "vectors"))


def _launch(problem: TransposeProblem, config: WholeRowsConfig) -> Launch:
    return dataclasses.replace(launch_tiles(problem, config), shared_bytes=config.rows_shared_bytes(problem))


SPEC = transpose_spec(
    name="transpose_whole_rows",
    summary="1- and 2-byte elements, unaligned short rows without gaps: target rows are written as contiguous memory",
    package=__package__,
    configs=(
        WholeRowsConfig(),
        WholeRowsConfig(blocks=4),
        WholeRowsConfig(2, 8, 128),
        # Elements of 2 bytes.
        WholeRowsConfig(blocks=16),
    ),
    itemsizes=_ITEMSIZES,
    signatures=_signatures,
    signature=_signature,
    refuses=refuse_whole_rows,
    launch=_launch,
    cost=_cost,
    cost_in_us=True,
)
