"""The config of transposes of whole matrices in shared memory."""

from __future__ import annotations

import math

from gemmule.core.dataclass import dataclass
from gemmule.core.errors import ArgumentError
from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import VECTOR_BYTES
from gemmule.kernels.parts.hopper_facts import SMS
from gemmule.kernels.transpose.tile_config import LINE, MAX_SHARED, TileConfig, packed_rows

# Shared memory and threads of an SM, and what a CTA takes beyond its matrices: a barrier, and vectors at both ends.
_SHARED, _THREADS, _SLACK = 224 << 10, 2048, 3 * LINE


@dataclass(frozen=True)
class WholeMatricesConfig(TileConfig):
    """Matrices that follow one another in memory, which a CTA holds whole."""

    threads: int = 256  #: Threads of a CTA.
    resident: int = 8  #: CTAs of an SM that shared memory has room for.

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_threads()
        if self.threads * self.resident > _THREADS:
            raise ArgumentError(f"config {self}: {self.resident} CTAs have more than {_THREADS} threads")

    def matrices(self, problem: TransposeProblem) -> int:
        """Return the matrices of a CTA: as many as fit, but for a CTA of each place of a GPU; 0 where none fits."""
        size = self.pitch(problem) * problem.itemsize
        most = (min(_SHARED // self.resident, MAX_SHARED) - _SLACK) // size
        each = math.prod(problem.batch) // (SMS * self.resident)
        return min(most, max(each, 1))

    def pitch(self, problem: TransposeProblem) -> int:
        """Return the elements from a matrix in shared memory to the next, which begins within a vector as in memory.

        Behind a matrix are the elements that follow again, and the vectors that hold its end and the next one's begin.
        """
        vector = VECTOR_BYTES // problem.itemsize
        again = problem.rows * (packed_rows(problem.itemsize) - 1)
        return problem.rows * problem.cols + -(-(again + vector) // vector) * vector

    def matrices_shared_bytes(self, problem: TransposeProblem) -> int:
        """Return the shared memory of a CTA."""
        size = self.matrices(problem) * self.pitch(problem) * problem.itemsize + _SLACK
        return -(-size // LINE) * LINE

    def at_once(self, problem: TransposeProblem) -> int:
        """Return the CTAs of an SM: more than `resident` where they are smaller."""
        # A KiB of each is the system's.
        return min((_SHARED + 4 * 1024) // (self.matrices_shared_bytes(problem) + 1024), _THREADS // self.threads)

    def tiles(self, problem: TransposeProblem) -> tuple[int, int]:
        return 1, -(-math.prod(problem.batch) // max(self.matrices(problem), 1))

    def grid(self, problem: TransposeProblem) -> tuple[int, int, int]:
        return self.tiles(problem)[1], 1, 1

    def why_not(self, problem: TransposeProblem) -> str | None:
        if not self.matrices(problem):
            size = problem.rows * problem.cols * problem.itemsize
            return f"a matrix of {size} bytes does not fit into shared memory with {self.resident} CTAs"
        return super().why_not(problem)
