"""The epilogue of a scaled product: what its scales, its bias and the scale of its result do to the accumulators."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

from gemmule.core.block_scales import SCALES, BlockScales
from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import dtype_named
from gemmule.core.epilogue import Expression
from gemmule.core.layout import StridedMatrix
from gemmule.core.tracing import accumulated, lowered, matrix_input
from gemmule.runtime.arrays import ArrayView

_BIAS, _SCALE_RESULT = "bias", "scale_result"


@dataclass(frozen=True)
class Scaling:
    """The epilogue of a scaled product."""

    #: Rows of A and columns of B that share a scale of 128 of K, 1 or 128 each; None where scales do not depend on K.
    blocks: tuple[int, int] | None
    scaled: bool  #: Whether there are scales: none has an effect on a product of nothing.
    #: biased, result: Whether a bias is added, and whether the sum is scaled once more.
    biased: bool
    result: bool

    @functools.cached_property
    def traced(self) -> tuple[Expression, tuple[str, ...]]:
        """The expression, and the roles of its matrices."""
        return _traced(self)


@functools.cache
def _traced(scaling: Scaling) -> tuple[Expression, tuple[str, ...]]:
    value = accumulated()
    if scaling.scaled and scaling.blocks is None:
        value = value * matrix_input(SCALES[0], 0) * matrix_input(SCALES[1], 1)
    if scaling.biased:
        value = value + matrix_input(_BIAS, 2)
    if scaling.result:
        value = value * matrix_input(_SCALE_RESULT, 3)
    expression, roles, _ = lowered(value, "the scaled product")
    return expression, roles


def block_scales(blocks: tuple[int, int], views: Mapping[str, ArrayView]) -> BlockScales:
    """Return the scales by blocks of the arrays that were given; one for all of K, or for everything, is broadcast."""
    a, b = (_matrix(views[role]) for role in SCALES)
    return BlockScales(a, b, *blocks)


def _matrix(view: ArrayView) -> StridedMatrix:
    dtype = dtype_named(view.dtype_name)
    if math.prod(view.shape) == 1:
        return StridedMatrix(dtype, 1, 1, 0, 0, (), view.alignment)
    (rows, cols), strides = view.shape, view.strides
    row_stride, col_stride = (0 if extent == 1 else step for extent, step in zip(view.shape, strides, strict=True))
    return StridedMatrix(dtype, rows, cols, row_stride, col_stride, (), view.alignment)
