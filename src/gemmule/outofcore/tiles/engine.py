"""Streams a product: plan, read ahead, compute, write behind."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from ...executor.tiles import TileExecutor
from ..stores.matrix import AnyDType, Array, Finished, MatrixSink, MatrixSource
from .plan import StreamPlan
from .problem import StreamProblem
from .search import plan_within
from .slice_reader import SliceReader
from .tile_writer import TileWriter

#: Told after every slice: multiplications done, multiplications in all.
Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Report:
    """What a streamed product took.

    Attributes
    ----------
    executor, device : str
        What computed, by name and in words.
    m, n, k : int
        Extents of the product.
    tiles : int
        Tiles of the result.
    tiles_computed : int
        Those that were not there already.
    tile_m, tile_n, tile_k : int
        Extents of a tile and depth of a slice.
    memory_bytes : int
        All buffers together.
    seconds : float
        From the start until everything was stored.
    gflops : float
        Rate over that time.
    bytes_read, bytes_written : int
        Traffic.
    """

    executor: str
    device: str
    m: int
    n: int
    k: int
    tiles: int
    tiles_computed: int
    tile_m: int
    tile_n: int
    tile_k: int
    memory_bytes: int
    seconds: float
    gflops: float
    bytes_read: int
    bytes_written: int

    def __str__(self) -> str:
        """Say in a line what was done and how fast."""
        kept = self.tiles - self.tiles_computed
        done = f"{self.tiles_computed} of {self.tiles} tiles computed" + (f", {kept} there already" if kept else "")
        rate = f"{self.gflops:.{1 if self.gflops >= 1 else 4}f} GFLOP/s"
        return (
            f"{self.m} x {self.n} x {self.k} on {self.device}: {self.seconds:.2f} s, {rate}; {done}; "
            f"{self.bytes_read / 1e9:.4g} GB read and {self.bytes_written / 1e9:.4g} GB written"
        )


def plan_multiply(
    a: MatrixSource,
    b: MatrixSource,
    out_shape: tuple[int, int],
    out_dtype: AnyDType,
    executor: TileExecutor,
    *,
    memory: int,
    alpha: float | int = 1,
    beta: float | int = 0,
    c: MatrixSource | None = None,
    grain: tuple[int, int] = (1, 1),
    scratch: int = 0,
    mirrored: bool = False,
) -> StreamPlan:
    """Check a product and plan it within `memory` bytes of buffers, in tiles that are multiples of `grain`.

    The buffers count what sources and executor take for themselves, and the `scratch` bytes of the sink. Where
    `mirrored` is set, one triangle of a matrix times its own transpose is computed, if nothing is added and square
    tiles of whole blocks of the sink fit.

    Raises
    ------
    ShapeError, DTypeError, ArgumentError
        If the matrices or scalars do not fit together.
    MemoryLimitError
        If `memory` is too small, or so small that most of the time would go into small tiles; the message says what
        would do.
    """
    problem = StreamProblem(a, b, c, out_shape, out_dtype, alpha, beta)
    product = problem.product(grain)
    # One thread reads, so that no two sources read at once.
    scratch += max(source.scratch_bytes for source in (a, b, c) if source is not None)
    symmetric = mirrored and problem.is_symmetric(product)
    return plan_within(
        product, memory, lambda m, n, k: executor.tile_bytes(a.dtype, b.dtype, out_dtype, m, n, k) + scratch,
        symmetric=symmetric,
    )  # fmt: skip


def multiply(
    a: MatrixSource,
    b: MatrixSource,
    sink: MatrixSink,
    executor: TileExecutor,
    *,
    memory: int,
    alpha: float | int = 1,
    beta: float | int = 0,
    c: MatrixSource | None = None,
    plan: StreamPlan | None = None,
    progress: Progress | None = None,
    finished: Finished | None = None,
) -> Report:
    """Write ``alpha * a @ b + beta * c`` into `sink`, which is left to be committed.

    The same inputs and the same plan give the same bits: the slices of a tile are added in ascending order.

    Parameters
    ----------
    a, b : MatrixSource
        The factors. They are not read if `alpha` is 0.
    sink : MatrixSink
        The result.
    executor : TileExecutor
        What computes the tiles.
    memory : int
        Limit for all buffers together, in bytes.
    alpha, beta : float or int
        Scalars; integral where the result is of an integer type.
    c : MatrixSource, optional
        The matrix to add. It is not read if `beta` is 0.
    plan : StreamPlan, optional
        What `plan_multiply` gave for these arguments; made here if absent.
    progress : callable, optional
        Told after every slice.
    finished : callable, optional
        Says of the rows and columns of a tile whether the sink has it from a run before; it is not computed again.

    Returns
    -------
    Report
        What it took.
    """
    start = time.perf_counter()
    if plan is None:
        plan = plan_multiply(
            a, b, sink.shape, sink.dtype, executor, memory=memory, alpha=alpha, beta=beta, c=c, grain=sink.grain,
            scratch=sink.scratch_bytes, mirrored=True,
        )  # fmt: skip
    tile_elements = plan.tile_m * plan.tile_n
    product = plan.product
    with ThreadPoolExecutor(1, "gemmule-read") as read, ThreadPoolExecutor(1, "gemmule-write") as write:
        try:
            a_reader = SliceReader(a, plan.slots[0], plan.tile_m * plan.tile_k, read)
            b_reader = SliceReader(b, plan.slots[1], plan.tile_k * plan.tile_n, read)
            readers = [a_reader, b_reader]
            c_reader = None
            if product.c is not None and c is not None:
                c_reader = SliceReader(c, 1, tile_elements, read)
                readers.append(c_reader)
            writer = TileWriter(sink, plan.out_buffers, tile_elements, write)
            slices = _ahead(plan, a_reader, b_reader, finished)
            tiles, area = 0, 0
            for i, j in plan.order(finished):
                tiles, area = tiles + 1, area + plan.area(i, j)
            total = area * product.k
            done = 0
            for i, j in plan.order(finished):
                rows, cols = plan.rows(i), plan.cols(j)
                m, n = rows.stop - rows.start, cols.stop - cols.start
                added = c_reader.ask((i, j), rows, cols) if c_reader else None
                buffer, tile = writer.take(m, n)
                with executor.tile_sum(m, n, a.dtype, b.dtype, sink.dtype, into=tile) as tile_sum:
                    for _ in range(plan.grid[2]):
                        a_slice, b_slice = (future.result() for future in next(slices))
                        tile_sum.add(a_slice, b_slice)
                        done += m * n * a_slice.shape[1]
                        if progress:
                            progress(done, total)
                    if added is None:
                        tile_sum.finish(tile, alpha)
                    else:
                        tile_sum.finish(tile, alpha, beta, added.result())
                if plan.symmetric and i != j:
                    other, mirrored = writer.take(n, m)
                    np.copyto(mirrored, tile.T)
                    writer.put(cols.start, rows.start, other, mirrored)
                writer.put(rows.start, cols.start, buffer, tile)
            writer.finish()
        finally:
            # After a failure nothing that still waits is worth doing.
            read.shutdown(cancel_futures=True)
            write.shutdown(cancel_futures=True)
    seconds = time.perf_counter() - start
    return Report(
        executor=executor.name,
        device=executor.describe(),
        m=product.m,
        n=product.n,
        k=a.shape[1],
        tiles=plan.tiles,
        tiles_computed=tiles,
        tile_m=plan.tile_m,
        tile_n=plan.tile_n,
        tile_k=plan.tile_k,
        memory_bytes=plan.memory_bytes,
        seconds=seconds,
        gflops=2 * total / max(seconds, 1e-9) / 1e9,
        bytes_read=sum(reader.bytes_read for reader in readers),
        bytes_written=writer.bytes_written,
    )


def _ahead(
    plan: StreamPlan, a: SliceReader, b: SliceReader, finished: Finished | None
) -> Iterator[tuple[Future[Array], Future[Array]]]:
    """Yield the slices of every step, those of the next step being asked for already."""
    waiting: tuple[Future[Array], Future[Array]] | None = None
    for step in plan.steps(finished):
        inner = plan.inner(step.s)
        asked = (
            a.ask((step.i, step.s), plan.rows(step.i), inner),
            b.ask((step.s, step.j), inner, plan.cols(step.j)),
        )
        if waiting:
            yield waiting
        waiting = asked
    if waiting:
        yield waiting
