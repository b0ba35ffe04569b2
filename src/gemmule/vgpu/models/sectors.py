"""Global memory: the 32-byte sectors that a warp's request touches.

A request of a warp reaches the L1 cache as the set of the sectors that its active lanes touch; ncu counts them as
l1tex__t_sectors and the requests as l1tex__t_requests (Nsight Compute's Kernel Profiling Guide, "Memory chart").
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
#: Bytes of every lane's access, or of each of them, (requests, 32).
Sizes = int | NDArray[np.int64]

SECTOR = 32
LINE = 128

_NONE = np.iinfo(np.int64).min


def _sectors_in_order(addresses: NDArray[np.int64], active: NDArray[np.bool_], size: Sizes) -> Counts:
    """Return the sectors of each request in ascending order, with repetitions; absent ones come first."""
    first = addresses // SECTOR
    last = (addresses + (size - 1)) // SECTOR
    sectors = np.where(active, first, _NONE)
    # A lane's access is aligned, as the hardware demands, unless a caller counts something wider.
    if (straddles := active & (last != first)).any():
        sectors = np.concatenate([sectors, np.where(straddles, last, _NONE)], axis=1)
    if not (sectors[:, 1:] >= sectors[:, :-1]).all():
        sectors.sort(axis=1)
    return sectors


def _firsts(ordered: NDArray[Any]) -> NDArray[np.bool_]:
    new = np.empty(ordered.shape, bool)
    new[:, 0] = ordered[:, 0] != _NONE
    np.not_equal(ordered[:, 1:], ordered[:, :-1], out=new[:, 1:])
    return new


def request_sectors(addresses: NDArray[np.int64], active: NDArray[np.bool_], size: Sizes) -> Counts:
    """Return how many distinct sectors each request touches.

    Parameters
    ----------
    addresses : numpy.ndarray of int64
        Byte address of each lane, (requests, 32).
    active : numpy.ndarray of bool
        Active lanes, (requests, 32).
    size : int or numpy.ndarray of int64
        Bytes that a lane accesses, 1 to 16; of each lane, (requests, 32), where they differ.

    Returns
    -------
    numpy.ndarray of int64
        (requests,); 0 if no lane is active.
    """
    counts: Counts = _firsts(_sectors_in_order(addresses, active, size)).sum(axis=1, dtype=np.int64)
    return counts


def request_lines(addresses: NDArray[np.int64], active: NDArray[np.bool_], size: Sizes) -> Counts:
    """Return how many distinct lines of 128 bytes each request touches: (requests,), 0 if no lane is active."""
    ordered = _sectors_in_order(addresses, active, size)
    lines = np.where(ordered == _NONE, _NONE, ordered // (LINE // SECTOR))
    counts: Counts = _firsts(lines).sum(axis=1, dtype=np.int64)
    return counts


def ideal_sectors(addresses: NDArray[np.int64], active: NDArray[np.bool_], size: Sizes) -> Counts:
    """Return how many sectors would hold the distinct elements of each request, were they side by side and aligned.

    Never more than `request_sectors`, since lanes that share an element count once: 1 for a broadcast. Elements are
    aligned to their size.
    """
    if not isinstance(size, int):
        return _ideal_of_sizes(addresses, active, size)
    elements = np.sort(np.where(active, addresses, _NONE), axis=1)
    count: Counts = _firsts(elements).sum(axis=1, dtype=np.int64)
    return -(-count * size // SECTOR)


def _ideal_of_sizes(addresses: NDArray[np.int64], active: NDArray[np.bool_], size: NDArray[np.int64]) -> Counts:
    """Return the same for lanes that access elements of several sizes: of those at one address the largest counts."""
    order = np.lexsort((-size, np.where(active, addresses, _NONE)))
    elements = np.take_along_axis(np.where(active, addresses, _NONE), order, 1)
    held: Counts = np.where(_firsts(elements), np.take_along_axis(size, order, 1), 0).sum(axis=1, dtype=np.int64)
    return -(-held // SECTOR)


def touched_sectors(
    addresses: NDArray[np.int64], active: NDArray[np.bool_], size: Sizes
) -> tuple[NDArray[np.intp], Counts]:
    """Return the sectors that requests touch, as the stream that a cache sees.

    Returns
    -------
    requests : numpy.ndarray of intp
        Request of each access, ascending.
    sectors : numpy.ndarray of int64
        Sector of each access, its byte address div 32, ascending within a request.
    """
    ordered = _sectors_in_order(addresses, active, size)
    new = _firsts(ordered)
    return np.nonzero(new)[0], ordered[new]
