"""The transpose of small matrices with aligned rows, in registers: its limits."""

from __future__ import annotations

from gemmule.core.problem import TransposeProblem
from gemmule.kernels.transpose.refusals import rows_are_aligned, why_not_small
from gemmule.kernels.transpose.spec import transpose_spec
from gemmule.kernels.transpose.tile_config import WORD
from gemmule.kernels.transpose.word_tile_config import WarpTileConfig

# Bytes of the largest matrices by those of an element: beyond, a tile in shared memory was measured to be faster.
_LARGEST = {1: 160 << 10, 2: 4 << 10}


def _refuses(problem: TransposeProblem) -> str | None:
    if not rows_are_aligned(problem, WORD):
        return f"the kernel moves words: rows must begin and end at multiples of {WORD} bytes"
    return why_not_small(problem, _LARGEST)


SPEC = transpose_spec(
    name="transpose_in_registers",
    summary="small matrices, elements of 1 or 2 bytes, rows of multiples of 4 bytes, batch: transposed in registers",
    package=__package__,
    configs=(WarpTileConfig(),),
    itemsizes=tuple(_LARGEST),
    refuses=_refuses,
)
