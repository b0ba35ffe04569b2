"""Sets of lanes, the threads of a batch of CTAs that run an instruction together, and their warps."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmule.vgpu.types import Array

Index = np.ndarray[Any, np.dtype[np.intp]]

#: Lanes of a warp, and their numbers.
WARP = 32
LANE = np.arange(WARP)


class Lanes:
    """Some lanes of a batch, in ascending order.

    Parameters
    ----------
    index : array of int
        Their numbers.

    Attributes
    ----------
    count : int
        Number of lanes.
    run : slice or None
        Their range, where they are contiguous.
    whole : array of int or None
        Numbers of their warps, where they are all lanes of these.
    """

    __slots__ = ("_cache", "_whole", "count", "index", "run", "warps")

    def __init__(self, index: Index) -> None:
        self.index = index
        self.count = len(index)
        first, last = (int(index[0]), int(index[-1])) if self.count else (0, -1)
        self.run = slice(first, last + 1) if last - first + 1 == self.count else None
        self._cache: dict[int, Array] = {}
        self._whole: Array | bool | None = None
        # The lanes as rows of warps, once an instruction needs them.
        self.warps: Warps | None = None

    @property
    def whole(self) -> Array | None:
        """Numbers of the warps, where these are all their lanes."""
        if self._whole is None:
            first = self.index[::WARP]
            filled = self.count % WARP == 0 and bool(
                ((first % WARP == 0) & (self.index[WARP - 1 :: WARP] - first == WARP - 1)).all()
            )
            self._whole = first // WARP if filled else False
        return None if isinstance(self._whole, bool) else self._whole

    def split(self, warps: Array) -> tuple[Lanes | None, Lanes | None]:
        """Return the lanes of the warps for which `warps`, one entry for each of the batch, is true, and the others."""
        whole = self.whole
        mask = warps[self.index // WARP if whole is None else whole]
        if mask.all():
            return self, None
        if not mask.any():
            return None, self
        if whole is None:
            return self.where(mask), self.where(~mask)
        rows = self.index.reshape(-1, WARP)
        return Lanes(rows[mask].reshape(-1)), Lanes(rows[~mask].reshape(-1))

    def where(self, mask: Array) -> Lanes:
        """Return those for which `mask`, one entry for each of them, is true."""
        return Lanes(self.index[mask])

    def pick(self, values: Array) -> Array:
        """Return, of an array with one row for each lane of the batch, the rows of these lanes.

        The result is cached with the lanes; it must not be written to.
        """
        found = self._cache.get(id(values))
        if found is None:
            found = self._cache[id(values)] = values[self.run if self.run is not None else self.index]
        return found

    def __len__(self) -> int:
        return self.count


def merged(parts: list[Lanes]) -> Lanes:
    """Return the union of disjoint sets."""
    if len(parts) == 1:
        return parts[0]
    index = np.concatenate([part.index for part in parts])
    # Sorted parts are merged.
    index.sort(kind="stable")
    return Lanes(index)


class Warps:
    """Lanes seen as rows of their warps.

    Attributes
    ----------
    active : array of bool, (warps, 32)
        Indices in their warp.
    """

    def __init__(self, lanes: Lanes) -> None:
        warp = lanes.index // WARP
        new = np.concatenate([[True], warp[1:] != warp[:-1]])
        self.numbers = warp[new]
        self._row = np.cumsum(new) - 1
        self._column = lanes.index % WARP
        self._whole = lanes.count == len(self.numbers) * WARP
        self.active = np.zeros((len(self.numbers), WARP), np.bool_)
        self.active[self._row, self._column] = True

    def spread(self, given: Any, fill: Any = 0) -> Array:
        """Return values of the lanes as (warps, 32); lanes that are not there hold `fill`."""
        values: Array = np.asarray(given)
        if values.ndim and self._whole:
            return np.reshape(values, (-1, WARP))
        spread: Array = np.full(self.active.shape, fill, values.dtype)
        spread[self._row, self._column] = values
        return spread

    def collect(self, matrix: Array) -> Array:
        """Return the values of the lanes from (warps, 32)."""
        found: Array = matrix.reshape(-1) if self._whole else matrix[self._row, self._column]
        return found


def rows_of(lanes: Lanes) -> Warps:
    """Return lanes as rows of their warps, cached with the lanes."""
    if lanes.warps is None:
        lanes.warps = Warps(lanes)
    return lanes.warps


def mask_bits(mask: Array) -> Array:
    """Return (…, 32) booleans from 32-bit masks."""
    bits: Array = (mask[..., None].astype(np.int64) >> LANE) & 1 != 0
    return bits
