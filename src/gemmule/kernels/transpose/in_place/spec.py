"""The transpose of square matrices within their own memory: its limits."""

from __future__ import annotations

from gemmule.core.problem import TransposeProblem
from gemmule.kernels.transpose.tile_config import TilePairConfig
from gemmule.kernels.transpose.tiled.spec import byte_tile_spec, refuse_byte_tiles


def _refuses(problem: TransposeProblem) -> str | None:
    if not problem.in_place:
        return "this kernel transposes within one memory"
    source, target = problem.source, problem.target
    mirrored = (target.row_stride, target.col_stride, target.batch_strides)
    if problem.rows != problem.cols or mirrored != (source.col_stride, source.row_stride, source.batch_strides):
        return "within one memory only two axes of equal length can be exchanged"
    return refuse_byte_tiles(problem)


SPEC = byte_tile_spec(
    name="transpose_in_place",
    summary="square matrices in their own memory: elements of 1 to 16 bytes, contiguous, any row stride, batch",
    package=__package__,
    configs=(
        TilePairConfig(256, 256, 256, 1),
        TilePairConfig(128, 128, 64, 1),
    ),
    refuses=_refuses,
    in_place=True,
)
