"""Streams a product: plan, read ahead, compute, write behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from ...executor.tiles import TileExecutor
from ..stores.matrix import Array, Finished, MatrixSink
from .plan import StreamPlan
from .problem import StreamProblem
from .report import Report
from .search import plan_within
from .slice_reader import SliceReader
from .tile_writer import TileWriter

#: Called after every k-tile with the multiply-adds done and the total.
Progress = Callable[[int, int], None]


def plan_tiles(
    problem: StreamProblem,
    executor: TileExecutor,
    *,
    memory: int,
    block_shape: tuple[int, int] = (1, 1),
    scratch: int = 0,
    mirrored: bool = False,
) -> StreamPlan:
    """Check a product and plan it within `memory` bytes of buffers, in tiles that are multiples of `block_shape`.

    The buffers count what sources and executor take for themselves, and the `scratch` bytes of the sink. Where
    `mirrored` is set, one triangle of a matrix times its own transpose is computed, if nothing is added and square
    tiles of whole blocks of the sink fit.

    Raises
    ------
    ShapeError, DTypeError, ArgumentError
        If the matrices or scalars do not fit together.
    MemoryLimitError
        If `memory` is too small, or so small that most of the time would go into small tiles; the message gives what
        would do.
    """
    product = problem.product(block_shape)
    # One thread reads, so that no two sources read at once.
    scratch += max(source.scratch_bytes for source in problem.inputs.values())
    types = problem.a.dtype, problem.b.dtype, problem.dtype
    return plan_within(
        product,
        memory,
        lambda m, n, k: executor.tile_bytes(*types, m, n, k) + scratch,
        symmetric=mirrored and problem.is_symmetric(product),
    )


def stream_tiles(
    problem: StreamProblem,
    sink: MatrixSink,
    executor: TileExecutor,
    plan: StreamPlan,
    *,
    finished: Finished | None = None,
    progress: Progress | None = None,
) -> Report:
    """Write a product into `sink`, which is left to be committed.

    The same inputs and the same plan give the same bits: the slices of a tile are added in ascending order. A and B are
    not read if alpha is 0, and C is not if beta is.

    Parameters
    ----------
    executor : TileExecutor
        Executor of the tiles.
    plan : StreamPlan
        What `plan_tiles` returned for the product.
    finished : callable, optional
        Returns, for the rows and columns of a tile, whether the sink has it from an earlier run; it is not computed
        again.
    progress : callable, optional
        Called after every slice.
    """
    start = time.perf_counter()
    a, b, c, alpha, beta = problem.a, problem.b, problem.c, problem.alpha, problem.beta
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
        verified=None,
    )


def _ahead(
    plan: StreamPlan, a: SliceReader, b: SliceReader, finished: Finished | None
) -> Iterator[tuple[Future[Array], Future[Array]]]:
    """Yield the slices of every step, those of the next step requested already."""
    waiting: tuple[Future[Array], Future[Array]] | None = None
    for step in plan.steps(finished):
        inner = plan.inner(step.s)
        requested = (
            a.ask((step.i, step.s), plan.rows(step.i), inner),
            b.ask((step.s, step.j), inner, plan.cols(step.j)),
        )
        if waiting:
            yield waiting
        waiting = requested
    if waiting:
        yield waiting
