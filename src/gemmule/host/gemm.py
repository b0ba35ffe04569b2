"""C = alpha * A @ B + beta * C on the host."""

from __future__ import annotations

import contextvars
import dataclasses
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from gemmule.executor.memory_overlap import overlaps_itself, share_memory

from ..core.errors import ArgumentError, OverlapError, ShapeError
from ..core.layout import broadcast_shape
from ..executor.tiles import Array
from .arithmetic import Arithmetic, choose_arithmetic
from .block_product import takes_no_thread
from .product import (
    SLAB,
    add_product,
    batch_of,
    blas_ready,
    group_blocks,
    is_small_integer_product,
    needs_no_copy,
)
from .real_parts import Operands, by_parts, in_rows, is_half_real
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
    checked_gemm(a, b, out, alpha=alpha, beta=beta, c=c).run(a, b, out, c)


def _ignoring_errors() -> Callable[..., Any]:
    """Return a caller of functions for which NumPy ignores floating point errors, for one thread."""
    context = contextvars.Context()
    context.run(np.seterr, all="ignore")
    return context.run


class _WithoutErrors(threading.local):
    """Each thread's caller of functions for which NumPy ignores floating point errors.

    NumPy has that setting in a context variable. To enter a context where it is set takes a tenth of `numpy.errstate`,
    which takes as long as a product of 4 x 4.
    """

    def __init__(self) -> None:
        self.run: Callable[..., Any] = _ignoring_errors()


#: ``WITHOUT_ERRORS.run(function, *arguments)`` calls a function like that, in the calling thread.
WITHOUT_ERRORS = _WithoutErrors()
#: The same, found sooner than what a thread has of its own: a RuntimeError where a call of another thread is in it.
run_without_errors = _ignoring_errors()
#: Elements of an output up to which clearing it takes no more time than `numpy.ndarray.dot` saves.
MOST_CLEARED = 6400
#: Multiply-adds of real, and of imaginary, parts that NumPy multiplies sooner than blocks of them are decided on.
_SMALL_PARTS = 2**15


@dataclasses.dataclass(frozen=True, slots=True)
class CheckedGemm:
    """A product whose arguments were checked, with these arrays or others of the same types, shapes and strides."""

    #: alpha, beta: Scalars.
    alpha: Scalar
    beta: Scalar
    arithmetic: Arithmetic  #: Arithmetic of the sum.
    scale: np.dtype[Any]  #: Type in which it is scaled.
    direct: bool  #: One call of NumPy writes the output.
    alone: bool = False  #: That call gives the same without an output: of two matrices, or of equal batches.
    #: That call: `numpy.ndarray.dot` for small matrices, which begins sooner, or `numpy.matmul`. The former clears the
    #: output first, which costs more where it is large, or where BLAS has threads, which fetch what one has cleared.
    multiply: Callable[..., Any] = np.matmul

    def run(self, a: Array, b: Array, out: Array, c: Array | None) -> None:
        """Write the product into `out`, which shares no memory with `a` or `b`; `c` is None where it is not read."""
        if self.direct:
            WITHOUT_ERRORS.run(self.multiply, a, b, out)
        elif out.size:
            with np.errstate(all="ignore"):
                self._run_in_blocks(a, b, out, None if self.beta == 0 or c is None else _addend(out, c))

    def _run_in_blocks(self, a: Array, b: Array, out: Array, addend: Array | None) -> None:
        m, k = a.shape[-2:]
        if self.alpha == 0 or k == 0:
            write(out, None, self.alpha, self.beta, addend, self.scale)
            return
        # The sum is built in the output itself where that has the right type and holds nothing still to be read.
        in_place = (
            out.dtype == self.arithmetic.total
            and blas_ready(out)
            and (addend is None or not np.may_share_memory(addend, out))
        )
        n = out.shape[-1]
        if math.prod(out.shape[:-2]) * max(m * k, k * n, m * n) <= SLAB:
            self._run_block(a, b, out, addend, in_place)
            return
        for index, rows, cols in group_blocks(out.shape[:-2], m, n, k):
            factors = batch_of(a, index)[..., rows, :], batch_of(b, index)[..., cols]
            part = None if addend is None else addend[(*index, rows, cols)]
            self._run_block(*factors, out[(*index, rows, cols)], part, in_place)

    def _run_block(self, a: Array, b: Array, out: Array, addend: Array | None, in_place: bool) -> None:
        total = out if in_place else np.empty(out.shape, self.arithmetic.total)
        add_product(total, a, b, self.arithmetic, fresh=True)
        if not in_place or self.alpha != 1 or addend is not None:
            write(out, total, self.alpha, self.beta, addend, self.scale)


@dataclasses.dataclass(frozen=True, slots=True)
class CheckedParts:
    """A product of a real and a complex matrix as `CheckedGemm`: the real products that make it."""

    #: One of rows of complex matrices as real numbers, or those of real and of imaginary parts.
    products: tuple[CheckedGemm, ...]
    #: Whether NumPy multiplies parts so small that to decide on blocks takes longer.
    small: bool

    def run(self, a: Array, b: Array, out: Array, c: Array | None) -> None:
        """Write the product into `out`, which shares no memory with `a` or `b`."""
        if self.small:
            WITHOUT_ERRORS.run(_multiply_parts, a, b, out)
            return
        c = c if self.products[0].beta != 0 else None
        if len(self.products) == 1:
            operands = in_rows(a, b, out, c)
            assert operands is not None
            self.products[0].run(*operands)
            return
        # The first product may write what the second adds.
        for product, part in zip(self.products, by_parts(a, b, out, c if c is None else _addend(out, c)), strict=True):
            product.run(*part)


def _multiply_parts(a: Array, b: Array, out: Array) -> None:
    for left, right, total, _ in by_parts(a, b, out, None):
        total[...] = np.matmul(left, right)


def checked_gemm(
    a: Array, b: Array, out: Array, *, alpha: Scalar = 1, beta: Scalar = 0, c: Array | None = None
) -> CheckedGemm | CheckedParts:
    """Check a product and decide how it is computed. The parameters, and the exceptions, are those of `gemm`."""
    _check_shapes(a, b, out)
    addend = _check_addend(out, beta, c)
    if is_half_real(a, b) and out.dtype.kind == "c" and not (complex(alpha).imag or complex(beta).imag):
        _check_memory(a, b, out)
        rows = in_rows(a, b, out, addend)
        parts: tuple[Operands, ...] = by_parts(a, b, out, addend) if rows is None else (rows,)
        products = tuple(_decided(*operands, complex(alpha).real, complex(beta).real) for operands in parts)
        left, right, total, _ = parts[0]
        is_small = left.dtype == right.dtype == total.dtype == products[0].arithmetic.total
        is_small = is_small and 0 < total.size * a.shape[-1] <= _SMALL_PARTS
        return CheckedParts(products, is_small and rows is None and alpha == 1 and addend is None)
    checked = _decided(a, b, out, addend, alpha, beta)
    _check_memory(a, b, out)
    return checked


def _decided(a: Array, b: Array, out: Array, addend: Array | None, alpha: Scalar, beta: Scalar) -> CheckedGemm:
    """Decide how a product is computed whose arguments fit together."""
    arithmetic = choose_arithmetic(a.dtype, b.dtype, out.dtype)
    scale = scale_dtype(arithmetic.total, out.dtype, alpha, beta, None if addend is None else addend.dtype)
    (m, k), n = a.shape[-2:], b.shape[-1]
    direct = (
        (alpha == 1 and addend is None and out.size * k > 0)
        and a.dtype == b.dtype == out.dtype == arithmetic.total
        and (is_small_integer_product(arithmetic, m, n, k) or (blas_ready(out) and needs_no_copy(a, b, arithmetic)))
    )
    # NumPy's results for several or broadcast batch dimensions may have other strides.
    matched = (
        a.ndim == b.ndim <= 3 and a.shape[:-2] == b.shape[:-2] and min(a.strides[:-2] + b.strides[:-2], default=1) > 0
    )
    alone = direct and matched and arithmetic.exact_run is None and out.flags.c_contiguous
    sooner = alone and out.ndim == 2 and out.size <= MOST_CLEARED and takes_no_thread(m, n, k, out.dtype)
    # For a single element NumPy calls BLAS's axpy with it as scalar, which skips infinities and NaN if it is 0.
    sooner = sooner and not (k == 1 and 1 in (m, n))
    multiply = np.ndarray.dot if sooner else np.matmul
    return CheckedGemm(alpha, beta, arithmetic, scale, direct, alone, multiply)


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


def _check_addend(out: Array, beta: Scalar, c: Array | None) -> Array | None:
    """Return `c` if it is to be read, None otherwise."""
    if c is not None:
        try:
            np.broadcast_to(c, out.shape)
        except ValueError:
            raise ShapeError(f"c is {c.shape} and does not broadcast to the shape {out.shape} of out") from None
    if beta == 0:
        return None
    if c is None:
        raise ArgumentError(f"beta={beta} needs a matrix c to scale; pass c, or beta=0")
    return c


def _addend(out: Array, c: Array) -> Array:
    """Return `c` in the shape of `out`, safe to read while `out` is written."""
    view = c if c.shape == out.shape else np.broadcast_to(c, out.shape)
    if not np.may_share_memory(view, out):
        return view
    same = c.shape == out.shape and c.strides == out.strides and c.ctypes.data == out.ctypes.data
    return view if same else view.copy()


def _check_memory(a: Array, b: Array, out: Array) -> None:
    if not out.flags.writeable:
        raise ArgumentError("out is read-only; pass an array that can be written")
    if overlaps_itself(out):
        raise OverlapError(f"elements of out may share memory (strides {out.strides} bytes); pass an array of its own")
    for name, operand in (("a", a), ("b", b)):
        if share_memory(operand, out):
            raise OverlapError(f"out shares memory with {name}; pass a copy of {name} or another out")
