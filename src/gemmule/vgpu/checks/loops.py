"""Loops over lanes that pass or refuse an access in one go, compiled by Numba where it is installed.

Each returns False where it meets what may be a finding: the checks then look again with NumPy, which also reports, and
notes again what is noted already. So the NumPy code is the reference, and the only one without Numba.

All take `address` and `base`, of whose sums the lanes' places in shared memory are made, and `shift` and `many`: a
piece has ``1 << shift`` bytes, and each lane accesses so many. Lanes that repeat a place of their warp are skipped, as
far as a small table of the last places holds it: one lane is enough for clocks of warps, two for those of lanes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..numeric.compiled import compiler
from ..types import Array
from .agent_columns import ATOMIC

_ATOMIC = int(ATOMIC)
#: Places that the loops remember, and the bits of a warp's number in what they remember.
_PLACES, _WARP_BITS = 64, 20


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
    seen = np.full(_PLACES, -1, np.int64)
    for lane in range(address.size):
        start = (address[lane] + base[lane]) >> shift
        own_warp = warp[lane]
        place, slot = (start << _WARP_BITS) + own_warp, (start ^ start >> 2) & _PLACES - 1
        if seen[slot] == place:
            continue
        seen[slot] = place
        column = own[own_warp]
        clock = known[own_warp, column]
        before = 0
        for piece in range(start, start + many):
            mark = written[piece] & ~_ATOMIC
            if mark == 0 or (mark != before and known[own_warp, mark & low] < mark >> bits):
                return False
            before = mark
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


def note_shared_write(
    address: Array, base: Array, shift: int, many: int, mark: Array, number: int, written: Array, writer: Array
) -> bool:
    """Note writes by the marks of their lanes and the number of the instruction; return False where marks differ.

    Parameters as of `pass_shared_read`.
    """
    for lane in range(address.size):
        start = (address[lane] + base[lane]) >> shift
        for piece in range(start, start + many):
            written[piece], writer[piece] = mark[lane], number
    # Lanes of one warp have one mark, and of two warps the last one's stays.
    for lane in range(address.size):  # noqa: SIM110  (Numba takes no generator)
        if written[(address[lane] + base[lane]) >> shift] != mark[lane]:
            return False
    return True


def pass_lanes(
    address: Array, base: Array, shift: int, many: int, index: Array, times: tuple[Array, Array],
    clocks: tuple[Array, Array, int, int],
) -> bool:  # fmt: skip
    """Note accesses of lanes, if no other lane of the warp made accesses before that no meeting has ordered.

    Parameters
    ----------
    address, base, shift, many
        As above.
    index : array of int, (lanes,)
        Numbers of the lanes.
    times : (array of int64, (2, pieces), the same)
        The last accesses to compare with, and those to note these in; arrays without pieces for none. Of these two
        unordered ones to a piece stay. They are not the same array: the lanes of one access are not compared.
    clocks : (array of int64, array of int64, int, int)
        Times of each lane that the others of its warp know, and of now; the largest time that all know; and the bits of
        a time that hold its lane.
    """
    known, now, floor, low = clocks
    before, noted = times
    compares, notes = before.shape[1] > 0, noted.shape[1] > 0
    seen, twice = np.full(_PLACES, -1, np.int64), np.zeros(_PLACES, np.bool_)
    for lane in range(address.size):
        number = index[lane]
        start = (address[lane] + base[lane]) >> shift
        place, slot = (start << _WARP_BITS) + (number >> 5), (start ^ start >> 2) & _PLACES - 1
        if seen[slot] != place:
            seen[slot], twice[slot] = place, False
        elif twice[slot]:
            # Two lanes have found no other lane, so that there is none; and two are enough to note.
            continue
        else:
            twice[slot] = True
        for piece in range(start, start + many):
            if compares:
                for time in (before[0, piece], before[1, piece]):
                    if time > floor:
                        other = time & low
                        if time > known[other] and other != number and other >> 5 == number >> 5:
                            return False
            if notes:
                time = noted[0, piece]
                if time > floor and time & low != number and time > known[time & low]:
                    noted[1, piece] = time
                noted[0, piece] = now[number]
    return True


def touch_blocks(address: Array, base: Array, shift: int, before: Array, noted: Array) -> bool:
    """Note blocks that accesses touch; say whether one of them was touched before.

    Parameters
    ----------
    address, base
        As above.
    shift : int
        A block has ``1 << shift`` bytes.
    before, noted : array of bool, (blocks,)
        Blocks touched before, and those to note these in; empty for none.
    """
    compares, notes, found = before.size > 0, noted.size > 0, False
    for lane in range(address.size):
        block = (address[lane] + base[lane]) >> shift
        if compares and before[block]:
            found = True
        if notes:
            noted[block] = True
    return found


@functools.cache
def compiled(*loops: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    """Return loops as machine code; nothing without Numba."""
    numba = compiler()
    return () if numba is None else tuple(numba.njit(cache=True, nogil=True)(loop) for loop in loops)
