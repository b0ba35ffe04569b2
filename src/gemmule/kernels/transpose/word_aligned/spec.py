"""The transpose of small matrices with unaligned rows, through the aligned words that hold them: its limits."""

from __future__ import annotations

import functools

from gemmule.core.problem import TransposeProblem
from gemmule.kernels.transpose.cost import measured_cost
from gemmule.kernels.transpose.refusals import why_not_separate, why_not_small_unaligned
from gemmule.kernels.transpose.spec import transpose_spec
from gemmule.kernels.transpose.tile_config import WORD
from gemmule.kernels.transpose.word_tile_config import WordAlignedConfig

# Bytes of the largest matrices by those of an element: beyond, whole sectors were measured to be faster.
_LARGEST = {1: 1 << 20, 2: 2 << 20}
# Bytes that offsets of 32 bits reach.
_MAX_SPAN = 1 << 30


def _refuses(problem: TransposeProblem) -> str | None:
    if reason := why_not_small_unaligned(problem, _LARGEST) or why_not_separate(problem, WORD):
        return reason
    if abs(problem.source.col_stride) * problem.cols * problem.itemsize >= _MAX_SPAN:
        return f"rows of the source reach over {_MAX_SPAN} bytes and more"
    return None


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
    cost=functools.partial(measured_cost, {1: WordAlignedConfig(), 2: WordAlignedConfig(32, 16, 256)}),
)
