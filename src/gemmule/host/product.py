"""Adds a product to a sum, through BLAS, in bounded memory."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from ..core.dtype import dtype_named
from ..executor.tiles import Array
from .arithmetic import LIMB_BITS, Arithmetic, name_of

#: Terms of K that operands are converted for at a time: long enough to hide the additions between two runs.
K_STEP = 2048
#: Elements of the converted panel of B, of the converted slab of A, and of a slab of the product.
PANEL = 2**23
SLAB = 2**21
#: Multiply-adds up to which NumPy's own loops multiply integers faster than BLAS does in floating point.
SMALL_INTEGER_PRODUCT = 2**15
_FEWEST_ROWS = 128
_MOST_COLUMNS = SLAB // _FEWEST_ROWS
# Elements of float8 looked up at a time, and the bytes that each takes: a wide index and a wide value.
_LOOKUP = 2**14
_LOOKUP_BYTES = 8 + 16


class Multiply(Protocol):
    """Adds a product of two matrices of the sum's type that BLAS reads in place."""

    def __call__(self, total: Array, a: Array, b: Array, *, fresh: bool) -> None:
        """Add ``a @ b`` to `total`, or set it if `fresh`."""


def multiply_whole(total: Array, a: Array, b: Array, *, fresh: bool) -> None:
    """Add ``a @ b`` to `total`, or set it if `fresh`, by one call of BLAS."""
    if fresh:
        np.matmul(a, b, out=total)
    else:
        np.add(total, np.matmul(a, b), out=total)


def blocks(shape: tuple[int, ...], elements: int) -> Iterator[tuple[slice, ...]]:
    """Yield slices that cut an array of that shape into blocks of at most `elements`, whole rows first."""
    if 0 < math.prod(shape) <= elements:
        return iter([(slice(None),) * len(shape)])
    steps: list[int] = []
    for extent in reversed(shape):
        steps.insert(0, max(1, min(extent, elements)))
        elements //= steps[0]
    return itertools.product(*(runs(extent, step) for extent, step in zip(shape, steps, strict=True)))


def runs(extent: int, step: int) -> list[slice]:
    """Cut ``range(extent)`` into slices of at most `step`."""
    return [slice(start, min(start + step, extent)) for start in range(0, extent, max(step, 1))]


def blas_ready(x: Array) -> bool:
    """Return whether BLAS can read the matrices of `x`, (..., rows, cols), in place."""
    rows, cols = x.shape[-2:]
    down, along = x.strides[-2:]
    return x.flags.aligned and (_unit_rows(down, along, cols, x.itemsize) or _unit_rows(along, down, rows, x.itemsize))


def _unit_rows(down: int, along: int, cols: int, itemsize: int) -> bool:
    return along == itemsize and down % itemsize == 0 and down >= cols * itemsize


def needs_no_copy(a: Array, b: Array, arithmetic: Arithmetic) -> bool:
    """Return whether BLAS can multiply `a` and `b` in place, directly into a sum."""
    return a.dtype == b.dtype == arithmetic.compute == arithmetic.total and blas_ready(a) and blas_ready(b)


def is_small_integer_product(arithmetic: Arithmetic, m: int, n: int, k: int) -> bool:
    """Return whether integer matrices are small enough for a product in the type of the sum, without BLAS."""
    return arithmetic.exact_run is not None and m * n * k <= SMALL_INTEGER_PRODUCT


def steps(arithmetic: Arithmetic, n: int, k: int, *, copies: bool) -> tuple[int, int, int]:
    """Return how many rows, columns and terms are multiplied at a time."""
    k_step = min(k, K_STEP, arithmetic.exact_run or K_STEP) if copies else k
    n_step = min(n, _MOST_COLUMNS, PANEL // k_step if copies else n)
    return max(SLAB // max(n_step, k_step if copies else 1), _FEWEST_ROWS), n_step, k_step


def scratch_bytes(arithmetic: Arithmetic, m: int, n: int, k: int, *, lookup: bool = True) -> int:
    """Most memory in bytes that `add_product` takes for an (m, k) and a (k, n) matrix of any strides.

    Without `lookup`, neither of them is of float8.
    """
    if 0 in (m, n, k):
        return 0
    elements = 0
    for copies in (True, False):
        m_step, n_step, k_step = steps(arithmetic, n, k, copies=copies)
        m_step = min(m, m_step)
        # An exact product is there as floats, as integers, and as integers of the sum's type.
        product = m_step * n_step * (1 if arithmetic.exact_run is None else 4)
        # A limb is there as an integer before it is converted.
        operands = (k_step * n_step + m_step * k_step) * (1 if arithmetic.limbs == (1, 1) else 2)
        elements = max(elements, product + (operands if copies else 0))
    looked_up = min(_LOOKUP, max(m * k, k * n)) if lookup else 0
    return elements * arithmetic.compute.itemsize + _LOOKUP_BYTES * looked_up


def add_product(
    total: Array, a: Array, b: Array, arithmetic: Arithmetic, *, fresh: bool, multiply: Multiply = multiply_whole
) -> None:
    """Add ``a @ b`` to `total`, or set it if `fresh`.

    Parameters
    ----------
    total : numpy.ndarray, shape (..., m, n), dtype arithmetic.total
        The sum. It is not read if `fresh`.
    a, b : numpy.ndarray, shapes (..., m, k) and (..., k, n)
        The factors, any strides. Batch dimensions broadcast to those of `total`; scratch grows with them.
    arithmetic : Arithmetic
        Arithmetic of the product.
    fresh : bool
        Whether `total` holds nothing yet.
    multiply : Multiply
        Function that multiplies, with scratch for one product at most.
    """
    k, n = b.shape[-2:]
    if total.size == 0 or k == 0:
        if fresh:
            total[...] = 0
        return
    m = a.shape[-2]
    if is_small_integer_product(arithmetic, m, n, k):
        # Modulo the sum's range, as its type computes, and so exact.
        multiply_whole(total, a.astype(total.dtype, copy=False), b.astype(total.dtype, copy=False), fresh=fresh)
        return
    copies = not needs_no_copy(a, b, arithmetic)
    if fresh and not copies:
        multiply(total, a, b, fresh=True)
        return
    m_step, n_step, k_step = steps(arithmetic, n, k, copies=copies)
    if m <= m_step and n <= n_step and k <= k_step and arithmetic.limbs == (1, 1):
        _add_slab(total, a, _operand(b, arithmetic.compute), arithmetic, fresh, multiply)
        return
    for terms in runs(k, k_step):
        for cols in runs(n, n_step):
            part = total[..., cols], a[..., terms], b[..., terms, cols]
            _add_panel(*part, arithmetic, m_step, fresh, multiply)
        fresh = False


# Each of these is a function so that its copies are gone before the next ones are made.
def _add_panel(
    total: Array, a: Array, b: Array, arithmetic: Arithmetic, m_step: int, fresh: bool, multiply: Multiply
) -> None:
    a_limbs, b_limbs = arithmetic.limbs
    for j in range(b_limbs):
        panel = _operand(_limb(b, j, b_limbs), arithmetic.compute)
        for i in range(a_limbs):
            shift = LIMB_BITS * (i + j)
            # Bits shifted out of the sum's do not count: the sum is modulo their range.
            if shift >= 8 * total.itemsize:
                continue
            for rows in runs(a.shape[-2], m_step):
                slab = _limb(a[..., rows, :], i, a_limbs)
                _add_slab(total[..., rows, :], slab, panel, arithmetic, fresh and i == j == 0, multiply, shift)


def _limb(x: Array, index: int, count: int) -> Array:
    """Return bits 16 * index to 16 * index + 15 of integers as numbers; the highest bits keep their sign."""
    if count == 1:
        return x
    limb: Array = np.right_shift(x, x.dtype.type(LIMB_BITS * index))
    if LIMB_BITS * (index + 1) < 8 * x.itemsize:
        np.bitwise_and(limb, limb.dtype.type(2**LIMB_BITS - 1), out=limb)
    return limb


def _add_slab(
    total: Array, a: Array, panel: Array, arithmetic: Arithmetic, fresh: bool, multiply: Multiply, shift: int = 0
) -> None:
    slab = _operand(a, arithmetic.compute)
    if arithmetic.compute == arithmetic.total:
        multiply(total, slab, panel, fresh=fresh)
        return
    exact = np.empty(total.shape, arithmetic.compute)
    multiply(exact, slab, panel, fresh=True)
    product = _integers(exact)
    del exact
    if shift:
        np.left_shift(product, shift, out=product)
    product = product.astype(total.dtype, copy=False)
    if fresh:
        total[...] = product
    else:
        np.add(total, product, out=total)


def _integers(exact: Array) -> Array:
    # A float out of the range of its integer type converts to anything, so the wide ones go through int64 first.
    return exact.astype(np.int32 if exact.dtype == np.float32 else np.int64)


def _operand(x: Array, dtype: np.dtype[Any]) -> Array:
    """Return `x` in `dtype` as BLAS wants it, without a copy where it is so already."""
    if x.dtype == dtype and blas_ready(x):
        return x
    # The copy keeps the order in memory: BLAS takes both, and a transposing copy is slow.
    if abs(x.strides[-2]) < abs(x.strides[-1]):
        return _converted(x.swapaxes(-1, -2), dtype).swapaxes(-1, -2)
    return _converted(x, dtype)


def _converted(x: Array, dtype: np.dtype[Any]) -> Array:
    name = name_of(x.dtype)
    if not name.startswith("float8"):
        return x.astype(dtype, order="C")
    # ml_dtypes converts element by element; a look-up is several times faster.
    table = _float8_values(name).astype(dtype)
    codes = x.view(np.uint8)
    result = np.empty(x.shape, dtype)
    # In pieces, because take() widens its indices to 64 bits.
    for piece in blocks(x.shape, _LOOKUP):
        result[piece] = table.take(codes[piece])
    return result


@functools.cache
def _float8_values(name: str) -> Array:
    return np.arange(256, dtype=np.uint8).view(dtype_named(name).numpy()).astype(np.float32)


def group_blocks(batch: tuple[int, ...], m: int, n: int, k: int) -> Iterator[tuple[tuple[slice, ...], slice, slice]]:
    """Yield (batch slices, rows, columns) that cut a stack of products into blocks whose sums take bounded memory.

    Small matrices of a stack stay together, so that the cost of a call is shared.
    """
    block = 8 * SLAB
    cols = min(n, max(block // m, 4096))
    rows = min(m, max(block // cols, 1))
    run = min(k, K_STEP)
    together = max(1, SLAB // max(rows * cols, rows * run, run * cols, 1))
    for index in blocks(batch, together):
        for row_run, col_run in itertools.product(runs(m, rows), runs(n, cols)):
            yield index, row_run, col_run


def batch_of(x: Array, index: tuple[slice, ...]) -> Array:
    """Return the part of `x` that broadcasts to the part `index` of the full batch."""
    lead = x.ndim - 2
    own = index[len(index) - lead :]
    return x[tuple(piece if extent > 1 else slice(None) for piece, extent in zip(own, x.shape[:lead], strict=True))]
