"""Random products: what a choice of kernel and config is judged on, and was never fitted to."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from gemmule.core.errors import ArgumentError, shown
from gemmule.core.row_major import MAX_EXTENT

from .products import LAYOUTS
from .sizes import Size

#: Prefix of a word of ``--sizes`` for random products.
PREFIX = "random:"
#: Extents of a draw that names none.
LOW, HIGH = 64, 8192
#: Default seconds a point where only draws are measured.
SECONDS = 0.1
# One product of so many has odd extents.
_ONE_ODD_OF = 3
# Extents of the others are multiples of so many bytes: what TMA and cuBLASLt's fast kernels take.
_ALIGNED_BYTES = 16


@dataclasses.dataclass(frozen=True)
class Draw:
    """A sequence of random products."""

    count: int  #: Number of products.
    seed: int  #: Seed; products of a smaller `count` are the first of a larger one.
    #: low, high: Least and greatest extent.
    low: int = LOW
    high: int = HIGH

    def products(self, itemsize: int) -> tuple[tuple[Size, str], ...]:
        """Return sizes and layouts for elements of that many bytes.

        Extents are log-uniform. Every third product has odd extents, the others multiples of 16 bytes; all four
        layouts are equally likely. The same extents before rounding are drawn for every type.
        """
        rng = np.random.default_rng(self.seed)
        step = max(_ALIGNED_BYTES // itemsize, 1)
        found = []
        for number in range(self.count):
            m, n, k = np.exp(rng.uniform(math.log(self.low), math.log(self.high), 3))
            layout = LAYOUTS[int(rng.integers(len(LAYOUTS)))]
            odd = number % _ONE_ODD_OF == _ONE_ODD_OF - 1
            found.append(
                ((self._rounded(m, step, odd), self._rounded(n, step, odd), self._rounded(k, step, odd)), layout)
            )
        return tuple(found)

    def _rounded(self, extent: float, step: int, odd: bool) -> int:
        """Return the nearest odd number, or the nearest multiple of `step`, within the limits."""
        if odd:
            low, high = self.low | 1, self.high - 1 | 1
            return min(max(int(extent) | 1, low), high)
        low, high = -(-self.low // step) * step, self.high // step * step
        return min(max(round(extent / step) * step, low), high)


def without_draws(words: Sequence[str]) -> tuple[list[str], tuple[Draw, ...]]:
    """Return the words of ``--sizes`` that name sizes, and the draws among them.

    Raises
    ------
    ArgumentError
        If a word begins as a draw does and is none.
    """
    sizes, draws = [], []
    for word in words:
        parts = word.split(",")
        draws += [parse_draw(part.strip()) for part in parts if part.strip().startswith(PREFIX)]
        if left := ",".join(part for part in parts if not part.strip().startswith(PREFIX)):
            sizes.append(left)
    return sizes, tuple(draws)


def parse_draw(word: str) -> Draw:
    """Return the draw that ``random:COUNT:SEED[:LOW:HIGH]`` names; the seed may be hexadecimal, as 0xdec08ee1.

    Raises
    ------
    ArgumentError
        If the word is not of that form, or no extent is between its limits.
    """
    fields = word.removeprefix(PREFIX).split(":")
    try:
        count, seed, *limits = (int(field, 16 if field.startswith("0x") else 10) for field in fields)
    except ValueError:
        count, seed, limits = 0, 0, []
    if count < 1 or seed < 0 or len(limits) not in (0, 2):
        raise ArgumentError(
            f"sizes {word!r} are not random:COUNT:SEED or random:COUNT:SEED:LOW:HIGH in whole numbers, such as "
            f"random:300:7 or random:60:0xdec08ee1:{LOW}:{HIGH}"
        )
    low, high = limits or (LOW, HIGH)
    if low < 1 or high < low + _ALIGNED_BYTES or high > MAX_EXTENT:
        raise ArgumentError(
            f"sizes {shown(word)} have other extents than from 1 to {MAX_EXTENT}, or limits less than "
            f"{_ALIGNED_BYTES} apart; give others, as in random:300:7:{LOW}:{HIGH}"
        )
    return Draw(count, seed, low, high)
