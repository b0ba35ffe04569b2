"""The absolute maximum of a call: one float32, as the caller gives it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from gemmule.core.errors import ArgumentError, DTypeError, OverlapError, ShapeError
from gemmule.runtime.arrays import ArrayView, overlaps

ROLE = "absmax"


def check_absmax(views: Mapping[str, ArrayView], factors: tuple[str, str]) -> None:
    """Hold the array for the absolute maximum against the call.

    Parameters
    ----------
    views : mapping of str to ArrayView
        The call's arrays by role.
    factors : tuple of str
        Types of A and B.

    Raises
    ------
    DTypeError, ShapeError, ArgumentError, OverlapError
        If it is no float32, not one element, cannot be written, or shares memory with another array, or if the product
        is not computed in float32.
    """
    view = views[ROLE]
    if "float64" in factors:
        raise DTypeError(
            f"absmax is of values in float32, but {' x '.join(factors)} is computed in float64; take the maximum of "
            "the result"
        )
    if view.dtype_name != "float32":
        raise DTypeError(f"absmax is {view.dtype_name}; it must be one float32")
    if math.prod(view.shape) != 1:
        raise ShapeError(f"absmax has shape {view.shape}; it must hold one element, as of shape () or (1,)")
    if view.readonly:
        raise ArgumentError("absmax is read-only; pass a writable array")
    for role, other in views.items():
        if role != ROLE and overlaps(view, other):
            raise OverlapError(f"absmax shares memory with {role}; pass an array of its own")
