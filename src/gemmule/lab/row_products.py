"""Some rows of a product in a higher precision: the other matrix passes once, in blocks that stay in a core's cache.

A block is widened to float64 and, where float64 is the type itself, cut into slices whose products float64 holds
exactly (Ozaki, Ogita, Oishi and Rump, Numerical Algorithms 59, 2012), summed in pairs of numbers.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import math
from collections.abc import Callable, Iterator

import numpy as np

from gemmule.core.cpus import usable_cpus

from .products import Array

#: Writes the rows and columns of a matrix that two slices select into a float64 array of their shape.
Block = Callable[[slice, slice, Array], None]

#: Depth and columns of what BLAS multiplies at once: by 16 or 32 rows too small for its own threads, which would wait
#: for each other.
_DEPTH, _WIDTH = 256, 32
#: The same of a block that a thread reads at once, and its least elements.
_BLOCK_DEPTH, _BLOCK_WIDTH, _BLOCK = 2048, 128, 1 << 18
#: Rows of a block that are multiplied by a vector at once, which BLAS does in one thread too.
_VECTOR_ROWS = 32
#: Bits of a float64 significand, and those of an element that slices hold.
_EXACT_BITS, _SLICED_BITS = 53, 60


@dataclasses.dataclass(frozen=True)
class RowProducts:
    """Some rows of A B."""

    #: high, low: Their values, as sums of two numbers.
    high: Array
    low: Array
    size: Array  #: The same rows of |A| |B|.
    by_vectors: Array  #: B times each of the vectors.


def row_products(a: Array, block_of: Block, vectors: Array, *, sliced: bool) -> RowProducts:
    """Multiply rows by a matrix that is read block by block.

    Parameters
    ----------
    a : ndarray of float64, shape (rows, k)
        The rows.
    block_of : callable
        Reads B, (k, n); from an even column on, and an even number of them but for the last ones.
    vectors : ndarray of float64, shape (n, count)
        What B is multiplied by, as float64 does.
    sliced : bool
        Whether products are summed to some 2**-60 of the largest terms; else as float64 does.
    """
    (rows, k), (n, count) = a.shape, vectors.shape
    found = RowProducts(np.zeros((rows, n)), np.zeros((rows, n)), np.zeros((rows, n)), np.zeros((k, count)))
    steps = [_RowBlock.of(a[:, terms], terms, sliced=sliced) for terms in _depths(k)]

    def multiply(columns: slice) -> list[Array]:
        scratch = _Scratch(min(k, _BLOCK_DEPTH), columns.stop - columns.start)
        high, low, size = (array[:, columns] for array in (found.high, found.low, found.size))
        by_vectors = []
        for step in steps:
            block = scratch.block(step)
            block_of(step.terms, columns, block)
            by_vectors.append(_by_vectors(block, vectors[columns]))
            np.abs(block, out=scratch.part(step))
            size += _whole(step.magnitudes @ _stacked(scratch.part(step)))
            if sliced:
                _add_pair(high, low, *step.sliced_product(block, scratch.part(step)))
            else:
                high += _whole(step.values @ _stacked(block))
        return by_vectors

    # Widening and reading B is slow in one thread. Sums are added up in order.
    with concurrent.futures.ThreadPoolExecutor(usable_cpus()) as pool:
        for products in pool.map(multiply, _widths(k, n)):
            for step, product in zip(steps, products, strict=True):
                found.by_vectors[step.terms] += product
    return found


@dataclasses.dataclass(frozen=True)
class _RowBlock:
    """A block of the rows' columns, as stacks of matrices (depths, 1, rows, depth)."""

    terms: slice  #: Range of columns.
    values: Array
    magnitudes: Array
    bits: int  #: Bits of a slice.
    slices: tuple[Array, ...]  #: Slices of the values scaled by powers of two to less than 1.
    exponents: Array  #: Exponents of these powers, (rows, 1).

    @classmethod
    def of(cls, a: Array, terms: slice, *, sliced: bool) -> _RowBlock:
        stacked, bits = _row_stacks(a), (_EXACT_BITS - math.ceil(math.log2(max(a.shape[1], 2)))) // 2
        exponents = np.zeros((len(a), 1), int)
        slices: tuple[Array, ...] = ()
        if sliced:
            rest = a.copy()
            exponents = _scale(rest, np.abs(rest), axis=1)
            slices = tuple(_row_stacks(part.copy()) for part in _slices(rest, np.empty_like(rest), bits))
        return cls(terms, stacked, np.abs(stacked), bits, slices, exponents)

    def sliced_product(self, block: Array, part: Array) -> tuple[Array, Array]:
        """Return the rows times a block, as sums of two numbers; the block is lost, and `part` is scratch."""
        exponents = self.exponents + _scale(block, part, axis=0)
        high, low = np.zeros(exponents.shape), np.zeros(exponents.shape)
        for number, right in enumerate(_slices(block, part, self.bits)):
            # Those whose product is negligible are left out.
            for left in self.slices[: len(self.slices) - number]:
                _add_pair(high, low, _whole(left @ _stacked(right)))
        return np.ldexp(high, exponents), np.ldexp(low, exponents)


class _Scratch:
    """Memory of a thread for a block, and for as many elements again."""

    def __init__(self, depth: int, width: int) -> None:
        self._width, self._both = width, np.empty((2, depth * width))

    def block(self, step: _RowBlock) -> Array:
        return self._of(0, step)

    def part(self, step: _RowBlock) -> Array:
        return self._of(1, step)

    def _of(self, index: int, step: _RowBlock) -> Array:
        depth = step.terms.stop - step.terms.start
        return self._both[index, : depth * self._width].reshape(depth, self._width)


def _depths(k: int) -> Iterator[slice]:
    """Yield the depths of blocks: whole numbers of `_DEPTH`, and what is left."""
    whole = k - k % _DEPTH
    for start in range(0, whole, _BLOCK_DEPTH):
        yield slice(start, min(start + _BLOCK_DEPTH, whole))
    if whole < k:
        yield slice(whole, k)


def _widths(k: int, n: int) -> Iterator[slice]:
    """Yield the columns of blocks: whole numbers of `_WIDTH`, and what is left."""
    whole = n - n % _WIDTH
    step = max(_BLOCK_WIDTH, _BLOCK // max(min(k, _BLOCK_DEPTH), 1) // _WIDTH * _WIDTH)
    for start in range(0, whole, step):
        yield slice(start, min(start + step, whole))
    if whole < n:
        yield slice(whole, n)


def _row_stacks(a: Array) -> Array:
    """View rows as a stack of matrices (depths, 1, rows, depth)."""
    rows, depth = a.shape[0], min(a.shape[1], _DEPTH)
    stacks: Array = a.reshape(rows, a.shape[1] // depth, depth).swapaxes(0, 1)[:, None]
    return stacks


def _stacked(block: Array) -> Array:
    """View a block as a stack of matrices (depths, widths, depth, width)."""
    depth, width = min(block.shape[0], _DEPTH), min(block.shape[1], _WIDTH)
    stacks: Array = block.reshape(block.shape[0] // depth, depth, block.shape[1] // width, width).swapaxes(1, 2)
    return stacks


def _whole(product: Array) -> Array:
    """Return the product of stacks as a matrix, its depths summed up."""
    widths, rows, width = product.shape[1:]
    whole: Array = product.sum(axis=0).swapaxes(0, 1).reshape(rows, widths * width)
    return whole


def _by_vectors(block: Array, vectors: Array) -> Array:
    """Return a block times vectors."""
    if not vectors.shape[1]:
        return np.zeros((block.shape[0], 0))
    rows = math.gcd(block.shape[0], _VECTOR_ROWS)
    products: Array = block.reshape(-1, rows, block.shape[1]) @ vectors
    return products.reshape(block.shape[0], -1)


def _scale(x: Array, scratch: Array, axis: int) -> Array:
    """Scale rows (axis 1) or columns (axis 0) by powers of two to less than 1, in place; return the exponents."""
    _, exponents = np.frexp(np.max(np.abs(x, out=scratch), axis=axis, keepdims=True, initial=0.0))
    # Those of subnormal numbers alone are scaled by less, as a float64 holds no such factor.
    exponents = np.maximum(exponents, -1022)
    x *= np.ldexp(1.0, -exponents)
    found: Array = exponents
    return found


def _slices(x: Array, part: Array, bits: int) -> Iterator[Array]:
    """Cut numbers below 1 into parts of `bits` bits, the largest first, each in `part`; `x` becomes the rest."""
    for number in range(1, -(-_SLICED_BITS // bits) + 1):
        # The sum is rounded to a multiple of the part's unit, the last bit of such a number.
        rounding = 1.5 * 2.0 ** (_EXACT_BITS - 1 - number * bits)
        np.add(x, rounding, out=part)
        part -= rounding
        x -= part
        yield part


def _add_pair(high: Array, low: Array, term: Array, rest: Array | float = 0.0) -> None:
    """Add a term, and a rest of it, to sums of two numbers (Knuth's TwoSum)."""
    total = high + term
    of_term = total - high
    low += (high - (total - of_term)) + (term - of_term) + rest
    high[...] = total


def join_parts(found: RowProducts) -> RowProducts:
    """Return the product of complex rows, real and imaginary parts side by side, by those of the rows' parts.

    Parameters
    ----------
    found : RowProducts
        Products of the rows' real parts, then of as many imaginary parts, with B's parts side by side.
    """
    half = len(found.high) // 2
    high, low, size = (array[:half].copy() for array in (found.high, found.low, found.size))
    for own, other, sign in ((0, 1, -1.0), (1, 0, 1.0)):
        into, by_imag = (slice(None), slice(own, None, 2)), (slice(half, None), slice(other, None, 2))
        _add_pair(high[into], low[into], sign * found.high[by_imag], sign * found.low[by_imag])
        size[into] += found.size[by_imag]
    return RowProducts(high, low, size, found.by_vectors)
