"""Configs of the transposes' tiles: their shape, shared memory and grid, and the problems that they do not fit."""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Sequence
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
# Rows of which a thread holds words, at most.
_WOVEN = 8
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


class WordTileConfig(TileConfig):
    """Base of configs for small matrices, whose threads write words of 4 bytes along the target's rows."""

    @property
    def row_alignment(self) -> int:
        """Bytes at a multiple of which the first word of a target's row begins; 1 where rows are aligned already."""
        return 1

    @property
    @abstractmethod
    def tile_words(self) -> int:
        """Words of a CTA along the target's rows."""

    @abstractmethod
    def tile_i(self, itemsize: int) -> int:
        """Return the elements of a CTA along the source's rows."""

    def tiles(self, problem: TransposeProblem) -> tuple[int, int]:
        # A row that begins at the last element before such a multiple needs the most words.
        words = -(-(problem.cols * problem.itemsize + self.row_alignment - problem.itemsize) // WORD)
        return -(-problem.rows // self.tile_i(problem.itemsize)), -(-words // self.tile_words)


@dataclass(frozen=True)
class WarpTileConfig(WordTileConfig):
    """Tile of warps along the source's rows, a word a lane: blocks of elements transposed in registers."""

    lanes: int = 4  #: Lanes of a warp along the source's rows, a power of 2; the others are along the target's.
    warps: int = 1  #: Warps of a CTA, all along the source's rows.

    def __post_init__(self) -> None:
        super().__post_init__()
        if WARP % self.lanes:
            raise ArgumentError(f"config {self}: lanes must divide the {WARP} of a warp")
        if self.warps > WARP:
            raise ArgumentError(f"config {self}: a CTA has up to {WARP} warps")

    @property
    def tile_elements(self) -> int:
        return self.threads

    @property
    def threads(self) -> int:
        return WARP * self.warps

    @property
    def tile_words(self) -> int:
        return WARP // self.lanes

    def tile_i(self, itemsize: int) -> int:
        return self.warps * self.lanes * packed_rows(itemsize)


@dataclass(frozen=True)
class GatheredConfig(WarpTileConfig):
    """Tile of warps along the source's rows, whose lanes gather the elements of words."""

    #: lanes, warps: As of WarpTileConfig.
    lanes: int = 8
    warps: int = 4
    words: int = 1  #: Words of a thread; the warp's lanes along the target's rows are between one and the next.

    @property
    def tile_elements(self) -> int:
        return self.threads * self.words

    @property
    def tile_words(self) -> int:
        return WARP // self.lanes * self.words

    def tile_i(self, itemsize: int) -> int:
        del itemsize
        return self.warps * self.lanes

    @property
    def row_alignment(self) -> int:
        """Half a sector, where a warp writes that of a row.

        Where it writes more, counting from a sector's beginning was measured to be slower than from the word in which
        the row begins.
        """
        written = WORD * WARP // self.lanes
        return written if written < SECTOR else WORD


@dataclass(frozen=True)
class WordAlignedConfig(WordTileConfig):
    """Tile of the aligned words that hold the source's rows."""

    lanes: int = 16  #: Contiguous words of a row of the source, 16 or 32; one of them is also the adjacent thread's.
    words: int = 8  #: Words of a row of the target.
    threads: int = 128  #: Threads of a CTA.
    begin: int = 4  #: Bytes at a multiple of which the first word of a row of the target begins.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lanes not in (16, 32) or self.words not in (8, 16, 32):
            raise ArgumentError(f"config {self}: lanes must be 16 or 32, and words 8, 16 or 32")
        self._require_threads()
        if self.begin not in (4, 8, 16, 32) or self.threads // self.words % self.begin:
            raise ArgumentError(f"config {self}: begin must be 4, 8, 16 or 32, and divide the rows of all threads")

    @property
    def tile_elements(self) -> int:
        return (self.lanes - 1) * self.words * WORD

    @property
    def row_alignment(self) -> int:
        return self.begin

    @property
    def tile_words(self) -> int:
        return self.words

    def tile_i(self, itemsize: int) -> int:
        return (self.lanes - 1) * packed_rows(itemsize)

    def held(self, itemsize: int) -> int:
        """Return the rows of the source that a CTA reads."""
        return (self.words * WORD + self.begin) // itemsize - 1

    def class_rows(self, itemsize: int) -> int:
        """Return the rows of a residue class in the tile: row numbers modulo the elements of a word."""
        return -(-self.held(itemsize) // packed_rows(itemsize))

    @property
    def row_words(self) -> int:
        """Words from a row of the tile to the next of its class."""
        return self.lanes + 2

    def class_words(self, itemsize: int) -> int:
        """Return the words from the rows of a class to those of the next.

        A warp gathers words of several rows of the target from rows of several classes, 16 banks apart: with this
        stride and that of rows fewest lanes meet in a bank. A row's elements begin anywhere in its words, so some do.
        """
        least = self.class_rows(itemsize) * self.row_words
        return least + (WARP // 2 - least) % WARP

    def tile_bytes(self, itemsize: int) -> int:
        return packed_rows(itemsize) * self.class_words(itemsize) * WORD


def structures_side(problem: TransposeProblem) -> str | None:
    """Return which side is an array of structures: its rows are the shorter ones and have no gaps. None for neither."""
    if problem.cols <= problem.rows:
        return "target" if problem.target.row_stride == problem.cols or problem.rows == 1 else None
    return "source" if problem.source.col_stride == problem.rows or problem.cols == 1 else None


@dataclass(frozen=True)
class SkinnyConfig(TileConfig):
    """Span of a matrix with a short side."""

    span_bytes: int = 2048  #: Bytes of each long row that a CTA holds: a power of 2 from 256.
    threads: int = 256  #: Threads of a CTA: whole warps.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threads % WARP or self.threads > 1024:
            raise ArgumentError(f"config {self}: threads must be a multiple of {WARP} up to 1024")
        if self.span_bytes & (self.span_bytes - 1) or self.span_bytes < 256:
            raise ArgumentError(f"config {self}: span_bytes must be a power of 2 from 256")

    @property
    def tile_elements(self) -> int:
        return self.span_bytes

    def unit(self, itemsize: int) -> int:
        """Return the bytes of an access."""
        return max(itemsize, WORD)

    def span(self, itemsize: int) -> int:
        """Return the elements of a long row that a CTA moves.

        It holds those from a sector's beginning, which a row may begin before and a word may begin within.
        """
        return (self.span_bytes - 2 * SECTOR) // itemsize

    def before(self, itemsize: int) -> int:
        """Return the elements before a span that a tile holds: up to the beginning of a sector."""
        return SECTOR // itemsize - 1

    def tiles(self, problem: TransposeProblem) -> tuple[int, int]:
        item = problem.itemsize
        count = -(-(max(problem.rows, problem.cols) + self.before(item)) // self.span(item))
        return (1, count) if problem.cols > problem.rows else (count, 1)

    def grid(self, problem: TransposeProblem) -> tuple[int, int, int]:
        return math.prod(super().grid(problem)), 1, 1

    def step(self, short: int, itemsize: int) -> int:
        """Return the units of structures that threads move at once.

        They are whole structures that fill whole units, and the next ones begin where a sector does if threads suffice.
        """
        sectors = math.lcm(short, SECTOR // self.unit(itemsize))
        return self.threads // sectors * sectors or self.threads // short * short

    def units(self, short: int, itemsize: int) -> float:
        """Return the units of a thread."""
        units = self.span_bytes // self.unit(itemsize)
        # Threads beyond those of a row have nothing to weave.
        return short * units / (min(self.threads, units) if self.weaves(short, itemsize) else self.threads)

    def weaves(self, short: int, itemsize: int) -> bool:
        """Return whether threads exchange the elements of words of all rows in registers."""
        return itemsize < WORD and 1 < short <= _WOVEN

    def padding(self, short: int, itemsize: int) -> int | None:
        """Return the power of 2 of the units of structures after which one of padding follows, None for no padding."""
        return _padding(short, self.unit(itemsize))

    def pitch(self, problem: TransposeProblem) -> int:
        """Return the bytes in shared memory from a long row of the source to the next."""
        unit, line = self.unit(problem.itemsize), problem.source.col_stride * problem.itemsize
        return _row_units(problem.cols, problem.itemsize, self.span_bytes) * unit + line % unit

    def span_shared_bytes(self, problem: TransposeProblem) -> int:
        """Return the shared memory of a CTA: long rows, or structures with padding."""
        short, item = min(problem.rows, problem.cols), problem.itemsize
        if structures_side(problem) == "source":
            padding, size = self.padding(short, item), self.span_bytes * short
            return size if padding is None else size + (size >> padding) + self.unit(item)
        woven = self.threads * (short | 1) * WORD if self.weaves(short, item) else 0
        return max(short * self.pitch(problem) + WORD, woven)

    def why_not(self, problem: TransposeProblem) -> str | None:
        if min(problem.rows, problem.cols) > self.threads:
            return f"structures have more elements than the {self.threads} threads"
        if self.threads & (self.threads - 1) and self.weaves(min(problem.rows, problem.cols), problem.itemsize):
            return f"rows whose elements are woven are not shared by {self.threads} threads, no power of 2"
        if (size := self.span_shared_bytes(problem)) > MAX_SHARED:
            return f"a span takes {size} bytes of shared memory, more than {MAX_SHARED}"
        return super().why_not(problem)


@functools.lru_cache(maxsize=256)
def _row_units(short: int, itemsize: int, span_bytes: int) -> int:
    """Return the units from a long row to the next with which lanes that gather structures have fewest conflicts."""
    unit, pack = max(itemsize, WORD), packed_rows(itemsize)
    lanes = range(WARP * WORD // unit)

    def conflicts(units: int) -> int:
        # The elements of a unit are read one after another.
        found = 0
        for e in range(pack):
            places = [divmod(lane * pack + e, short) for lane in lanes]
            found += most_words_of_a_bank([row * units * unit + i * itemsize for i, row in places])
        return found

    least = span_bytes // unit
    return min(range(least, least + WARP), key=conflicts)


@functools.lru_cache(maxsize=256)
def _padding(short: int, unit: int) -> int | None:
    """Return the padding with which lanes that read a unit of every structure have fewest conflicts, and the least."""
    lanes = [lane * short for lane in range(LINE // unit)]

    def conflicts(padding: int) -> int:
        return most_words_of_a_bank([(place + (place >> padding)) * unit for place in lanes])

    # Lanes of a row are half a warp at least, and structures of an odd number of units need none.
    return None if short % 2 else min(range(5, 0, -1), key=conflicts)


def most_words_of_a_bank(offsets: Sequence[int]) -> int:
    """Return the most words of one bank that lanes access at such offsets in bytes."""
    banks: dict[int, set[int]] = {}
    for offset in offsets:
        word = offset // WORD
        banks.setdefault(word % (LINE // WORD), set()).add(word)
    return max(map(len, banks.values()))
