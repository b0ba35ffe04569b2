"""The kernels of transposes in order of preference, the general reference kernel last."""

from __future__ import annotations

from gemmule.core.spec import KernelSpec
from gemmule.kernels.ladder.transpose_rungs import T01, T02, T03, T04, T05, T06, T07, T08, T09, T10, T11
from gemmule.kernels.transpose.blocks.spec import SPEC as TRANSPOSE_BLOCKS
from gemmule.kernels.transpose.gathered.spec import SPEC as TRANSPOSE_GATHERED
from gemmule.kernels.transpose.in_place.spec import SPEC as TRANSPOSE_IN_PLACE
from gemmule.kernels.transpose.in_registers.spec import SPEC as TRANSPOSE_IN_REGISTERS
from gemmule.kernels.transpose.merged.spec import SPEC as TRANSPOSE_MERGED
from gemmule.kernels.transpose.reference.spec import SPEC as TRANSPOSE_REFERENCE
from gemmule.kernels.transpose.rows.spec import SPEC as TRANSPOSE_ROWS
from gemmule.kernels.transpose.skinny.spec import SPEC as TRANSPOSE_SKINNY
from gemmule.kernels.transpose.tiled.spec import SPEC as TRANSPOSE_TILED
from gemmule.kernels.transpose.whole_matrices.spec import SPEC as TRANSPOSE_WHOLE_MATRICES
from gemmule.kernels.transpose.whole_rows.spec import SPEC as TRANSPOSE_WHOLE_ROWS
from gemmule.kernels.transpose.whole_sectors.spec import SPEC as TRANSPOSE_WHOLE_SECTORS
from gemmule.kernels.transpose.word_aligned.spec import SPEC as TRANSPOSE_WORD_ALIGNED
from gemmule.kernels.transpose.word_blocks.spec import SPEC as TRANSPOSE_WORD_BLOCKS

TRANSPOSE_KERNELS: tuple[KernelSpec, ...] = (
    TRANSPOSE_IN_REGISTERS,
    TRANSPOSE_GATHERED,
    TRANSPOSE_WORD_ALIGNED,
    TRANSPOSE_WHOLE_MATRICES,
    TRANSPOSE_SKINNY,
    TRANSPOSE_ROWS,
    TRANSPOSE_MERGED,
    TRANSPOSE_WORD_BLOCKS,
    TRANSPOSE_BLOCKS,
    TRANSPOSE_WHOLE_ROWS,
    TRANSPOSE_WHOLE_SECTORS,
    TRANSPOSE_TILED,
    T11,
    T10,
    T09,
    T08,
    T07,
    T06,
    T05,
    T04,
    T03,
    T02,
    T01,
    TRANSPOSE_IN_PLACE,
    TRANSPOSE_REFERENCE,
)

#: The rungs of the study of transposes, in its order.
TRANSPOSE_LADDER: tuple[str, ...] = tuple(
    spec.name for spec in (T01, T02, T03, T04, T05, T06, T07, T08, T09, T10, T11, TRANSPOSE_TILED)
)
