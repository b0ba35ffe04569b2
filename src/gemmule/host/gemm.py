"""C = alpha * A @ B + beta * C on the host."""

from __future__ import annotations

import numpy as np

from gemmule.executor.memory_overlap import overlaps_itself, share_memory

from ..core.errors import ArgumentError, OverlapError, ShapeError
from ..core.layout import broadcast_shape
from ..executor.tiles import Array
from .arithmetic import choose_arithmetic
from .product import add_product, batch_of, blas_ready, group_blocks, needs_no_copy
from .rounding import Scalar, scale_dtype, write


def gemm(a: Array, b: Array, out: Array, *, alpha: Scalar = 1, beta: Scalar = 0, c: Array | None = None) -> None:
    """Write ``alpha * a @ b + beta * c`` into `out`.

    The rules of BLAS hold: if `beta` is 0, `c` is not read, and if `alpha` is 0, `a` and `b` are not read, so that
    their NaNs do not spread.

    Parameters
    ----------
    a, b : numpy.ndarray, shapes (..., m, k) and (..., k, n)
        Factors: any NumPy number, bfloat16, float8_e4m3fn or float8_e5m2; any strides and byte order. Floats of 16
        and 8 bits are summed in float32, other floats and complex numbers in their common type, integers modulo
        2**32, or modulo 2**64 where `out` can tell the difference.
    out : numpy.ndarray, shape (..., m, n)
        Output; its batch dimensions are those of `a` and `b` broadcast. The sum is rounded once into its dtype.
        float8 saturates, integers wrap. It shares no memory with `a` or `b`.
    alpha, beta : int, float or complex
        Scalars; integral if `out` is of an integer dtype, real if it is real.
    c : numpy.ndarray, optional
        Matrix to add, broadcastable to the shape of `out`; it may be `out` itself. Needed if `beta` is not 0.

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    DTypeError
        If a dtype cannot be multiplied, or `out` is of a lesser kind than what goes into it.
    OverlapError
        If `out` shares memory with `a` or `b`, or with itself.
    ArgumentError
        If `out` is read-only, `c` is missing, or a scalar does not suit `out`.
    """
    _check_shapes(a, b, out)
    addend = _addend(out, beta, c)
    arithmetic = choose_arithmetic(a.dtype, b.dtype, out.dtype)
    scale = scale_dtype(arithmetic.total, out.dtype, alpha, beta, None if addend is None else addend.dtype)
    _check_memory(a, b, out)
    if out.size == 0:
        return
    m, k = a.shape[-2:]
    if alpha == 0 or k == 0:
        write(out, None, alpha, beta, addend, scale)
        return

    # The sum is built in the output itself where that has the right type and holds nothing that is still to be read.
    in_place = (
        out.dtype == arithmetic.total and blas_ready(out) and (addend is None or not np.may_share_memory(addend, out))
    )
    finished = in_place and alpha == 1 and addend is None
    with np.errstate(all="ignore"):
        if finished and needs_no_copy(a, b, arithmetic):
            np.matmul(a, b, out=out)
            return
        for index, rows, cols in group_blocks(out.shape[:-2], m, out.shape[-1], k):
            part = out[(*index, rows, cols)]
            total = part if in_place else np.empty(part.shape, arithmetic.total)
            add_product(total, batch_of(a, index)[..., rows, :], batch_of(b, index)[..., cols], arithmetic, fresh=True)
            if not finished:
                write(part, total, alpha, beta, None if addend is None else addend[(*index, rows, cols)], scale)


def _check_shapes(a: Array, b: Array, out: Array) -> None:
    if min(a.ndim, b.ndim, out.ndim) < 2:
        raise ShapeError(
            f"a, b and out have {a.ndim}, {b.ndim} and {out.ndim} dimensions; each needs two or more; "
            "reshape vectors first"
        )
    if a.shape[-1] != b.shape[-2]:
        raise ShapeError(f"a is {a.shape} and b is {b.shape}; the columns of a must be as many as the rows of b")
    try:
        batch = broadcast_shape(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise ShapeError(
            f"batch dimensions {a.shape[:-2]} of a and {b.shape[:-2]} of b do not broadcast; make them equal or 1"
        ) from None
    expected = (*batch, a.shape[-2], b.shape[-1])
    if out.shape != expected:
        raise ShapeError(f"out is {out.shape}, but the product is {expected}; give out that shape")


def _addend(out: Array, beta: Scalar, c: Array | None) -> Array | None:
    """Return `c` in the shape of `out`, safe to read while `out` is written; None if it is not to be read."""
    if c is not None:
        try:
            view = np.broadcast_to(c, out.shape)
        except ValueError:
            raise ShapeError(f"c is {c.shape} and does not broadcast to the shape {out.shape} of out") from None
    if beta == 0:
        return None
    if c is None:
        raise ArgumentError(f"beta={beta} needs a matrix c to scale; pass c, or beta=0")
    same = c.shape == out.shape and c.strides == out.strides and c.ctypes.data == out.ctypes.data
    return view if same or not np.may_share_memory(view, out) else view.copy()


def _check_memory(a: Array, b: Array, out: Array) -> None:
    if not out.flags.writeable:
        raise ArgumentError("out is read-only; pass an array that can be written")
    if overlaps_itself(out):
        raise OverlapError(f"elements of out may share memory (strides {out.strides} bytes); pass an array of its own")
    for name, operand in (("a", a), ("b", b)):
        if share_memory(operand, out):
            raise OverlapError(f"out shares memory with {name}; pass a copy of {name} or another out")
