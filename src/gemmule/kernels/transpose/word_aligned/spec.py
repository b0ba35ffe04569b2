"""The transpose of small matrices with unaligned rows, through the aligned words that hold them: its limits."""

from __future__ import annotations

import functools
import math

from gemmule.core.gpu_rates import GpuRates
from gemmule.core.problem import TransposeProblem
from gemmule.kernels.transpose.blocks.spec import blocks_take_less
from gemmule.kernels.transpose.cost import measured_cost
from gemmule.kernels.transpose.refusals import why_not_separate, why_not_small_unaligned
from gemmule.kernels.transpose.small_batches import is_small_batch
from gemmule.kernels.transpose.spec import transpose_spec
from gemmule.kernels.transpose.tile_config import WORD
from gemmule.kernels.transpose.word_tile_config import WordAlignedConfig

# Bytes of the largest matrices by those of an element: beyond, whole sectors were measured to be faster.
_LARGEST = {1: 1 << 20, 2: 2 << 20}
# Bytes that offsets of 32 bits reach.
_MAX_SPAN = 1 << 30
# The fastest configs by the bytes of an element.
_FASTEST = {1: WordAlignedConfig(), 2: WordAlignedConfig(32, 16, 256)}
# Microseconds of a launch and of an SM for a CTA, fitted to 8 batches, and the share of the sum below which blocks of
# small matrices, which fill small parts of tiles, are chosen.
_LAUNCH, _CTA, _BLOCKS = 1.05, 0.31, 0.8


def _refuses(problem: TransposeProblem) -> str | None:
    if reason := why_not_small_unaligned(problem, _LARGEST) or why_not_separate(problem, WORD):
        return reason
    if abs(problem.source.col_stride) * problem.cols * problem.itemsize >= _MAX_SPAN:
        return f"rows of the source reach over {_MAX_SPAN} bytes and more"
    return None


def _faster_alternative(problem: TransposeProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the kernel of blocks where it is predicted to be faster."""
    # The cost only orders configs.
    del cost
    if not is_small_batch(problem):
        return None
    ctas = math.prod(_FASTEST[problem.itemsize].grid(problem))
    most = _BLOCKS * (_LAUNCH + _CTA * ctas / gpu.multiprocessors)
    return "transpose_blocks" if blocks_take_less(problem, most, gpu) else None


SPEC = transpose_spec(
    name="transpose_word_aligned",
    summary="small matrices, elements of 1 or 2 bytes, unaligned rows, batch: 4-byte words through shared memory",
    package=__package__,
    configs=(
        WordAlignedConfig(),
        WordAlignedConfig(32, 16, 256),
        WordAlignedConfig(16, 16, 256),
        WordAlignedConfig(32, 8, 256),
        WordAlignedConfig(16, 8, 128, 16),
        WordAlignedConfig(16, 8, 256, 32),
    ),
    itemsizes=tuple(_LARGEST),
    refuses=_refuses,
    cost=functools.partial(measured_cost, _FASTEST),
    faster_alternative=_faster_alternative,
)
