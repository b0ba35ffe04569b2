"""Padding of spans in shared memory, with which lanes meet in fewest banks."""

from __future__ import annotations

import functools

import numpy as np

from gemmule.kernels.transpose.banks import most_words_of_a_bank
from gemmule.kernels.transpose.tile_config import LINE, WARP, WORD, packed_rows


@functools.lru_cache(maxsize=256)
def row_units(short: int, itemsize: int, span_bytes: int) -> int:
    """Return the units from a long row to the next with which lanes that gather structures have fewest conflicts."""
    unit, pack = max(itemsize, WORD), packed_rows(itemsize)
    # The elements of a unit are read one after another.
    rows, places = np.divmod(np.arange(WARP * WORD // unit) * pack + np.arange(pack)[:, None], short)[::-1]
    least = span_bytes // unit
    tried = np.arange(least, least + WARP)
    conflicts = most_words_of_a_bank(rows * unit * tried[:, None, None] + places * itemsize)
    return int(tried[conflicts.sum(axis=1).argmin()])


@functools.lru_cache(maxsize=256)
def padding_of(short: int, unit: int) -> int | None:
    """Return the padding with which lanes that read a unit of every structure have fewest conflicts, and the least."""
    # Lanes of a row are half a warp at least, and structures of an odd number of units need none.
    if short % 2:
        return None
    lanes, tried = np.arange(LINE // unit) * short, np.arange(5, 0, -1)
    conflicts = most_words_of_a_bank((lanes + (lanes >> tried[:, None])) * unit)
    return int(tried[conflicts.argmin()])
