"""Matrices of wgmma in shared memory: the addresses of the rows of 16 bytes that a descriptor names.

PTX ISA, "Asynchronous warpgroup level matrix shared memory layout" and "Matrix descriptor". A matrix has `extent` rows
(of A) or columns (of B), and 32 bytes of K, or with the other direction contiguous 16 lines of K. Its pieces are of 8
lines: the bytes of a line that lie together are 16, or as many as the swizzle.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..tensor_map import CHUNK, swizzled

Words = NDArray[Any]

#: Bytes of the swizzle, by the highest bits of a descriptor.
SWIZZLES = (0, 128, 64, 32)
_MASK = (1 << 14) - 1
#: Shared memory that descriptors reach.
_SPAN = 1 << 18
#: Lines of a piece.
_LINES = 8


def fields(descriptor: Words) -> tuple[Words, Words, Words, Words, Words]:
    """Return start, leading and stride offsets in bytes, base offset and swizzle of descriptors (uint64)."""
    bits = descriptor.view(np.int64)
    start, leading, stride = ((bits >> shift & _MASK) * CHUNK for shift in (0, 16, 32))
    return start, leading, stride, bits >> 49 & 7, np.array(SWIZZLES)[bits >> 62 & 3]


@functools.lru_cache(maxsize=512)
def chunk_offsets(extent: int, along_k: bool, leading: int, stride: int, swizzle: int) -> Words:
    """Return the offsets of a matrix's chunks of 16 bytes, before the swizzle.

    Returns
    -------
    array of int64
        (extent, 2) where K is contiguous; else (16 lines of K, extent / 8).
    """
    pitch = swizzle or CHUNK
    if along_k:
        line = np.arange(extent)[:, None]
        chunk = np.arange(2)
        across = CHUNK if swizzle else leading
        return line // _LINES * stride + line % _LINES * pitch + chunk * across
    line = np.arange(16)[:, None]
    chunk = np.arange(extent // 8)
    if not swizzle:
        return chunk * stride + line % _LINES * CHUNK + line // _LINES * leading
    together = swizzle // CHUNK
    return (
        chunk % together * CHUNK + chunk // together * leading + line % _LINES * pitch + line // _LINES * stride
    )  # fmt: skip


def chunk_addresses(start: Words, extent: int, along_k: bool, leading: int, stride: int, swizzle: int) -> Words:
    """Return the addresses of the chunks of matrices that begin at `start`: (n, ...) as `chunk_offsets`."""
    offsets = chunk_offsets(extent, along_k, leading, stride, swizzle)
    return swizzled((start[:, None, None] + offsets) % _SPAN, swizzle)
