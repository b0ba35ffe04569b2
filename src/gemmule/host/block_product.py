"""Small products, cut into blocks that BLAS multiplies in the thread that calls it.

The threads of OpenBLAS wait for each other by spinning: where other processes use the cores, that costs tens of
milliseconds for each product. The threads here sleep.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gemmule.core.cpus import usable_cpus

from ..executor.tiles import Array
from .product import multiply_whole

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

#: Multiply-adds up to which a product is cut into blocks.
SMALL_PRODUCT = 2**26
#: Multiply-adds below which OpenBLAS starts no thread, and the longest side of a block, of real and complex numbers:
#: long sides spare packing, short ones leave more terms, which spares adding products of blocks to the sum.
_REAL, _COMPLEX = (2**19, 64), (2**16, 24)
#: The former of real numbers.
NO_THREAD = _REAL[0]
#: Elements of a matrix from which on OpenBLAS multiplies it by a vector in several threads, real and complex.
_VECTOR_LIMITS = 9216, 4096
#: Elements of the vectors that BLAS computes with, or a multiple.
_VECTOR = 8
#: Multiply-adds that are worth handing to a thread.
_WORTH_A_THREAD = 2**20
#: Variables that limit the threads of OpenBLAS; the first that is set counts.
_LIMITS = "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"


def blas_threads() -> int:
    """Return how many threads OpenBLAS uses: the CPUs of this process, or what its variables allow."""
    cpus = usable_cpus()
    limits = [int(value) for name in _LIMITS if (value := os.environ.get(name, "")).isdecimal() and int(value)]
    return min([cpus, *limits[:1]])


def takes_no_thread(m: int, n: int, k: int, dtype: np.dtype[Any]) -> bool:
    """Return whether OpenBLAS starts no thread for a product of two matrices."""
    return m * n * k < (_COMPLEX if dtype.kind == "c" else _REAL)[0]


def add_in_blocks(total: Array, a: Array, b: Array, *, fresh: bool) -> None:
    """Add ``a @ b`` to `total`, or set it if `fresh`, with scratch for one product; in blocks if it is small.

    The blocks, and so the bits of the sum, are the same for any number of threads.

    Parameters
    ----------
    total : numpy.ndarray, shape (m, n)
        The sum. It is not read if `fresh`.
    a, b : numpy.ndarray, shapes (m, k) and (k, n), dtype of total
        Factors that BLAS reads in place.
    fresh : bool
        Whether `total` holds nothing yet.
    """
    (m, k), n = a.shape, b.shape[1]
    if m * n * k > SMALL_PRODUCT:
        multiply_whole(total, a, b, fresh=fresh)
        return
    limit, side = _COMPLEX if total.dtype.kind == "c" else _REAL
    block = _side(m, side), _side(n, side)
    step = max((limit - 1) // (block[0] * block[1]), 1)
    # Blocks of one column or row, the last ones too, are products with vectors, whose limit is lower.
    most = _VECTOR_LIMITS[total.dtype.kind == "c"] - 1
    for extent, side, other in ((n, block[1], block[0]), (m, block[0], block[1])):
        if 1 in (side, extent % side):
            step = min(step, max(most // other, 1))
    step = _evenly(k, step)
    threads = blas_threads()
    count = max(min(threads, m * n * k // _WORTH_A_THREAD), 1)
    product = np.empty((m, n), total.dtype)
    if -(-m // block[0]) >= -(-n // block[1]):
        parts = [(total[rows], a[rows], b, product[rows]) for rows in _parts(m, block[0], count)]
    else:
        parts = [(total[:, cols], a, b[:, cols], product[:, cols]) for cols in _parts(n, block[1], count)]
    handed = [_pool(os.getpid(), threads - 1).submit(_add_blocks, *part, (*block, step), fresh) for part in parts[1:]]
    _add_blocks(*parts[0], (*block, step), fresh)
    for future in handed:
        future.result()


@functools.cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Return the threads of a process; they would not survive a fork."""
    from concurrent.futures import ThreadPoolExecutor

    del process
    return ThreadPoolExecutor(threads, "gemmule-multiply")


def _add_blocks(total: Array, a: Array, b: Array, product: Array, block: tuple[int, int, int], fresh: bool) -> None:
    """Add ``a @ b`` to `total`, or set it if `fresh`, in blocks of (m, n, k); `product` is scratch of its shape."""
    k, step = a.shape[1], block[2]
    # A thread has error states of its own.
    with np.errstate(all="ignore"):
        for start in range(0, k, step):
            terms = slice(start, min(start + step, k))
            into = total if fresh and not start else product
            for (rows, height), (cols, width) in itertools.product(
                _stacks(a.shape[0], block[0]), _stacks(b.shape[1], block[1])
            ):
                # One call multiplies all these blocks.
                depth = terms.stop - terms.start
                np.matmul(
                    _stack(a[rows, terms], height, depth),
                    _stack(b[terms, cols], depth, width),
                    out=_stack(into[rows, cols], height, width),
                )
            if into is product:
                np.add(total, product, out=total)


def _stack(x: Array, rows: int, cols: int) -> Array:
    """View a matrix as a matrix of blocks; splitting axes takes no copy."""
    return x.reshape(x.shape[0] // rows, rows, x.shape[1] // cols, cols).swapaxes(1, 2)


def _stacks(extent: int, block: int) -> Iterator[tuple[slice, int]]:
    """Yield the slice of the whole blocks of `extent` and the length of each, and then what is left."""
    whole = extent - extent % block
    if whole:
        yield slice(0, whole), block
    if whole < extent:
        yield slice(whole, extent), extent - whole


def _parts(extent: int, block: int, count: int) -> Iterator[slice]:
    """Cut `extent` into at most `count` parts of whole blocks; the last may end with a shorter one."""
    blocks = -(-extent // block)
    count = min(count, blocks)
    for part in range(count):
        start, stop = (blocks * edge // count * block for edge in (part, part + 1))
        yield slice(start, min(stop, extent))


def _side(extent: int, most: int) -> int:
    """Return the side of a block, in whole vectors where `extent` has one."""
    even = _evenly(extent, most)
    return min(even + -even % _VECTOR, extent)


def _evenly(extent: int, most: int) -> int:
    """Return the length of equal parts of `extent`, each at most `most`."""
    return -(-extent // -(-extent // most))
