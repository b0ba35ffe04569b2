"""The config of transposes in blocks by words."""

from __future__ import annotations

import dataclasses
import math

from gemmule.core.dataclass import dataclass
from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import MAX_EXTENT, VECTOR_BYTES
from gemmule.kernels.parts.hopper_facts import SMS
from gemmule.kernels.transpose.blocks.block import in_units
from gemmule.kernels.transpose.tile_config import MAX_SHARED, WORD, TileConfig
from gemmule.kernels.transpose.word_blocks.word_block import WordBlock, stage_bytes, table_bytes, word_block

# Bytes of a stage whose places are halves of words.
_MAX_STAGE = 1 << 16


@dataclass(frozen=True)
class WordBlocksConfig(TileConfig):
    """Threads of a CTA, and bytes of a block."""

    threads: int = 256  #: Threads of a CTA.
    block_bytes: int = 16 << 10  #: Bytes of a block, at most.
    stages: int = 3  #: Blocks in shared memory.
    resident: int = 4  #: CTAs of an SM.
    ctas: int = 4 * SMS  #: CTAs that share all blocks.

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_threads()

    @property
    def tile_elements(self) -> int:
        return self.block_bytes

    def on(self, multiprocessors: int) -> WordBlocksConfig:
        return dataclasses.replace(self, ctas=self.resident * multiprocessors)

    def predicted(self, problem: TransposeProblem) -> tuple[WordBlock, float] | None:
        """Return the block and its predicted microseconds, or None where runs are short."""
        return word_block(problem, self.threads, self.block_bytes)

    def of(self, problem: TransposeProblem) -> WordBlock:
        """Return the block that a CTA moves, in the units of `in_units`."""
        found = self.predicted(problem)
        assert found is not None
        return found[0]

    def shared(self, problem: TransposeProblem) -> int:
        """Return the shared memory of a CTA: barriers, the table, and stages."""
        block = self.of(problem)
        # Barriers and cursors.
        before = -(-(8 * self.stages + WORD * WORD) // VECTOR_BYTES) * VECTOR_BYTES
        return before + table_bytes(block) + self.stages * stage_bytes(block, in_units(problem).itemsize)

    def tiles(self, problem: TransposeProblem) -> tuple[int, int]:
        # A block's axes have more than one element: an axis of none is not among them.
        return math.prod(self.of(problem).counts) if problem.bytes_min else 0, 1

    def grid(self, problem: TransposeProblem) -> tuple[int, int, int]:
        return min(self.tiles(problem)[0], self.ctas), 1, 1

    def why_not(self, problem: TransposeProblem) -> str | None:
        if self.predicted(problem) is None:
            return "no block has runs of a sector in source and target"
        block, item = self.of(problem), in_units(problem).itemsize
        stage = stage_bytes(block, item)
        if stage > _MAX_STAGE or self.shared(problem) > MAX_SHARED:
            return f"blocks of {stage} bytes take more shared memory than there is, {MAX_SHARED} bytes"
        if (count := self.tiles(problem)[0]) > MAX_EXTENT - self.ctas:
            return f"there are {count} blocks, more than {MAX_EXTENT - self.ctas}"
        return super().why_not(problem)
