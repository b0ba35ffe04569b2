"""A product on the workers of a Dask scheduler: bands of its tiles, each read and written where it is computed."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Iterator
from typing import Any

from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import Precision
from gemmule.core.errors import ArgumentError, GemmuleError, UnsupportedError
from gemmule.host import blas

from ..journal.resumption import Work
from ..stores.opening import result_target
from ..stores.optional_packages import optional_package
from ..stores.uri import MatrixUri
from ..tiles.bands import Band, Tile, collect, cut_into_bands
from ..tiles.engine import Progress
from ..tiles.plan import StreamPlan
from ..tiles.problem import StreamProblem
from ..tiles.report import Report
from .host_engine import HostEngine, chosen_executor
from .request import Request, open_inputs

#: Retries of a band after an error on a worker, for instance a file system that is briefly unavailable.
RETRIES = 2

#: Seconds that a scheduler may take to have a worker: workers started together with it come later.
WORKERS_WITHIN_S = 10.0


@dataclass(frozen=True)
class Job:
    """The task of a worker: names of files and the plan, never the matrices."""

    request: Request
    plan: StreamPlan
    dtype: Any
    device: str
    memory: int
    blas_threads: int | None = None


def worker_request(request: Request) -> Request:
    """Return the request with names that hold in every folder.

    Raises
    ------
    ArgumentError
        If a matrix has no name.
    """
    names: dict[str, Any] = {}
    for role in ("a", "b", "c", "out"):
        matrix = getattr(request, role)
        if matrix is None and role == "c":
            continue
        if not isinstance(matrix, (str, os.PathLike)):
            raise ArgumentError(
                f"{role} is of type {type(matrix).__name__}; "
                "workers read and write files that all of them see; give its name"
            )
        uri = MatrixUri.parse(os.fspath(matrix))
        names[role] = str(MatrixUri(os.path.abspath(uri.path), uri.inner))
    return dataclasses.replace(request, **names)


def compute_band(job: Job, tiles: tuple[Tile, ...]) -> tuple[int, int]:
    """Compute the tiles of a band that are not stored; return bytes read and bytes written."""
    request = job.request
    shape = job.plan.product.m, job.plan.product.n
    with open_inputs(request) as (a, b, c):
        target = result_target(request.out, shape, job.dtype, request.chunks, request.shards)
        problem = StreamProblem(a, b, c, shape, job.dtype, request.alpha, request.beta)
        precision = Precision.parse(request.precision)
        with chosen_executor(request.executor, precision, *problem.dtype_names, job.memory) as (computer, memory):
            if computer.describe() != job.device:
                raise UnsupportedError(
                    f"this worker computes with {computer.describe()}, the product with {job.device}; the bits would "
                    "differ from tile to tile; start workers that are alike, or name the executor"
                )
            band = Band(target, job.plan, job.dtype, tiles)
            with band.sink as sink:
                engine = HostEngine(computer, memory, job.plan, target)
                with blas.threads_set(job.blas_threads):
                    report = engine.run(problem, sink, job.plan, band.finished)
                band.leave()
    return report.bytes_read, report.bytes_written


def check_address(scheduler: str) -> None:
    """Refuse an address that Dask cannot connect to; its client would not end after the error.

    Raises
    ------
    ArgumentError
        If the scheme is unknown, or there is no port.
    """
    addressing = optional_package("distributed.comm.addressing", f"scheduler {scheduler}", "distributed")
    registry = optional_package("distributed.comm.registry", f"scheduler {scheduler}", "distributed")
    try:
        scheme, location = addressing.parse_address(scheduler)
        registry.get_backend(scheme)
        if scheme != "inproc":
            addressing.parse_host_port(location)
        elif location.count("/") != 2:
            raise ValueError(f"{location} is not host/process/number")
    except (ValueError, ImportError) as error:
        raise ArgumentError(
            f"scheduler {scheduler}: is not an address of a Dask scheduler ({error}); give one such as tcp://node:8786"
        ) from None


def _client(dask: Any, scheduler: str) -> Any:
    """Return Dask's client of a scheduler, once it has answered."""
    try:
        return dask.Client(scheduler, set_as_default=False)
    except OSError as error:
        raise UnsupportedError(
            f"scheduler {scheduler}: does not answer ({error}); start one there with dask scheduler, or give another "
            "address"
        ) from error


@contextlib.contextmanager
def _connection(dask: Any, scheduler: str) -> Iterator[None]:
    """Raise a connection lost inside the block as one line."""
    try:
        yield
    except (dask.CancelledError, dask.client.ClosedClientError, OSError) as error:
        if isinstance(error, GemmuleError):
            raise
        raise UnsupportedError(
            f"scheduler {scheduler}: the connection was lost, or the work was cancelled there; start it again"
        ) from error


@contextlib.contextmanager
def _no_tracebacks() -> Iterator[None]:
    """Keep Dask's client from logging the traceback of a lost connection, which an error reports."""

    def without_traceback(record: logging.LogRecord) -> bool:
        return record.exc_info is None or not isinstance(record.exc_info[1], (OSError, asyncio.CancelledError))

    logger = logging.getLogger("distributed.client")
    logger.addFilter(without_traceback)
    try:
        yield
    finally:
        logger.removeFilter(without_traceback)


def _count_workers(client: Any, scheduler: str, resources: dict[str, int] | None) -> int:
    """Return how many workers may take bands, once there are some: tasks without one would wait for ever."""
    try:
        client.wait_for_workers(1, timeout=WORKERS_WITHIN_S)
    except TimeoutError:
        raise UnsupportedError(
            f"scheduler {scheduler}: has no workers after {WORKERS_WITHIN_S:g} s; start some, with dask worker "
            f"{scheduler} --nthreads 1 --memory-limit 0"
        ) from None
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    wanted = resources or {}
    able = sum(all(worker["resources"].get(name, 0) >= n for name, n in wanted.items()) for worker in workers)
    if not able:
        named = " ".join(f"{name}={n}" for name, n in wanted.items())
        raise UnsupportedError(
            f"scheduler {scheduler}: none of its {len(workers)} workers has the resource {named}, which the product "
            f"asks for; start workers with --resources {named}, or compute with executor='cpu'"
        )
    return able


def worker_blas_threads(scheduler: str) -> int:
    """Return the fewest threads that the BLAS of a worker uses; with so many all of them compute the same bits.

    Raises
    ------
    UnsupportedError
        If Dask is not installed, or the scheduler does not answer or has no workers.
    ArgumentError
        If the address is none.
    """
    dask = optional_package("distributed", f"scheduler {scheduler}", "distributed")
    check_address(scheduler)
    with _no_tracebacks(), _client(dask, scheduler) as client, _connection(dask, scheduler):
        _count_workers(client, scheduler, None)
        counts: dict[str, int] = client.run(blas.thread_count)
    return min(counts.values())


def _completed(dask: Any, client: Any, futures: list[Any], scheduler: str) -> Iterator[tuple[Any, Any]]:
    """Yield futures and their results as they complete."""
    for future in dask.as_completed(futures, loop=client.loop):
        if future.status != "error":
            with _connection(dask, scheduler):
                moved = future.result()
            yield future, moved
            continue
        error = future.exception()
        if isinstance(error, dask.KilledWorker):
            raise UnsupportedError(
                f"scheduler {scheduler}: a worker was lost again and again ({error}); give the workers more memory, "
                "with --memory-limit 0"
            ) from error
        raise error


def run_distributed(
    request: Request,
    scheduler: str,
    work: Work[StreamPlan],
    engine: HostEngine,
    progress: Progress | None = None,
) -> Report:
    """Compute the tiles that are not there on the workers of a scheduler.

    Each worker opens the files by their names, which must hold on all of them, and notes its finished tiles in a
    journal next to the product's: when it is lost, another one computes what is left of its band.

    Parameters
    ----------
    request : Request
        The product.
    scheduler : str
        Address, e.g. ``tcp://node:8786``.
    work : Work
        The result, opened here.
    engine : HostEngine
        Options of the workers; the limit of memory holds for each.
    progress : callable, optional
        Called after every band with the multiply-adds done and the total.

    Returns
    -------
    Report
        Sums over all workers.

    Raises
    ------
    UnsupportedError
        If Dask is not installed, the scheduler does not answer, a worker computes with something else, or there is none
        that may take a band.
    ArgumentError
        If a matrix is no file, or the address is none.
    """
    dask = optional_package("distributed", f"scheduler {scheduler}", "distributed")
    plan, finished = work.plan, work.finished
    check_address(scheduler)
    start = time.perf_counter()
    job = Job(worker_request(request), plan, work.dtype, engine.device, engine.memory, work.blas_threads)
    total = sum(plan.area(*tile) for tile in plan.order(finished)) * plan.product.k
    done = 0
    figures = [0, 0]
    with _no_tracebacks(), _client(dask, scheduler) as client:
        resources = {"GPU": 1} if engine.name == "gpu" else None
        with _connection(dask, scheduler):
            workers = _count_workers(client, scheduler, resources)
            bands = cut_into_bands(plan, finished, workers)
            waiting = {
                client.submit(compute_band, job, band, pure=False, retries=RETRIES, resources=resources): band
                for band in bands
            }
        try:
            for future, moved in _completed(dask, client, list(waiting), scheduler):
                figures = [sum(pair) for pair in zip(figures, moved, strict=True)]
                band = waiting.pop(future)
                collect(work.target.journal, work.target.name, work.sink, band)
                # A result that is held is computed again when its worker is lost.
                future.release()
                done += sum(plan.area(*tile) for tile in band) * plan.product.k
                if progress:
                    progress(done, total)
        finally:
            # A scheduler that is gone has nothing to cancel.
            with contextlib.suppress(UnsupportedError), _connection(dask, scheduler):
                client.cancel(list(waiting), force=True)
            for band in waiting.values():
                if not collect(work.target.journal, work.target.name, work.sink, band):
                    # A worker is still at it; the next run takes over what it notes.
                    work.sink.hold()
    seconds = time.perf_counter() - start
    return Report(
        executor=engine.name,
        device=f"{workers} Dask workers: {engine.device}",
        m=plan.product.m,
        n=plan.product.n,
        k=work.inputs["a"].shape[1],
        tiles=plan.tiles,
        tiles_computed=sum(len(band) for band in bands),
        tile_m=plan.tile_m,
        tile_n=plan.tile_n,
        tile_k=plan.tile_k,
        memory_bytes=plan.memory_bytes * max(workers, 1),
        seconds=seconds,
        gflops=2 * total / max(seconds, 1e-9) / 1e9,
        bytes_read=figures[0],
        bytes_written=figures[1],
        verified=None,
    )
