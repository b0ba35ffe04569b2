"""Tiles whose writes fill whole sectors of 32 bytes, whatever the rows' pitch: what kernels that move them share."""

from __future__ import annotations

import dataclasses
import math

from gemmule.core.errors import ArgumentError
from gemmule.core.problem import TransposeProblem

from .byte_tile_config import (
    TileConfig,
    packed_rows,
    rows_are_wide,
    target_rows_are_multiples,
    why_not_launched,
    why_not_touching,
)

#: Bytes that the memory moves at once.
SECTOR = 32
ITEMSIZES = (1, 2, 4, 8)
_WARP = 32
# What `sector_cost` counts with, of an H200: bytes a second of a multiprocessor, seconds of a CTA for its first words
# and for each word of a thread, and how much of what is asked for again the memory sees.
_BYTES_A_SECOND, _LATENCY, _AGAIN = 34e9, 0.6e-6, 0.2
_A_WORD = {1: 60e-9, 2: 30e-9, 4: 10e-9, 8: 10e-9}
# Spans and bytes of a row of the tiles that large matrices were fastest with, where the sum alone does not say so.
_FASTEST = {1: (2, 128), 8: (2, 128)}
# What a multiprocessor holds at once.
_RESIDENT_BYTES, _RESIDENT_CTAS = 220 << 10, 32
_RESIDENT_THREADS = {1: 1024, 2: 1536, 4: 2048, 8: 2048}
# Bytes of matrices with rows of whole vectors from which on whole sectors were measured to be better, by those of an
# element: of smaller ones the L2 cache puts the sectors together.
_LARGE = {1: 32 << 20, 2: 4 << 20, 4: 4 << 20, 8: 4 << 20}
# Shorter rows leave most of a tile empty.
_MIN_ROW = 64
#: Bytes of a word, in which the source is read.
_WORD = 4


@dataclasses.dataclass(frozen=True)
class SectorTileConfig(TileConfig):
    """Tile that a CTA moves.

    Attributes
    ----------
    spans : int
        Warps side by side along the source's rows, a word of 4 bytes or a larger element a lane.
    write_bytes : int
        Bytes of a row of the tile in the target: a power of 2 from 64.
    threads : int
        Threads of a CTA.
    group : int
        Tiles that CTAs take along the target's rows before they go on along the source's; 0 takes whole rows of tiles
        of a single matrix, by a grid of two dimensions, and divides nothing.
    """

    spans: int = 2
    write_bytes: int = 128
    threads: int = 256
    group: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.write_bytes & (self.write_bytes - 1) or self.write_bytes < 64:
            raise ArgumentError(f"config {self}: write_bytes must be a power of 2 from 64")
        if self.threads % (_WARP * self.spans):
            raise ArgumentError(f"config {self}: spans must divide the warps")

    def columns(self, itemsize: int) -> int:
        """Return the words of a source's row that a tile takes.

        Where elements are smaller than words, words of the source begin within them: a warp's last one only completes
        the one before.
        """
        return self.spans * (_WARP - 1 if itemsize < 4 else _WARP)

    def tile(self, itemsize: int) -> tuple[int, int]:
        return self.columns(itemsize) * packed_rows(itemsize), self.write_bytes // itemsize

    def held(self, itemsize: int) -> int:
        """Return the words of a target's row that a tile holds: a sector more than it writes."""
        return (self.write_bytes + SECTOR) // max(itemsize, 4)

    def pitch(self, itemsize: int) -> int:
        """Return the words from a row of the tile to the next: an odd number, so that a column meets every bank."""
        return self.held(itemsize) | 1

    def tile_bytes(self, itemsize: int) -> int:
        return self.tile(itemsize)[0] * self.pitch(itemsize) * max(itemsize, 4)


def why_not_apart(problem: TransposeProblem) -> str | None:
    """Say why the words at the ends of the source's memory cannot be put right: those of its first and last row are."""
    apart = abs(problem.source.col_stride) * problem.itemsize
    if problem.cols <= 1 or problem.itemsize >= _WORD or apart >= _WORD:
        return None
    return (
        f"rows of the source begin {apart} bytes apart; this kernel takes rows of which no two begin within {_WORD} "
        "bytes"
    )


def why_not_sector_tiles(problem: TransposeProblem, config: SectorTileConfig) -> str | None:
    """Say why tiles cannot be moved, or None where they can."""
    item = problem.itemsize
    if item not in ITEMSIZES:
        return f"elements of {item} bytes are not supported; the kernel moves 1, 2, 4 or 8 bytes"
    if reason := why_not_touching(problem):
        return reason
    if reason := why_not_apart(problem):
        return reason
    if rows_are_wide(problem):
        if target_rows_are_multiples(problem, SECTOR):
            return "every row begins and ends at a multiple of 16 bytes, the target's of 32: whole vectors are better"
        if problem.rows * problem.cols * item < _LARGE[item]:
            return (
                "every row begins and ends at a multiple of 16 bytes: below a matrix of "
                f"{_LARGE[item] >> 20} MiB whole vectors are better"
            )
    if min(problem.rows, problem.cols) * item < _MIN_ROW:
        return f"rows of {min(problem.rows, problem.cols)} elements are less than {_MIN_ROW} bytes"
    if config.held(item) % (config.threads // (_WARP * config.spans)):
        return f"{config.threads} threads do not share the tile evenly"
    return why_not_launched(problem, config)


def sector_cost(problem: TransposeProblem, config: SectorTileConfig, multiprocessors: int) -> float:
    """Return roughly the seconds that tiles of a config take: what is moved, or how long the CTAs wait."""
    item = problem.itemsize
    ctas = math.prod((*config.tiles(problem), *problem.batch))
    row = config.columns(item) * max(item, 4)
    # Rows of the source straddle a sector more than they fill, and the neighbour has read a sector of the target's.
    again = (1 + SECTOR / row) * (1 + SECTOR / config.write_bytes) - 1
    moved = ctas * config.tile(item)[0] * config.write_bytes * (2 + _AGAIN * again)
    alone = _LATENCY + _A_WORD[item] * packed_rows(item) * config.held(item) * config.spans / (config.threads // _WARP)
    resident = min(
        _RESIDENT_BYTES // config.tile_bytes(item), _RESIDENT_THREADS[item] // config.threads, _RESIDENT_CTAS
    )
    waves = -(-ctas // (multiprocessors * max(resident, 1)))
    preferred = 1.0 if config.group == 0 else 1.02
    if item in _FASTEST and (config.spans, config.write_bytes) != _FASTEST[item]:
        preferred *= 1.02
    return preferred * (max(moved / (multiprocessors * _BYTES_A_SECOND), waves * alone) + alone / 2)
