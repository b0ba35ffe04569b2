"""Products of small NumPy arrays that need no plan: BLAS takes them as they are."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from .executors import HOST_TO_GPU_FLOP

_FLOATS = (np.dtype(np.float64), np.dtype(np.float32))
#: Elements of the result below which memory for it is not worth a check.
_MOST_ELEMENTS = 2**20


def small_host_product(a: Any, b: Any, out: Any) -> Any:
    """Return ``a @ b``, as a plan of it computes it; None where it takes a plan.

    Parameters
    ----------
    a, b : array
        Operands of any kind. Two NumPy arrays of float32 or of float64 need no plan if they are contiguous and aligned,
        and both matrices, or both batches of as many.
    out : array or None
        The output. A NumPy array needs no plan if it is contiguous too, and apart from the operands.
    """
    if type(a) is not np.ndarray or type(b) is not np.ndarray:
        return None
    dtype, shape, other, flags, others = a.dtype, a.shape, b.shape, a.flags, b.flags
    if dtype != b.dtype or dtype not in _FLOATS or len(shape) != len(other) or not 2 <= len(shape) <= 3:
        return None
    (m, k), n = shape[-2:], other[-1]
    if (
        k != other[-2]
        or shape[:-2] != other[:-2]
        or not (flags.c_contiguous and flags.aligned and others.c_contiguous and others.aligned)
        or not 0 < 2 * m * n * k < HOST_TO_GPU_FLOP
        or a.size // k * n > _MOST_ELEMENTS
        or os.environ.get("GEMMULE_EXECUTOR")
        or not (out is None or _is_apart(out, (*shape[:-1], n), a, b))
    ):
        return None
    try:
        with np.errstate(all="ignore"):
            return np.matmul(a, b, out=out)
    except MemoryError:
        # The plan says what there is no memory for.
        return None


def _is_apart(out: Any, shape: tuple[int, ...], a: Any, b: Any) -> bool:
    """Return whether an output is a contiguous array of that shape, of the operands' type and in other memory."""
    return (
        type(out) is np.ndarray
        and out.dtype == a.dtype
        and out.shape == shape
        and bool(out.flags.carray)
        and not np.may_share_memory(out, a)
        and not np.may_share_memory(out, b)
    )
