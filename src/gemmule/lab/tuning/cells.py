"""Products that are tuned: named sets of cells, and random ones."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from gemmule.core.errors import ArgumentError
from gemmule.core.name_suggestions import unknown_name

from ..sizes import SIZE_SETS, Size

#: Rows of products of language models, and the columns and depths of their weights.
LLM_ROWS = (1, 16, 64, 128, 512, 4096)
LLM_WEIGHTS = ((4096, 4096), (11008, 4096), (4096, 14336), (28672, 4096), (576, 7168), (128256, 4096))
_SQUARES = tuple((edge, edge, edge) for edge in (512, 1024, 2048, 4096, 8192, 16384))
_LLM = tuple((rows, *weights) for rows in LLM_ROWS for weights in LLM_WEIGHTS)
#: Names of presets.
PRESETS = ("cells", "odd", "random:N:SEED")
# Extents of random products, a multiple of so much, and their most operations: those of 12000 x 12000 x 12000.
_LEAST, _MOST, _UNIT, _MOST_FLOP = 16, 16384, 8, 2 * 12000**3


def preset(word: str) -> tuple[Size, ...]:
    """Return the sizes of a preset, the quickest to measure first.

    Parameters
    ----------
    word : str
        ``cells``: squares, M = N with K = 1024, and language models, all aligned. ``odd``: extents that copies of 16
        bytes do not divide. ``random:N:SEED``: N sizes, log-uniform from 16 to 16384 in multiples of 8.

    Raises
    ------
    ArgumentError
        If there is no such preset.
    """
    if word.startswith("random:"):
        sizes = _random(word)
    elif word == "cells":
        sizes = (*_SQUARES, *SIZE_SETS["source"][1], *_LLM)
    elif word == "odd":
        sizes = SIZE_SETS["odd"][1]
    else:
        raise ArgumentError(unknown_name("preset", word, PRESETS))
    return tuple(sorted(dict.fromkeys(sizes), key=math.prod))


def _random(word: str) -> Sequence[Size]:
    _, _, numbers = word.partition(":")
    count_text, _, seed_text = numbers.partition(":")
    if not count_text.isdecimal() or not seed_text.isdecimal() or not 0 < int(count_text) <= 10000:
        raise ArgumentError(f"preset {word!r}: give how many and a seed, as in random:40:1, and at most 10000")
    numbers_of = random.Random(int(seed_text))  # noqa: S311  # sizes, no secrets
    found: dict[Size, None] = {}
    while len(found) < int(count_text):
        m, n, k = (
            max(round(math.exp(numbers_of.uniform(math.log(_LEAST), math.log(_MOST))) / _UNIT), 1) * _UNIT
            for _ in range(3)
        )
        if 2 * m * n * k <= _MOST_FLOP:
            found[m, n, k] = None
    return tuple(found)
