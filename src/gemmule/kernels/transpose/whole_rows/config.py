"""The config of transposes in tiles of whole rows of the target."""

from __future__ import annotations

import math

from gemmule.core.dataclass import dataclass
from gemmule.core.errors import ArgumentError
from gemmule.core.problem import TransposeProblem
from gemmule.kernels.transpose.tile_config import LINE, MAX_SHARED, WARP, WORD, TileConfig, packed_rows

# Bytes beyond a tile in shared memory: it begins within a vector, and its last word reaches beyond it.
_SLACK = 32
# Words that a thread has in flight at most, and few of them; the threads of an SM where it has more, and where not.
_MOST_WORDS, _FEW_WORDS, _RESIDENT_THREADS = 40, 20, (768, 1024)


@dataclass(frozen=True)
class WholeRowsConfig(TileConfig):
    """Tile of whole rows of the target, which follow one another in memory."""

    spans: int = 1  #: Spans of a warp's words along the source's rows.
    blocks: int = 8  #: Words of the target's rows that a lane fills at once; it reads a block more.
    threads: int = 256  #: Threads of a CTA.

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_threads()
        if self.blocks < 2:
            raise ArgumentError(f"config {self}: blocks must be 2 or more")

    def tile_rows(self, itemsize: int) -> int:
        """Return the rows of the target in a tile: a warp's last word only completes the one before."""
        return self.spans * (WARP - 1) * packed_rows(itemsize)

    def in_flight(self, itemsize: int) -> int:
        """Return the words that a thread loads before it stores the first."""
        return packed_rows(itemsize) * (self.blocks + 1)

    def resident(self, itemsize: int) -> int:
        """Return the CTAs of an SM that registers leave room for."""
        return max(_RESIDENT_THREADS[self.in_flight(itemsize) <= _FEW_WORDS] // self.threads, 1)

    def tiles(self, problem: TransposeProblem) -> tuple[int, int]:
        return -(-problem.rows // self.tile_rows(problem.itemsize)), 1

    def grid(self, problem: TransposeProblem) -> tuple[int, int, int]:
        return math.prod(super().grid(problem)), 1, 1

    def rows_shared_bytes(self, problem: TransposeProblem) -> int:
        """Return the shared memory of a CTA."""
        size = self.tile_rows(problem.itemsize) * problem.cols * problem.itemsize + _SLACK
        return -(-size // LINE) * LINE

    def why_not(self, problem: TransposeProblem) -> str | None:
        if (words := self.in_flight(problem.itemsize)) > _MOST_WORDS:
            return f"a thread has {words} words in flight, more than {_MOST_WORDS}"
        if (size := self.rows_shared_bytes(problem)) > MAX_SHARED:
            return f"whole rows take {size} bytes of shared memory, more than {MAX_SHARED}"
        if -(-problem.cols * problem.itemsize // WORD) < self.blocks:
            return f"rows of {problem.cols} elements have less than {self.blocks} words"
        return super().why_not(problem)
