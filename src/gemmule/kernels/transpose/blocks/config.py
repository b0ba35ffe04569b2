"""The config of transposes in blocks."""

from __future__ import annotations

import dataclasses
import math

from gemmule.core.dataclass import dataclass
from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import MAX_EXTENT
from gemmule.kernels.parts.hopper_facts import SMS
from gemmule.kernels.transpose.blocks.block import Block, count_of, in_units, stage_bytes, stages_of
from gemmule.kernels.transpose.blocks.block_choice import Ctas, block_of
from gemmule.kernels.transpose.tile_config import MAX_SHARED, TileConfig

# Bytes of a stage whose places are halves of words.
_MAX_STAGE = 1 << 16


@dataclass(frozen=True)
class BlocksConfig(TileConfig):
    """Threads of a CTA, and bytes of a thread."""

    threads: int = 256  #: Threads of a CTA.
    held: int = 64  #: Bytes of a block that a thread moves, at most, in as many accesses as they are words.
    resident: int = 2  #: CTAs of an SM.
    ctas: int = 2 * SMS  #: CTAs that share all blocks.

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_threads()

    @property
    def tile_elements(self) -> int:
        return self.threads * self.held

    @property
    def residents(self) -> Ctas:
        """Return the CTAs by whose predicted time a block is chosen."""
        return Ctas(self.threads, self.held, self.resident)

    def on(self, multiprocessors: int) -> BlocksConfig:
        return dataclasses.replace(self, ctas=self.resident * multiprocessors)

    def of(self, problem: TransposeProblem) -> Block:
        """Return the block that a CTA moves, in the units of `in_units`."""
        return block_of(problem, self.residents)

    def count(self, nbytes: int) -> int:
        """Return the accesses of so many bytes of a thread, at most."""
        return count_of(self.held, nbytes)

    def tiles(self, problem: TransposeProblem) -> tuple[int, int]:
        # A block's axes have more than one element: an axis of none is not among them.
        return math.prod(self.of(problem).counts) if problem.bytes_min else 0, 1

    def grid(self, problem: TransposeProblem) -> tuple[int, int, int]:
        return min(self.tiles(problem)[0], self.ctas), 1, 1

    def why_not(self, problem: TransposeProblem) -> str | None:
        problem = in_units(problem)
        block, item = self.of(problem), problem.itemsize
        stage = stage_bytes(block, item)
        stages = stages_of(block.vectors[0] * item)
        if stage > _MAX_STAGE or stages * stage > MAX_SHARED:
            return f"{stages} blocks of {stage} bytes take more shared memory than there is, {MAX_SHARED} bytes"
        if (count := self.tiles(problem)[0]) > MAX_EXTENT - self.ctas:
            return f"there are {count} blocks, more than {MAX_EXTENT - self.ctas}"
        return super().why_not(problem)
