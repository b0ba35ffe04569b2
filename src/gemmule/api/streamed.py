"""A product of matrices that need not fit into memory: opened, computed, checked, and made to appear."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gemmule.core.dtype import Precision
from gemmule.core.errors import ArgumentError, OverlapError
from gemmule.executor.memory_overlap import overlaps_itself, share_memory
from gemmule.executor.tiles import TileExecutor
from gemmule.host import blas
from gemmule.host.block_product import SMALL_PRODUCT
from gemmule.outofcore.arrays import ArraySink, file_range
from gemmule.outofcore.budget import given_bytes, memory_limit, parse_bytes
from gemmule.outofcore.device.budgets import Budgets
from gemmule.outofcore.device.rates import Rates
from gemmule.outofcore.fingerprint import mapped_file
from gemmule.outofcore.mapped_sink import array_sink
from gemmule.outofcore.matrix import AnyDType, Finished, MatrixSink, MatrixSource, TransposedSource
from gemmule.outofcore.multiply import Progress, Report, multiply, plan_multiply
from gemmule.outofcore.opening import open_source, result_target
from gemmule.outofcore.plan import StreamPlan
from gemmule.outofcore.result import output_dtype, result_dtype
from gemmule.outofcore.resume import Work, open_work
from gemmule.outofcore.target import Target
from gemmule.outofcore.verify import Verdict, vectors_at_a_time, verify
from gemmule.outofcore.zarr_sink import ZarrArraySink
from gemmule.outofcore.zarr_source import array_folder, same_array

from .device_product import DevicePart, DeviceProduct, plan_device_product
from .device_streams import check_devices, measured_rates, threads_for_copies
from .executors import host_arrays_executor, wanted_executor
from .tile_executor import chosen_executor

#: Pinned memory for staging where nobody says.
PINNED_BYTES = 256 << 20


@dataclasses.dataclass(frozen=True)
class Request:
    """A product as the caller wants it; `gemmule.multiply` says what the fields are."""

    a: Any
    b: Any
    out: Any
    c: Any = None
    alpha: Any = 1
    beta: Any = 0
    transpose_a: bool = False
    transpose_b: bool = False
    memory: int | str | None = None
    out_dtype: str | None = None
    compute_dtype: str | None = None
    a_dtype: str | None = None
    b_dtype: str | None = None
    c_dtype: str | None = None
    precision: str | Precision | None = None
    executor: str | None = None
    resume: bool = True
    force: bool = False
    chunks: tuple[int, int] | None = None
    shards: tuple[int, int] | None = None
    checked: bool = False
    scheduler: str | None = None
    device_memory: int | str | None = None
    pinned_memory: int | str | None = None
    strategy: str | None = None
    traced: bool = False
    devices: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True)
class StreamedProduct:
    """A product whose matrices are open.

    Attributes
    ----------
    request : Request
        What was asked for.
    a, b : MatrixSource
        The factors, transposed where that was asked for.
    c : MatrixSource or None
        The matrix to add.
    sink : MatrixSink
        Where tiles go.
    computer : TileExecutor
        What computes.
    plan : StreamPlan
        How.
    finished : callable or None
        Which tiles were there already.
    limit, room : int
        Bytes of memory that the caller allows, and that buffers may take.
    work : Work or None
        The result as it was opened, where it is a file.
    """

    request: Request
    a: MatrixSource
    b: MatrixSource
    c: MatrixSource | None
    sink: MatrixSink
    computer: TileExecutor
    plan: StreamPlan
    finished: Finished | None
    limit: int
    room: int
    work: Work[StreamPlan] | None = None

    @property
    def tiles_reused(self) -> int:
        """Tiles that were there already."""
        return self.plan.tiles - sum(1 for _ in self.plan.order(self.finished))

    def run(self, progress: Progress | None = None) -> Report:
        """Compute the tiles that are not there, here or on the workers of the scheduler."""
        if self.request.scheduler is not None:
            from .distributed import run_distributed

            return run_distributed(self, self.request.scheduler, progress)
        with blas.threads_set(None if self.work is None else self.work.blas_threads):
            return multiply(
                self.a, self.b, self.sink, self.computer, memory=self.room, alpha=self.request.alpha,
                beta=self.request.beta, c=self.c, plan=self.plan, progress=progress, finished=self.finished,
            )  # fmt: skip

    def commit(self) -> None:
        """Let the result appear, unless an input was changed meanwhile."""
        if self.work is not None:
            self.work.check_inputs()
        self.sink.commit()

    def reject(self) -> None:
        """Delete a result that is wrong, unless an input was changed meanwhile: that says why it is."""
        if self.work is not None:
            self.work.check_inputs()
        self.sink.abort()

    def verify(self, seed: int | None = None) -> Verdict:
        """Check what was written, before it appears."""
        with contextlib.closing(self.sink.written()) as written:
            return verify(
                self.a, self.b, written, memory=self.limit, alpha=self.request.alpha, beta=self.request.beta,
                c=self.c, precision=Precision.parse(self.request.precision), seed=seed,
            )  # fmt: skip


@contextlib.contextmanager
def open_product(request: Request) -> Iterator[StreamedProduct | DeviceProduct]:
    """Open the matrices of a product, plan it, and take up what a run before has left of it.

    Leaving the block without committing the sink keeps finished tiles of a file, and nothing else.

    Raises
    ------
    GemmuleError
        If the product cannot be computed as it is wanted; the message says why.
    OSError
        If a file cannot be read or written.
    """
    alpha, beta = request.alpha, request.beta
    limit = memory_limit(request.memory)
    wanted = None if request.out_dtype is None else output_dtype(request.out_dtype)
    with contextlib.ExitStack() as stack:
        a, b, c = stack.enter_context(open_inputs(request))
        inputs = {"a": a, "b": b} | ({} if c is None else {"c": c})
        place = None if isinstance(request.out, (str, os.PathLike)) else open_sink(request, inputs)
        if place is not None:
            wanted = wanted or place.dtype
        dtype = result_dtype(a.dtype, b.dtype, wanted)
        shape = a.shape[0], b.shape[1]
        device = device_of(request, a, b, c, dtype)
        if device is not None:
            if place is not None and dtype != place.dtype:
                raise ArgumentError(
                    f"out_dtype={dtype} differs from the dtype of out, {place.dtype}; pass one of the two"
                )
            target = None if place else result_target(request.out, shape, dtype, request.chunks, request.shards)
            part = planned_part(request, device, a, b, c, place or target, shape, dtype, limit)
            if request.checked:
                vectors_at_a_time(a.shape, b.shape, limit)
            if place is not None:
                yield DeviceProduct(request, a, b, c, place, part, part.chosen.plan, None, limit)
                return
            assert target is not None
            decided = {**_decided(request, part.device), "device": device}
            if device == "host":
                decided["blas_threads"] = blas.thread_count()
            room = part.chosen.memory
            taken = open_work(
                target, dtype, part.chosen.plan, decided, inputs, memory=room, force=request.force,
                resume=request.resume,
            )  # fmt: skip
            sink = stack.enter_context(taken.sink)
            yield DeviceProduct(request, a, b, c, sink, part, taken.plan, taken.finished, limit, taken)
            return
        computer, room = stack.enter_context(open_computer(request, a, b, c, dtype, limit))
        scalars = {"alpha": alpha, "beta": beta, "c": c}
        if request.checked:
            # Not after hours of work.
            vectors_at_a_time(a.shape, b.shape, limit)
        if place is not None:
            if dtype != place.dtype:
                raise ArgumentError(
                    f"out_dtype={dtype} differs from the dtype of out, {place.dtype}; pass one of the two"
                )
            plan = plan_multiply(
                a, b, place.shape, dtype, computer, memory=room, grain=place.grain, scratch=place.scratch_bytes,
                mirrored=True, **scalars,
            )  # fmt: skip
            yield StreamedProduct(request, a, b, c, place, computer, plan, None, limit, room)
            return
        target = result_target(request.out, shape, dtype, request.chunks, request.shards)
        plan = plan_multiply(
            a, b, shape, dtype, computer, memory=room, grain=target.grain, scratch=target.scratch_bytes,
            mirrored=True, **scalars,
        )  # fmt: skip
        decided = {**_decided(request, computer.describe()), "blas_threads": _blas_threads(request, computer, plan)}
        work = open_work(target, dtype, plan, decided, inputs, memory=room, force=request.force, resume=request.resume)
        sink = stack.enter_context(work.sink)
        yield StreamedProduct(request, a, b, c, sink, computer, work.plan, work.finished, limit, room, work)


def _decided(request: Request, computer: str) -> dict[str, Any]:
    """Return what else decides the bits of a result."""
    return {
        "alpha": repr(request.alpha),
        "beta": repr(request.beta),
        "precision": Precision.parse(request.precision).value,
        "executor": computer,
    }


def _blas_threads(request: Request, computer: TileExecutor, plan: StreamPlan) -> int | None:
    """Return the threads of the host's BLAS that the product begins with; None where they decide no bits."""
    if computer.name != "host" or plan.tile_m * plan.tile_n * plan.tile_k <= SMALL_PRODUCT:
        return None
    if request.scheduler is None:
        return blas.thread_count()
    from .distributed import worker_blas_threads

    return worker_blas_threads(request.scheduler)


def device_of(
    request: Request, a: MatrixSource, b: MatrixSource, c: MatrixSource | None, dtype: AnyDType
) -> str | None:
    """Return the device that a product passes through: a GPU, or, where somebody asks for one, the host as one."""
    wanted = (request.device_memory, request.strategy, request.pinned_memory, request.devices)
    asked = request.traced or any(one is not None for one in wanted)
    for name in ("device_memory", "pinned_memory"):
        if getattr(request, name) is not None:
            given_bytes(getattr(request, name), name)
    if request.scheduler is not None:
        if asked:
            raise ArgumentError("the workers of a scheduler choose for themselves; leave out what is for one device")
        return None
    names = a.dtype.name, b.dtype.name, dtype.name
    added = c.dtype.name if c is not None and request.beta != 0 else None
    name, _ = host_arrays_executor(wanted_executor(request.executor), None, names, added)
    if name == "vgpu" and asked:
        raise ArgumentError("executor='vgpu' computes tile by tile and has no streams; take 'gpu' or 'host'")
    if request.devices is not None:
        check_devices(request.devices, name)
    return name if name == "gpu" or (asked and name == "host") else None


def planned_part(
    request: Request,
    device: str,
    a: MatrixSource,
    b: MatrixSource,
    c: MatrixSource | None,
    place: MatrixSink | Target | None,
    shape: tuple[int, int],
    dtype: AnyDType,
    limit: int,
) -> DevicePart:
    """Plan a product through a device."""
    assert place is not None
    precision = Precision.parse(request.precision)
    sink = place if isinstance(place, ArraySink) else None
    path = None if sink is not None else place.name
    pinned = _bytes(request.pinned_memory)
    devices = request.devices or (0,)

    def rates(sums: AnyDType, budgets: Budgets) -> Rates:
        threads = threads_for_copies()
        return measured_rates(device, a, b, sink, dtype, sums, precision, threads, budgets, devices[0], path)

    return plan_device_product(
        device, a, b, c, sink.shape if sink is not None else shape, dtype, place, rates, alpha=request.alpha,
        beta=request.beta, precision=precision, memory=_bytes(request.device_memory),
        pinned=min(PINNED_BYTES, limit) if pinned is None else pinned, host_memory=limit, strategy=request.strategy,
        devices=devices,
    )  # fmt: skip


def _bytes(amount: int | str | None) -> int | None:
    return parse_bytes(amount) if isinstance(amount, str) else amount


@contextlib.contextmanager
def open_inputs(request: Request) -> Iterator[tuple[MatrixSource, MatrixSource, MatrixSource | None]]:
    """Open the factors, converted and transposed as asked for, and the matrix to add."""
    computed = None if request.compute_dtype is None else output_dtype(request.compute_dtype)
    with contextlib.ExitStack() as stack:

        def opened(matrix: Any, name: str, dtype: str | None, compute: AnyDType | None = None) -> MatrixSource:
            return stack.enter_context(contextlib.closing(open_source(matrix, name, dtype, compute)))

        a, b = opened(request.a, "a", request.a_dtype, computed), opened(request.b, "b", request.b_dtype, computed)
        Precision.of_inputs(request.precision, (a.dtype.name, b.dtype.name))
        c = None if request.c is None else opened(request.c, "c", request.c_dtype)
        yield (
            TransposedSource(a) if request.transpose_a else a,
            TransposedSource(b) if request.transpose_b else b,
            c,
        )


@contextlib.contextmanager
def open_computer(
    request: Request, a: MatrixSource, b: MatrixSource, c: MatrixSource | None, dtype: AnyDType, limit: int
) -> Iterator[tuple[TileExecutor, int]]:
    """Open what computes the product, and return how much memory its buffers may take."""
    names = a.dtype.name, b.dtype.name, dtype.name
    added = c.dtype.name if c is not None and request.beta != 0 else None
    with chosen_executor(request.executor, Precision.parse(request.precision), names, added, limit) as chosen:
        yield chosen


def open_sink(request: Request, inputs: Mapping[str, MatrixSource]) -> MatrixSink:
    """Return the array of the caller as a sink; `inputs` are what is multiplied and added, by role.

    Raises
    ------
    OverlapError
        If it is an input, also under another name.
    ArgumentError
        If it is no array that takes a result.
    """
    out = request.out
    if request.chunks or request.shards:
        raise ArgumentError("chunks and shards are for a result that is made; out is an array, which has its own")
    package = type(out).__module__.partition(".")[0]
    if package == "h5py":
        raise ArgumentError(
            "out is an HDF5 dataset; its file is unreadable if the process is killed while it is open; write to .npy, "
            "to .zarr or to an array"
        )
    if package == "zarr":
        _refuse_inputs(request, inputs)
        return ZarrArraySink(out, "out")
    if not isinstance(out, np.ndarray):
        raise ArgumentError(
            f"out is a {type(out).__name__}; give a NumPy array, a zarr.Array, or the name of a .npy or .zarr file"
        )
    if not out.flags.writeable:
        raise ArgumentError("out is read-only; pass an array that may be written, or open the map with mode='r+'")
    if overlaps_itself(out):
        raise OverlapError(f"out has strides {out.strides}: elements may share memory; pass an array of its own")
    _refuse_inputs(request, inputs)
    return array_sink(out, "out")


def _refuse_inputs(request: Request, inputs: Mapping[str, MatrixSource]) -> None:
    """Refuse an array as the result that is an input: tiles would be written over what is still to be read."""
    out = request.out
    place = mapped_file(out) if isinstance(out, np.ndarray) else array_folder(out)
    for name, source in inputs.items():
        matrix = getattr(request, name)
        if name == "c" and request.beta == 0:
            continue
        if isinstance(out, np.ndarray) and isinstance(matrix, np.ndarray):
            # Of one file, different parts may be read and written.
            if _overlap(out, matrix):
                raise OverlapError(f"out shares memory with {name}; an input is not overwritten; pass another array")
        elif _same_place(place, source.path) or same_array(out, matrix):
            raise OverlapError(f"out is the input {source.name}; an input is not overwritten; pass another array")


def _same_place(first: str | None, second: str | None) -> bool:
    if first is None or second is None:
        return False
    return first == second or (os.path.exists(first) and os.path.exists(second) and os.path.samefile(first, second))


def _overlap(out: np.ndarray[Any, Any], matrix: np.ndarray[Any, Any]) -> bool:
    if share_memory(out, matrix):
        return True
    files = mapped_file(out), mapped_file(matrix)
    if files[0] is None or files[1] is None or not os.path.samefile(files[0], files[1]):
        return False
    first, second = file_range(out), file_range(matrix)
    return first is None or second is None or (first[0] < second[1] and second[0] < first[1])
