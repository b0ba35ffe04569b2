"""A session: a product of matrices that need not fit into memory, from opening its inputs to committing its result."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from gemmule.api.planning.choice import host_arrays_executor, wanted_executor
from gemmule.core.dtype import Precision
from gemmule.core.errors import ArgumentError, shown
from gemmule.executor.activity import Transfer
from gemmule.host import blas

from ..device.planner.probe_cache import ProbeCache, probes_file
from ..journal.resumption import Work, finished_tiles, open_work
from ..stores.matrix import Finished, MatrixSink
from ..stores.opening import result_target
from ..stores.target import Target
from ..tiles.memory_budget import given_bytes, memory_limit
from ..tiles.problem import StreamProblem
from ..tiles.report import Report
from ..tiles.result_rules import output_dtype, result_dtype
from ..verify.freivalds import Verdict, memory_for_check, verify
from .device_engine import DeviceEngine, Limits, plan_device_engine
from .devices import check_devices
from .host_engine import HostEngine, chosen_executor, plan_host_engine
from .request import Request, open_inputs, open_sink

#: Pinned memory for staging by default.
PINNED_BYTES = 256 << 20


class StreamSession:
    """A product of matrices that need not fit into memory, tile by tile, on the host or through a device.

    Entering the block opens the inputs, chooses the engine and plans. `open_result` resumes what a run before has left;
    `run` computes; `conclude` verifies, and commits or rejects. Leaving the block without a commit keeps the finished
    tiles of a file, and nothing else.

    Parameters
    ----------
    request : Request
        The product as the caller wants it.
    dry_run : bool
        Whether to plan only; then an existing result may stay. Of a large product through a GPU the disk is timed if
        that was not done for 30 days: 384 MiB are written to a file without a name.

    Attributes
    ----------
    problem : StreamProblem
        The open matrices.
    engine : HostEngine or DeviceEngine
        Engine that computes.
    plan : StreamPlan or DevicePlan
        How: the plan of a run before, where there was one.
    sink : MatrixSink or None
        Destination of tiles; None before `open_result` where the result is a file.
    finished : callable or None
        Tiles of an interrupted run.
    limit : int
        Bytes of host memory that the caller allows.
    work : Work or None
        The result as it was opened, where it is a file.

    Raises
    ------
    GemmuleError
        If the product cannot be computed with these options; the message gives the reason.
    OSError
        If a file cannot be read or written.
    """

    problem: StreamProblem
    engine: HostEngine | DeviceEngine
    plan: Any

    def __init__(self, request: Request, *, dry_run: bool = False) -> None:
        self.request = request
        self.limit = 0
        self.sink: MatrixSink | None = None
        self.finished: Finished | None = None
        self.work: Work[Any] | None = None
        self._dry_run = dry_run
        self._target: Target | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._open(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def _open(self, stack: contextlib.ExitStack) -> None:
        request = self.request
        self.limit = memory_limit(request.memory)
        wanted = None if request.out_dtype is None else output_dtype(request.out_dtype)
        a, b, c = stack.enter_context(open_inputs(request))
        inputs = {"a": a, "b": b} | ({} if c is None else {"c": c})
        shape = a.shape[0], b.shape[1]
        place: MatrixSink | Target
        if request.names_file:
            dtype = result_dtype(a.dtype, b.dtype, wanted)
            place = self._target = result_target(request.out, shape, dtype, request.chunks, request.shards)
            if self._dry_run:
                place.check(True, list(inputs.values()))
        else:
            place = self.sink = open_sink(request, inputs)
            dtype, shape = result_dtype(a.dtype, b.dtype, wanted or place.dtype), place.shape
            if dtype != place.dtype:
                raise ArgumentError(
                    f"out_dtype={dtype} differs from the dtype of out, {place.dtype}; pass one of the two"
                )
        self.problem = StreamProblem(a, b, c, shape, dtype, request.alpha, request.beta)
        precision = Precision.parse(request.precision)
        device = device_of(request, self.problem)
        # Not after hours of work.
        with memory_for_check(a.shape, b.shape, self.limit) if request.verify else contextlib.nullcontext():
            self.engine = self._planned(device, precision, place, stack)
        self.plan = self.engine.plan

    def _planned(
        self, device: str | None, precision: Precision, place: MatrixSink | Target, stack: contextlib.ExitStack
    ) -> HostEngine | DeviceEngine:
        """Return the engine of a device, or of the host where it is None, with its plan."""
        request, problem = self.request, self.problem
        if device is None:
            executor = chosen_executor(request.executor, precision, *problem.dtype_names, self.limit)
            return plan_host_engine(problem, *stack.enter_context(executor), place)
        limits = Limits(
            _bytes(request.device_memory, "device_memory"), _bytes(request.pinned_memory, "pinned_memory"), self.limit
        )
        if limits.pinned is None:
            limits = dataclasses.replace(limits, pinned=min(PINNED_BYTES, self.limit))
        return plan_device_engine(
            device, problem, place, limits, precision=precision, strategy=request.strategy,
            devices=request.devices or (0,),
            probes=ProbeCache(probes_file(), renew=request.probe, measures=request.probe or self._dry_run),
        )  # fmt: skip

    @property
    def tiles_reused(self) -> int:
        """Tiles that were there already."""
        return len(finished_tiles(self.plan, self.finished))

    @property
    def partial_path(self) -> str | None:
        """After leaving the block without a commit: where the finished tiles are, None if there are none."""
        return getattr(self.sink, "partial_path", None)

    @property
    def activity(self) -> list[Transfer]:
        """The activity of the device's streams, once it ran."""
        return self.engine.activity

    def open_result(self) -> None:
        """Open the result, with the tiles that a run before has left; an array of the caller is open already."""
        if self._target is None:
            return
        request = self.request
        identity = self.engine.identity()
        if request.scheduler is not None and identity["blas_threads"] is not None:
            from .distributed import worker_blas_threads

            identity["blas_threads"] = worker_blas_threads(request.scheduler)
        decided = {
            "alpha": repr(request.alpha),
            "beta": repr(request.beta),
            "precision": Precision.parse(request.precision).value,
            **identity,
        }
        self.work = open_work(
            self._target, self.problem.dtype, self.engine.plan, decided, self.problem.inputs,
            memory=self.engine.memory, force=request.force, resume=request.resume,
        )  # fmt: skip
        self.sink = self._stack.enter_context(self.work.sink)
        self.plan, self.finished = self.work.plan, self.work.finished

    def run(self, progress: Callable[..., None] | None = None) -> Report:
        """Compute the tiles that are not there, here or on the workers of the scheduler.

        `progress` is called with the multiply-adds done, the total and, by a device, a text.
        """
        assert self.sink is not None
        if self.request.scheduler is not None:
            if self.work is None:
                raise ArgumentError("out is an array, which workers do not see; give the name of a .npy or .zarr file")
            from .distributed import run_distributed

            assert isinstance(self.engine, HostEngine)
            return run_distributed(self.request, self.request.scheduler, self.work, self.engine, progress)
        with blas.threads_set(None if self.work is None else self.work.blas_threads):
            return self.engine.run(self.problem, self.sink, self.plan, self.finished, progress)

    def conclude(self, seed: int | None = None) -> Verdict | None:
        """Verify the result where that was requested; let it appear, or delete it if an element is proved wrong."""
        verdict = self.verify(seed) if self.request.verify else None
        if verdict is not None and verdict.proved_wrong:
            self.reject()
        else:
            self.commit()
        return verdict

    def commit(self) -> None:
        """Let the result appear, unless an input was changed meanwhile."""
        assert self.sink is not None
        if self.work is not None:
            self.work.check_inputs()
        self.sink.commit()

    def reject(self) -> None:
        """Delete a wrong result, unless an input was changed meanwhile, which explains it."""
        assert self.sink is not None
        if self.work is not None:
            self.work.check_inputs()
        self.sink.abort()

    def verify(self, seed: int | None = None) -> Verdict:
        """Check what was written, before it appears."""
        assert self.sink is not None
        with contextlib.closing(self.sink.written()) as written:
            precision = Precision.parse(self.request.precision)
            return verify(self.problem, written, memory=self.limit, precision=precision, seed=seed)


def device_of(request: Request, problem: StreamProblem) -> str | None:
    """Return the device that a product passes through: a GPU or, on request, the host as one."""
    given = {name: getattr(request, name) for name in ("device_memory", "pinned_memory", "strategy", "devices")}
    options = [f"{name}={shown(value)}" for name, value in given.items() if value is not None]
    options += ["a timeline"] if request.traced else []
    for name in ("device_memory", "pinned_memory"):
        if given[name] is not None:
            given_bytes(given[name], name)
    if request.scheduler is not None:
        if options or request.probe:
            raise ArgumentError("the workers of a scheduler choose for themselves; leave out what is for one device")
        return None
    executor = wanted_executor(request.executor)
    name, reason = host_arrays_executor(executor, *problem.dtype_names, None)
    if name == "vgpu" and options:
        raise ArgumentError("executor='vgpu' computes tile by tile and has no streams; give 'gpu' or 'cpu'")
    if request.devices is not None:
        check_devices(request.devices, name)
    if options and name == "cpu" and executor is None:
        raise ArgumentError(
            f"{options[0]} is for a product through a GPU, and this one runs on the host: {reason}; leave it out, or "
            "give executor='cpu' to stream through host memory as a GPU"
        )
    through_device = name if options or name == "gpu" else None
    if request.probe and through_device is None:
        raise ArgumentError(
            f"probe=True measures rates of a GPU's plan, and this product runs on the host: {reason}; leave it out"
        )
    return through_device


def _bytes(amount: int | str | None, name: str) -> int | None:
    return None if amount is None else given_bytes(amount, name)
