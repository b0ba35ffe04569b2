"""Shapes of a product, by the rules of the array API standard's matmul."""

from __future__ import annotations

import dataclasses

import numpy as np

from gemmule.core.errors import ShapeError
from gemmule.core.layout import broadcast_shape
from gemmule.runtime.arrays import ArrayView


@dataclasses.dataclass(frozen=True)
class ProductShape:
    """Shapes of ``a @ b``.

    Attributes
    ----------
    m, n, k : int
        Each matrix of A is (m, k), of B (k, n), of the result (m, n).
    batch : tuple of int
        Broadcast batch dimensions.
    result : tuple of int
        Shape that the caller gets: a 1-D operand's dimension is left out.
    drop_row, drop_col : bool
        Whether the result's row, or column, dimension is left out.
    """

    m: int
    n: int
    k: int
    batch: tuple[int, ...]
    result: tuple[int, ...]
    drop_row: bool
    drop_col: bool


def product_shape(a: tuple[int, ...], b: tuple[int, ...]) -> ProductShape:
    """Return the shapes of a product of arrays of those shapes.

    Raises
    ------
    ShapeError
        If an operand has no dimension, the inner dimensions differ, or the batches do not broadcast.
    """
    for name, shape in (("a", a), ("b", b)):
        if not shape:
            raise ShapeError(f"{name} has shape () but must have at least one dimension; use * to scale by a number")
    m, k = (1, a[0]) if len(a) == 1 else a[-2:]
    inner, n = (b[0], 1) if len(b) == 1 else b[-2:]
    if k != inner:
        raise ShapeError(f"a of shape {a} has {k} columns, b of shape {b} has {inner} rows; they must be equal")
    try:
        batch = broadcast_shape(a[:-2], b[:-2])
    except ValueError:
        raise ShapeError(f"batch dimensions {a[:-2]} of a and {b[:-2]} of b do not broadcast to one shape") from None
    drop_row, drop_col = len(a) == 1, len(b) == 1
    result = (*batch, *(() if drop_row else (m,)), *(() if drop_col else (n,)))
    return ProductShape(m, n, k, batch, result, drop_row, drop_col)


def with_axis(view: ArrayView, axis: int) -> ArrayView:
    """Return the view with an axis of extent 1 inserted before position `axis` (negative from the end, -1 appends)."""
    position = axis if axis >= 0 else len(view.shape) + 1 + axis
    shape = (*view.shape[:position], 1, *view.shape[position:])
    if view.host is not None:
        return dataclasses.replace(view, shape=shape, host=np.expand_dims(view.host, position))
    strides = (*view.strides[:position], 0, *view.strides[position:])
    return dataclasses.replace(view, shape=shape, strides=strides)


def batch_strides(view: ArrayView, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Return a device view's strides over the broadcast batch: 0 where it is repeated."""
    own = view.shape[:-2]
    missing = len(batch) - len(own)
    strides = zip(own, view.strides[:-2], strict=True)
    return (0,) * missing + tuple(0 if extent == 1 else stride for extent, stride in strides)
