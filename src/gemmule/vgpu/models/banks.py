"""Shared memory: the wavefronts that a warp's request takes, and so its bank conflicts.

The rule, for compute capability 7.0 and later. Shared memory has 32 banks of 4 bytes; word w lies in bank w mod 32. A
request is cut into groups of lanes, one after another:

- up to 4 bytes a lane: the warp
- 8 bytes: two halves of 16 lanes. A load is one group if each active pair of lanes (i, i xor 1) has one address, or if
  each active pair (i, i xor 2) has: then 16 lanes' data stand for the warp.
- 16 bytes: four quarters of 8 lanes. A load is cut into its two halves if the same holds for all its pairs.

A group takes as many wavefronts as the most distinct words that it wants from one bank, lanes that want the same word
sharing it, in writes too; a group without an active lane takes none. Bank conflicts are `wavefronts` less
`ideal_wavefronts`.

Sources: CUDA C++ Programming Guide, "Shared memory" of compute capability 5.x and later (banks, words, broadcast);
NVIDIA's account of when loads are packed into half the requests
(forums.developer.nvidia.com/t/unexpected-shared-memory-bank-conflict/77228); CUTLASS's GTC 2019 talk S9593 for quarters
of 128-bit accesses. ldmatrix and stmatrix move one matrix, 8 rows of 16 bytes, in a wavefront without conflicts; the
writes of a 16-byte cp.async are taken to be those of a 16-byte store.

To be confirmed on hardware, with l1tex__data_pipe_lsu_wavefronts_mem_shared and
l1tex__data_bank_conflicts_pipe_lsu_mem_shared: that packing still holds on sm_80 and sm_90, and for loads alone; that a
quarter without active lanes is free; cp.async, whose wavefronts ncu may count elsewhere.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import ArgumentError

Addresses = NDArray[np.int64]
Mask = NDArray[np.bool_]
Counts = NDArray[np.int64]

BANKS = 32
WORD = 4

_LANES = np.arange(32)
_NONE = np.iinfo(np.int64).max
# Requests of one instruction in many blocks are mostly alike: so many patterns are looked for before all are counted.
_PATTERNS = 8


def wavefronts(addresses: Addresses, active: Mask, size: int, write: bool) -> Counts:
    """Return how many wavefronts each request takes.

    Parameters
    ----------
    addresses : numpy.ndarray of int64
        Byte address of each lane, (requests, 32), each a multiple of `size`.
    active : numpy.ndarray of bool
        Active lanes, (requests, 32).
    size : int
        Bytes that a lane accesses: 1, 2, 4, 8 or 16.
    write : bool
        Whether it is a store, or what cp.async writes.

    Returns
    -------
    numpy.ndarray of int64
        (requests,); 0 if no lane is active.
    """
    return _of_patterns(addresses, active, size, write, ideal=False)


def ideal_wavefronts(addresses: Addresses, active: Mask, size: int, write: bool) -> Counts:
    """Return how many wavefronts each request would take if no bank had two words: one a group."""
    return _of_patterns(addresses, active, size, write, ideal=True)


def matrix_wavefronts(rows: Addresses, matrices: int) -> Counts:
    """Return how many wavefronts each ldmatrix or stmatrix takes: each matrix is a group of 8 rows of 16 bytes.

    Parameters
    ----------
    rows : numpy.ndarray of int64
        Address operand of each lane, (warps, 32).
    matrices : int
        1, 2 or 4: those of lanes below 8, 16 or 32 count. Without conflicts, a matrix takes one wavefront.
    """
    active = np.broadcast_to(np.arange(32) < 8 * matrices, rows.shape)
    return _of_patterns(rows, active, 16, True, ideal=False)


def _of_patterns(addresses: Addresses, active: Mask, size: int, write: bool, ideal: bool) -> Counts:
    if size not in (1, 2, 4, 8, 16):
        raise ArgumentError(f"size={size}: a lane accesses 1, 2, 4, 8 or 16 bytes")
    # A shift by whole rows of banks changes nothing: they are counted from the first active lane's.
    start = np.take_along_axis(addresses, active.argmax(axis=1)[:, None], axis=1) & -BANKS * WORD
    offsets = addresses - start
    if not active.all():
        offsets[~active] = _NONE
    counts = np.zeros(len(offsets), np.int64)
    left = np.arange(len(offsets))
    for _ in range(_PATTERNS):
        if not left.size:
            return counts
        same = offsets == offsets[0]
        alike = np.ones(len(same), bool) if same.all() else same.all(axis=1)
        counts[left[alike]] = _count_pattern(offsets[0].tobytes(), size, write, ideal)
        left, offsets = left[~alike], offsets[~alike]
    if left.size:
        counts[left] = _count(offsets, size, write, ideal)
    return counts


@functools.lru_cache(maxsize=4096)
def _count_pattern(offsets: bytes, size: int, write: bool, ideal: bool) -> int:
    """Return the wavefronts of one request: a kernel's few patterns come again in every pass of its loops."""
    return int(_count(np.frombuffer(offsets, np.int64)[None], size, write, ideal)[0])


def _count(offsets: Addresses, size: int, write: bool, ideal: bool) -> Counts:
    """Return the wavefronts of requests whose inactive lanes are at `_NONE`."""
    lanes = min(32, 32 * WORD // size)  # of a group
    counts = _of_groups(offsets, lanes, size, ideal)
    if not write and size > WORD and (packed := _packed(offsets)).any():
        counts[packed] = _of_groups(offsets[packed], 2 * lanes, size, ideal)
    return counts


def _packed(offsets: Addresses) -> Mask:
    def pairs_agree(step: int) -> Mask:
        partner = offsets[:, _LANES ^ step]
        agree: Mask = ((offsets == partner) | (offsets == _NONE) | (partner == _NONE)).all(axis=1)
        return agree

    return pairs_agree(1) | pairs_agree(2)


def _of_groups(offsets: Addresses, lanes: int, size: int, ideal: bool) -> Counts:
    grouped = offsets.reshape(-1, lanes)
    if ideal:
        return _summed((grouped != _NONE).max(axis=1), len(offsets))
    width = max(1, size // WORD)
    words = (grouped[:, :, None] // WORD + np.arange(width)).reshape(len(grouped), -1)
    # In the order of banks, and of words within a bank.
    keys = (words % BANKS << 48) + (words // BANKS + 2**47)
    keys[np.repeat(grouped == _NONE, width, axis=1)] = _NONE
    keys.sort(axis=1)
    new = np.ones(keys.shape, bool)
    np.not_equal(keys[:, 1:], keys[:, :-1], out=new[:, 1:])
    new &= keys != _NONE
    group, place = np.nonzero(new)
    in_bank = np.bincount(group * BANKS + (keys[group, place] >> 48), minlength=len(grouped) * BANKS)
    return _summed(in_bank.reshape(len(grouped), BANKS).max(axis=1), len(offsets))


def _summed(of_groups: NDArray[Any], requests: int) -> Counts:
    counts: Counts = of_groups.reshape(requests, -1).sum(axis=1, dtype=np.int64)
    return counts
