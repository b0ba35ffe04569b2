"""Configs of the transposes' tiles: their shape, shared memory and grid, and the problems that they do not fit."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

from gemmule.core.config import Config
from gemmule.core.dataclass import dataclass
from gemmule.core.errors import ArgumentError
from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import MAX_EXTENT, VECTOR_BYTES, why_not_grid

#: Lanes of a warp, and bytes of a word and of a sector, the unit in which memory is read and written.
WARP, WORD, SECTOR = 32, 4, 32
#: Bytes of all banks of shared memory.
LINE = 128
#: Lanes of a warp along the source's rows in a vector access: 128 bytes, or a row of the tile if that is shorter.
LANES = 8
#: Bytes of the rows of a large matrix's tiles, at least.
LONG_ROW = 256
# Bytes of the shortest rows that are moved in vectors.
_WIDE = 64
# Shared memory that a CTA of any architecture can have.
MAX_SHARED = 99 * 1024


def packed_rows(itemsize: int) -> int:
    """Return the elements of a word of 32 bits, 1 for larger ones: so many rows a thread reads together."""
    return max(WORD // itemsize, 1)


@dataclass(frozen=True)
class ReferenceConfig(Config):
    """Tile that a CTA moves."""

    tile: int = 32  #: Rows and columns of the tile.
    rows: int = 8  #: Rows of threads: a thread moves tile / rows elements.

    def shared_bytes(self, itemsize: int) -> int:
        """Return the bytes of the tile, each row padded by an element."""
        return self.tile * (self.tile + 1) * itemsize

    def why_not(self, problem: TransposeProblem) -> None:
        """Return None: it fits every problem."""


class TileConfig(Config):
    """Base of configs of transposes with a CTA for each tile."""

    @property
    @abstractmethod
    def threads(self) -> int:
        """Threads of a CTA."""

    @abstractmethod
    def tiles(self, problem: TransposeProblem) -> tuple[int, int]:
        """Return the numbers of tiles along the source's rows and along the target's."""

    def tile_bytes(self, itemsize: int) -> int:
        """Return the bytes of the tile in shared memory."""
        del itemsize
        return 0

    def shared_bytes(self, itemsize: int) -> int:
        """Return the shared memory of a CTA."""
        return self.tile_bytes(itemsize)

    def grid(self, problem: TransposeProblem) -> tuple[int, int, int]:
        """Return the grid."""
        along_source, along_target = self.tiles(problem)
        return along_target, along_source, math.prod(problem.batch)

    def why_not(self, problem: TransposeProblem) -> str | None:
        """Return why a launch cannot cover a problem, or None where it can."""
        if max(problem.rows, problem.cols, *problem.batch) > MAX_EXTENT:
            return f"an extent of {(problem.rows, problem.cols, *problem.batch)} is more than {MAX_EXTENT}"
        size = self.shared_bytes(problem.itemsize)
        if size > MAX_SHARED:
            return f"the tiles take {size} bytes of shared memory, more than {MAX_SHARED}"
        return why_not_grid(self.grid(problem))

    def _require_threads(self) -> None:
        if self.threads & (self.threads - 1) or not WARP <= self.threads <= 1024:
            raise ArgumentError(f"config {self}: threads must be a power of 2 from {WARP} to 1024")


class GroupedTileConfig(TileConfig):
    """Base of configs whose CTAs take `group` tiles along the target's rows, then the next along the source's.

    With a group of 0 they take whole rows of tiles of a single matrix: the grid has two dimensions, and no CTA divides.
    """

    group: int

    from_zero: ClassVar[frozenset[str]] = frozenset({"group"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_threads()

    @abstractmethod
    def tile(self, itemsize: int) -> tuple[int, int]:
        """Return the tile's elements along the source's rows and along the target's."""

    def tiles(self, problem: TransposeProblem) -> tuple[int, int]:
        tile_i, tile_j = self.tile(problem.itemsize)
        return -(-problem.rows // tile_i), -(-problem.cols // tile_j)

    def grid(self, problem: TransposeProblem) -> tuple[int, int, int]:
        grid = super().grid(problem)
        return (math.prod(grid), 1, 1) if self.group else grid

    def why_not(self, problem: TransposeProblem) -> str | None:
        if self.group == 0 and math.prod(problem.batch) > 1:
            return f"group=0 takes a single matrix; the batch is {problem.batch}"
        return super().why_not(problem)


@dataclass(frozen=True)
class ByteTileConfig(GroupedTileConfig):
    """Tile counted in bytes, so that one config suits every element size."""

    #: read_bytes, write_bytes: Bytes of a row of the tile in the source and in the target: powers of 2 from 16. Below
    #: 64, rows are moved element by element.
    read_bytes: int = 256
    write_bytes: int = 256
    threads: int = 256  #: Threads of a CTA.
    group: int = 8  #: As of GroupedTileConfig.

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(size < VECTOR_BYTES or size & (size - 1) for size in (self.read_bytes, self.write_bytes)):
            raise ArgumentError(f"config {self}: read_bytes and write_bytes must be powers of 2 from {VECTOR_BYTES}")

    @property
    def tile_elements(self) -> int:
        return self.read_bytes * self.write_bytes

    @property
    def is_wide(self) -> bool:
        """Whether vectors fit into the tile's rows."""
        return min(self.read_bytes, self.write_bytes) >= _WIDE

    def tile(self, itemsize: int) -> tuple[int, int]:
        return self.read_bytes // itemsize, self.write_bytes // itemsize

    def tile_bytes(self, itemsize: int) -> int:
        return self.read_bytes * self.write_bytes // itemsize

    def why_not(self, problem: TransposeProblem) -> str | None:
        if problem.in_place and self.read_bytes != self.write_bytes:
            return "tiles that are exchanged must be square"
        item, moved = problem.itemsize, self.threads * VECTOR_BYTES
        size = self.tile_bytes(item)
        if size < moved * packed_rows(item) or moved < self.write_bytes:
            return f"a tile of {size} bytes leaves some of {self.threads} threads idle"
        return super().why_not(problem)


@dataclass(frozen=True)
class TilePairConfig(ByteTileConfig):
    """Two square tiles that a CTA exchanges; the group has no effect."""

    def shared_bytes(self, itemsize: int) -> int:
        return 2 * self.tile_bytes(itemsize)

    def grid(self, problem: TransposeProblem) -> tuple[int, int, int]:
        tiles, _ = self.tiles(problem)
        return (tiles + 1) * -(-tiles // 2) * math.prod(problem.batch), 1, 1


@dataclass(frozen=True)
class SectorTileConfig(GroupedTileConfig):
    """Tile whose writes fill whole sectors of 32 bytes, whatever the target's row stride."""

    spans: int = 2  #: Warps along the source's rows; a lane reads a word of 4 bytes or a larger element.
    write_bytes: int = 128  #: Bytes of a row of the tile in the target: a power of 2 from 64.
    threads: int = 256  #: Threads of a CTA.
    group: int = 8  #: As of GroupedTileConfig.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.write_bytes & (self.write_bytes - 1) or self.write_bytes < 64:
            raise ArgumentError(f"config {self}: write_bytes must be a power of 2 from 64")
        if self.threads % (WARP * self.spans):
            raise ArgumentError(f"config {self}: spans must divide the warps")

    def columns(self, itemsize: int) -> int:
        """Return the words of a source's row that a tile takes.

        Where elements are smaller than words, words of the source begin within them: a warp's last one only completes
        the one before.
        """
        return self.spans * (WARP - 1 if itemsize < WORD else WARP)

    def tile(self, itemsize: int) -> tuple[int, int]:
        return self.columns(itemsize) * packed_rows(itemsize), self.write_bytes // itemsize

    def held(self, itemsize: int) -> int:
        """Return the words of a target's row that a tile holds: a sector more than it writes."""
        return (self.write_bytes + SECTOR) // max(itemsize, WORD)

    def row_words(self, itemsize: int) -> int:
        """Return the tile's row stride in words: an odd number, so that a column meets every bank."""
        return self.held(itemsize) | 1

    def tile_bytes(self, itemsize: int) -> int:
        return self.tile(itemsize)[0] * self.row_words(itemsize) * max(itemsize, WORD)

    def why_not(self, problem: TransposeProblem) -> str | None:
        if self.held(problem.itemsize) % (self.threads // (WARP * self.spans)):
            return f"{self.threads} threads do not share the tile evenly"
        return super().why_not(problem)
