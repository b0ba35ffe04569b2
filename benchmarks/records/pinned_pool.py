"""A large pool of pinned memory for benchmarks, made and filled by several threads."""

from __future__ import annotations

import mmap
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from gemmule.runtime.device import current
from gemmule.runtime.driver import call

_HUGE = 2 << 20
_BLOCK = 1 << 22


def pinned_pool(nbytes: int) -> np.ndarray:
    """Return pinned memory in huge pages, which several threads make: faster than the driver's own by far."""
    pool = pageable_pool(nbytes)
    with current(0):
        call("cuMemHostRegister", pool.ctypes.data, nbytes, 1)
    return pool


def pageable_pool(nbytes: int) -> np.ndarray:
    """Return memory in huge pages, which several threads make."""
    memory = mmap.mmap(-1, nbytes + _HUGE)
    memory.madvise(mmap.MADV_HUGEPAGE)
    pool = np.frombuffer(memory, np.uint8)
    pool = pool[-pool.ctypes.data % _HUGE :][:nbytes]
    with ThreadPoolExecutor(12) as threads:
        list(threads.map(lambda start: pool[start : start + (256 << 20)].fill(0), range(0, nbytes, 256 << 20)))
    return pool


def fill(matrix: np.ndarray, seed: int) -> None:
    """Fill a matrix with normal numbers: a block of fresh ones, repeated with a shift."""
    numbers = np.random.default_rng(seed).standard_normal(_BLOCK + 4093).astype(matrix.dtype)
    flat = matrix.reshape(-1)

    def part(place: int) -> None:
        piece = flat[place * _BLOCK : (place + 1) * _BLOCK]
        piece[...] = numbers[place % 4093 : place % 4093 + piece.size]

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(part, range(-(-flat.size // _BLOCK))))


def poison(matrix: np.ndarray) -> None:
    """Fill a matrix with NaN."""
    flat = matrix.reshape(-1)
    with ThreadPoolExecutor(12) as threads:
        list(threads.map(lambda start: flat[start : start + _BLOCK].fill(np.nan), range(0, flat.size, _BLOCK)))


def unpin(pool: np.ndarray) -> None:
    """Let a pool be pageable memory from now on."""
    with current(0):
        call("cuMemHostUnregister", pool.ctypes.data)


def copy_rate(threads: int, nbytes: int = 256 << 20) -> float:
    """Return the bytes a second that so many threads copy within host memory."""
    source, target = np.zeros(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    part = -(-nbytes // threads)
    with ThreadPoolExecutor(threads) as pool:
        best = 0.0
        for _ in range(3):
            start = time.perf_counter()
            list(
                pool.map(
                    lambda n: np.copyto(target[n * part : (n + 1) * part], source[n * part : (n + 1) * part]),
                    range(threads),
                )
            )
            best = max(best, nbytes / (time.perf_counter() - start))
    return best
