"""Configs of transposes of small matrices, whose threads write words of the target's rows."""

from __future__ import annotations

from abc import abstractmethod

from gemmule.core.dataclass import dataclass
from gemmule.core.errors import ArgumentError
from gemmule.core.problem import TransposeProblem

from .tile_config import SECTOR, WARP, WORD, TileConfig, packed_rows


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
