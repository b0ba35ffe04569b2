"""The host engine: tiles in host memory, each multiplied by one executor."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from gemmule.api.planning.choice import host_arrays_executor, wanted_executor
from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import Precision
from gemmule.executor.activity import Transfer
from gemmule.executor.tiles import TileExecutor
from gemmule.host import blas
from gemmule.host.block_product import SMALL_PRODUCT

from ..stores.matrix import Finished, MatrixSink
from ..stores.target import Target
from ..tiles.engine import Progress, plan_tiles, stream_tiles
from ..tiles.plan import StreamPlan
from ..tiles.problem import StreamProblem
from ..tiles.report import Report
from ..tiles.search import TINY_BUDGET


@dataclass(frozen=True)
class HostEngine:
    """Computes a product tile by tile, in `memory` bytes of host memory; `activity` is that of a device, and empty."""

    computer: TileExecutor
    memory: int
    plan: StreamPlan
    place: MatrixSink | Target
    activity: list[Transfer] = dataclasses.field(default_factory=list)

    @property
    def name(self) -> str:
        """The executor's name."""
        return self.computer.name

    @property
    def device(self) -> str:
        """Name of the engine."""
        return self.computer.describe()

    def identity(self) -> dict[str, Any]:
        """Return the facts that determine a tile's bits, for the journal; BLAS threads are None where they do not."""
        plan = self.plan
        alike = self.name in ("gpu", "vgpu") or plan.tile_m * plan.tile_n * plan.tile_k <= SMALL_PRODUCT
        return {"executor": self.device, "blas_threads": None if alike else blas.thread_count()}

    def run(
        self,
        problem: StreamProblem,
        sink: MatrixSink,
        plan: StreamPlan,
        finished: Finished | None = None,
        progress: Progress | None = None,
    ) -> Report:
        """Compute the tiles that are not there."""
        return stream_tiles(problem, sink, self.computer, plan, finished=finished, progress=progress)

    def plan_with_twice_the_memory(self, problem: StreamProblem) -> StreamPlan:
        """Return the plan within twice the memory."""
        return _plan(problem, self.computer, 2 * self.memory, self.place)


def plan_host_engine(
    problem: StreamProblem, computer: TileExecutor, memory: int, place: MatrixSink | Target
) -> HostEngine:
    """Check a product and plan it in host memory; `place` is where the result goes.

    Raises
    ------
    ShapeError, DTypeError, ArgumentError, MemoryLimitError
        As of `plan_tiles`.
    """
    return HostEngine(computer, memory, _plan(problem, computer, memory, place), place)


def _plan(problem: StreamProblem, computer: TileExecutor, memory: int, place: MatrixSink | Target) -> StreamPlan:
    return plan_tiles(
        problem, computer, memory=memory, block_shape=place.block_shape, scratch=place.scratch_bytes, mirrored=True
    )


@contextlib.contextmanager
def chosen_executor(
    name: str | None, precision: Precision, dtypes: tuple[str, str, str], c_dtype: str | None, memory: int
) -> Iterator[tuple[TileExecutor, int]]:
    """Open the executor called `name`; None takes the GPU where there is one that can. `memory` is in bytes.

    Yields
    ------
    executor, memory
        The executor, and the limit, lowered to what fits into the GPU.

    Raises
    ------
    UnsupportedError
        If the chosen executor is not available, or does not support the problem.
    """
    # A file is always worth the way to a GPU: what it costs is reading it.
    chosen, _ = host_arrays_executor(wanted_executor(name), dtypes, c_dtype, None)
    if chosen == "gpu":
        from gemmule.dispatch.select import choose_streamed
        from gemmule.runtime.memory import usable_memory
        from gemmule.runtime.tiles import GpuTileExecutor

        with GpuTileExecutor(choose_streamed, 0, precision) as gpu:
            yield gpu, min(memory, usable_memory(0))
    elif chosen == "vgpu":
        from gemmule.dispatch.select import choose_streamed
        from gemmule.vgpu.tiles import VirtualTileExecutor

        yield VirtualTileExecutor(choose_streamed, precision), memory
    else:
        from gemmule.host.tiles import HostTileExecutor

        yield HostTileExecutor(tiny=memory < TINY_BUDGET), memory
