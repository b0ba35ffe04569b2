"""Loops over lanes that pass or refuse an access in one go, compiled by Numba where it is installed.

Each returns False where it meets what may be a finding: the checks then look again with NumPy, which also reports, and
notes again what is noted already. So the NumPy code is the reference, and the only one without Numba.

All take `address` and `base`, of whose sums the lanes' places in shared memory are made, and `shift` and `many`: a
piece has ``1 << shift`` bytes, and each lane accesses so many. Lanes that repeat their neighbours' places are skipped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..numeric.compiled import compiler
from ..types import Array
from .clocks import ATOMIC

_ATOMIC = int(ATOMIC)


def pass_shared_read(
    address: Array, base: Array, shift: int, many: int, warp: Array, clocks: tuple[Array, Array, int], written: Array,
    reads: Array,
) -> bool:  # fmt: skip
    """Note reads of shared memory that was written, by writes that happened before.

    Parameters
    ----------
    address, base, shift, many
        As above.
    warp : array of int, (lanes,)
        Warps of the lanes.
    clocks : (array, array, int)
        The warps' clocks and columns, and the bits of a mark's column.
    written : array of int32, (pieces,)
        Marks of the last writes.
    reads : array of int32, (pieces, warps of a cluster)
        Times of the last reads.
    """
    known, own, bits = clocks
    low = (1 << bits) - 1
    last = -1
    for lane in range(address.size):
        start = (address[lane] + base[lane]) >> shift
        if start == last and warp[lane] == warp[lane - 1]:
            continue
        last = start
        column = own[warp[lane]]
        clock = known[warp[lane], column]
        for piece in range(start, start + many):
            mark = written[piece] & ~_ATOMIC
            if mark == 0 or known[warp[lane], mark & low] < mark >> bits:
                return False
            reads[piece, column] = clock
    return True


def pass_shared_write(
    address: Array, base: Array, shift: int, many: int, warp: Array, clocks: tuple[Array, Array, int], written: Array,
    reads: Array,
) -> bool:  # fmt: skip
    """Say whether all earlier reads and writes happened before writes; parameters as of `pass_shared_read`."""
    known, _, bits = clocks
    low = (1 << bits) - 1
    for lane in range(address.size):
        start = (address[lane] + base[lane]) >> shift
        for piece in range(start, start + many):
            mark = written[piece] & ~_ATOMIC
            if known[warp[lane], mark & low] < mark >> bits:
                return False
            for column in range(reads.shape[1]):
                if reads[piece, column] > known[warp[lane], column]:
                    return False
    return True


def pass_lanes(
    address: Array, base: Array, shift: int, many: int, index: Array, times: Array,
    clocks: tuple[Array, Array, int, int],
) -> bool:  # fmt: skip
    """Say whether no other lane of the warp made accesses that no meeting has ordered before these.

    Parameters
    ----------
    address, base, shift, many
        As above.
    index : array of int, (lanes,)
        Numbers of the lanes.
    times : array of int64, (2, pieces)
        The last accesses.
    clocks : (array of int64, array of int64, int, int)
        Times of each lane that the others of its warp know, and of now; the largest time that all know; and the bits of
        a time that hold its lane.
    """
    known, _, floor, low = clocks
    last, before = -1, -1
    for lane in range(address.size):
        start = (address[lane] + base[lane]) >> shift
        # The two before have found no other lane, so that there is none.
        if start == last and start == before and index[lane] >> 5 == index[lane - 2] >> 5:
            continue
        before, last = last, start
        for piece in range(start, start + many):
            for number in range(2):
                time = times[number, piece]
                if time > floor:
                    other = time & low
                    if time > known[other] and other != index[lane] and other >> 5 == index[lane] >> 5:
                        return False
    return True


def note_lanes(
    address: Array, base: Array, shift: int, many: int, index: Array, times: Array,
    clocks: tuple[Array, Array, int, int],
) -> None:  # fmt: skip
    """Note accesses of lanes, and of two unordered ones to a piece both; parameters as of `pass_lanes`."""
    known, now, floor, low = clocks
    for lane in range(address.size):
        number = index[lane]
        start = (address[lane] + base[lane]) >> shift
        # The last two are enough.
        if (
            lane + 2 < address.size
            and address[lane + 1] == address[lane]
            and address[lane + 2] == address[lane]
            and index[lane + 2] >> 5 == number >> 5
        ):
            continue
        for piece in range(start, start + many):
            time = times[0, piece]
            if time > floor and time & low != number and time > known[time & low]:
                times[1, piece] = time
            times[0, piece] = now[number]


@functools.cache
def compiled(*loops: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    """Return loops as machine code; nothing without Numba."""
    numba = compiler()
    return () if numba is None else tuple(numba.njit(cache=True, nogil=True)(loop) for loop in loops)
