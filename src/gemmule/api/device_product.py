"""A product of matrices that need not fit into memory, through a GPU: planned, streamed, reported."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from gemmule.core.dtype import FLOAT64, INT8_PRODUCTS, Precision
from gemmule.core.errors import ArgumentError
from gemmule.executor.activity import Transfer
from gemmule.executor.streams import DeviceStreams
from gemmule.host import blas
from gemmule.kernels.emulation.residues import BLOCK_BYTES
from gemmule.outofcore.arrays import ArraySink
from gemmule.outofcore.budget import memory_limit
from gemmule.outofcore.device.budgets import Budgeted, Budgets, Staging, choose_within
from gemmule.outofcore.device.engine import Settings, Streamed
from gemmule.outofcore.device.host_memory import direct_memory, is_transpose
from gemmule.outofcore.device.plan import DevicePlan
from gemmule.outofcore.device.rates import Rates
from gemmule.outofcore.device.several import stream_on_devices
from gemmule.outofcore.device.watch import Progress
from gemmule.outofcore.matrix import AnyDType, Finished, MatrixSink, MatrixSource
from gemmule.outofcore.multiply import Report
from gemmule.outofcore.plan import Operand, Product
from gemmule.outofcore.result import check_product
from gemmule.outofcore.resume import Work
from gemmule.outofcore.target import Target
from gemmule.outofcore.verify import Verdict, verify

from .device_streams import device_memory, open_streams, sums_of, threads_for_copies

#: Bytes of the three bfloat16 parts of a float32, as a share of its own.
_PARTS_SHARE = 1.5


def beside_parts(memory: int, precision: Precision) -> int:
    """Return the bytes of a device's memory that are left for matrices, if kernels split them into parts."""
    if precision in INT8_PRODUCTS:
        # Two slices of A are there, of which one is converted; B and the result are in blocks, or else as a whole.
        share = INT8_PRODUCTS[precision] / FLOAT64.itemsize
        return max(int((memory - BLOCK_BYTES) / (1 + share / 2)), int(memory / (1 + share)))
    return int(memory / (1 + _PARTS_SHARE)) if precision is Precision.BF16X6 else memory


@dataclasses.dataclass(frozen=True)
class DeviceReport(Report):
    """What a product through a device took; also what was predicted.

    Attributes
    ----------
    strategy : str
        What stayed on the device.
    bytes_h2d, bytes_d2h : int
        What crossed the links.
    device_s, compute_s : float
        From the first operation on the device to the last, and how long of it products were computed.
    exposed_copy_share : float
        Share of `device_s` in which nothing was computed.
    predicted_s : float
        What the plan was expected to take.
    predicted_between_s : tuple of float
        The same at the fastest and the slowest rates that were measured of what brings and takes matrices.
    bottleneck : str
        What works longest: ``compute``, ``H2D``, ``D2H``, or what brings and takes the matrices.
    bound_share : float
        Time of the bottleneck, if it never waited, as a share of the time that was taken.
    staged : tuple of str
        Matrices that went through pinned buffers.
    """

    strategy: str
    bytes_h2d: int
    bytes_d2h: int
    device_s: float
    compute_s: float
    exposed_copy_share: float
    predicted_s: float
    predicted_between_s: tuple[float, float]
    bottleneck: str
    bound_share: float
    staged: tuple[str, ...]

    def __str__(self) -> str:
        """Say in two lines what was done, how fast, and how good that was."""
        return f"{super().__str__()}\n{self.summary}"

    @property
    def summary(self) -> str:
        """How good it was, in a line."""
        return (
            f"{self.gflops / 1e3:.3g} TFLOP/s by {self.strategy}: {self.bound_share:.1%} of what {self.bottleneck} "
            f"allows; nothing was computed in {self.exposed_copy_share:.1%} of the time on the device; "
            f"{self.bytes_h2d / 1e9:.4g} GB went there and {self.bytes_d2h / 1e9:.4g} GB came back"
        )


@dataclasses.dataclass(frozen=True)
class DevicePart:
    """How a product passes through a device.

    Attributes
    ----------
    name, device : str
        ``gpu`` or ``host``, and its name in words.
    chosen : Budgeted
        The plan, and what is predicted.
    settings : Settings
        What is taken of the host.
    precision : Precision
        What float32 factors may be rounded to.
    ordinals : tuple of int
        The GPUs, which are of one kind.
    """

    name: str
    device: str
    chosen: Budgeted
    settings: Settings
    precision: Precision
    ordinals: tuple[int, ...] = (0,)

    def run(
        self,
        plan: DevicePlan,
        a: MatrixSource,
        b: MatrixSource,
        c: MatrixSource | None,
        sink: MatrixSink,
        alpha: Any,
        beta: Any,
        finished: Finished | None,
        progress: Callable[[Progress], None] | None,
    ) -> tuple[DeviceReport, tuple[Transfer, ...]]:
        """Compute the tiles that are not there; return what it took, and what ran when."""
        there = finished_tiles(plan, finished)
        sources = {"a": a, "b": b} | ({"c": c} if c is not None and plan.product.c is not None else {})
        with contextlib.ExitStack() as stack:
            devices = [
                stack.enter_context(open_streams(self.name, self.precision, ordinal)) for ordinal in self.ordinals
            ]
            streamed = stream_on_devices(
                plan, sources, sink, devices, alpha=alpha, beta=beta, settings=self.settings, done=there,
                progress=progress,
            )  # fmt: skip
        return self._report(plan, streamed, a.shape[1]), streamed.activity

    def _report(self, plan: DevicePlan, streamed: Streamed, k: int) -> DeviceReport:
        prediction = self.chosen.prediction
        product = plan.product
        # A run that goes on from another one does a part of what was predicted.
        share = streamed.flop / prediction.flop if prediction.flop else 1.0
        return DeviceReport(
            executor=self.name,
            device=self.device if len(self.ordinals) == 1 else f"{len(self.ordinals)} x {self.device}",
            m=product.m,
            n=product.n,
            k=k,
            tiles=plan.tiles,
            tiles_computed=streamed.tiles,
            tile_m=plan.tile_m,
            tile_n=plan.tile_n,
            tile_k=plan.tile_k,
            memory_bytes=plan.device_bytes * len(self.ordinals),
            seconds=streamed.seconds,
            gflops=streamed.flop / max(streamed.seconds, 1e-9) / 1e9,
            bytes_read=streamed.bytes_read,
            bytes_written=streamed.bytes_written,
            strategy=plan.strategy,
            bytes_h2d=streamed.bytes_in,
            bytes_d2h=streamed.bytes_out,
            device_s=streamed.device_seconds,
            compute_s=streamed.compute_s,
            exposed_copy_share=streamed.exposed_share,
            predicted_s=prediction.seconds * share,
            predicted_between_s=(self.chosen.between[0] * share, self.chosen.between[1] * share),
            bottleneck=prediction.bottleneck,
            bound_share=min(prediction.best_s * share / max(streamed.seconds, 1e-9), 1.0),
            staged=streamed.staged,
        )


def finished_tiles(plan: DevicePlan, finished: Finished | None) -> set[tuple[int, int]]:
    """Return the tiles that are there already, with their mirror images where there are some."""
    if finished is None:
        return set()
    return {
        (i, j)
        for i, j in plan.order()
        if finished(plan.rows(i), plan.cols(j)) and (not plan.symmetric or finished(plan.cols(j), plan.rows(i)))
    }


def plan_device_product(
    name: str,
    a: MatrixSource,
    b: MatrixSource,
    c: MatrixSource | None,
    shape: tuple[int, int],
    out: AnyDType,
    place: MatrixSink | Target,
    rates: Callable[[AnyDType, Budgets], Rates],
    *,
    alpha: Any = 1,
    beta: Any = 0,
    precision: Precision = Precision.IEEE,
    memory: int | None = None,
    pinned: int | None = None,
    host_memory: int | None = None,
    strategy: str | None = None,
    devices: Sequence[int] = (0,),
) -> DevicePart:
    """Check a product and plan it through a device.

    Parameters
    ----------
    name : str
        ``gpu`` or ``host``.
    a, b, c : MatrixSource
        The factors, and the matrix to add.
    shape, out, place
        Shape and type of the result, and where it goes.
    rates : callable
        Gives the rates, for the type that slices are summed in, and what may be taken to measure them.
    memory, pinned, host_memory : int, optional
        Bytes of device memory, of pinned memory for staging, and of host memory in all.
    strategy : str, optional
        What stays on the device.
    devices : sequence of int
        The GPUs.

    Raises
    ------
    ShapeError, DTypeError, ArgumentError, MemoryLimitError
        As of `plan_multiply` and `choose_plan`; also if the GPUs are not of one kind.
    """
    check_product(a, b, c, shape, out, alpha, beta)
    product = Product(
        m=a.shape[0],
        n=b.shape[1],
        k=a.shape[1] if alpha != 0 else 0,
        a=Operand(a.dtype, a.order, a.stored_itemsize, a.grain),
        b=Operand(b.dtype, b.order, b.stored_itemsize, b.grain),
        out=Operand(out, grain=place.grain),
        c=Operand(c.dtype, c.order, c.stored_itemsize, c.grain) if c is not None and beta != 0 else None,
    )
    sums = sums_of(name, a.dtype, b.dtype, out)
    symmetric = product.c is None and product.k > 0 and is_transpose(a, b)
    described = _one_kind(name, precision, devices)
    taken = device_memory(name, devices) if memory is None else memory
    budgets = Budgets(
        beside_parts(taken, precision) if name == "gpu" else taken,
        Settings().pinned if pinned is None else pinned,
        memory_limit(host_memory),
    )
    with open_streams(name, precision, devices[0]) as device:
        staging = _staging(device, product, a, b, c, place, on_host=name != "gpu")
    found = choose_within(
        len(devices), product, sums, budgets, staging, rates(sums, budgets), symmetric=symmetric, strategy=strategy
    )
    settings = Settings(found.pinned, found.threads, found.result)
    return DevicePart(name, described, found, settings, precision, tuple(devices))


def _staging(
    device: DeviceStreams,
    product: Product,
    a: MatrixSource,
    b: MatrixSource,
    c: MatrixSource | None,
    place: MatrixSink | Target,
    *,
    on_host: bool,
) -> Staging:
    """Return which matrices copies cannot run from and to, and what staging them takes."""
    sources = ({"a": a, "b": b} if product.k else {}) | ({"c": c} if c is not None and product.c is not None else {})
    staged = {name: one for name, one in sources.items() if direct_memory(one, one.order, device) is None}
    reading = [
        max((one.scratch_bytes for name, one in staged.items() if name in group), default=0) for group in ("ab", "c")
    ]
    out = not isinstance(place, ArraySink) or direct_memory(place, "C", device) is None
    return Staging(
        (*staged, *(["out"] if out else [])), threads_for_copies(), sum(reading) + place.scratch_bytes * out, on_host
    )


def _one_kind(name: str, precision: Precision, devices: Sequence[int]) -> str:
    """Return what the devices are called, all alike."""
    names = []
    for ordinal in devices:
        with open_streams(name, precision, ordinal) as device:
            names.append(device.describe())
    for ordinal, other in zip(devices, names, strict=True):
        if other != names[0]:
            raise ArgumentError(
                f"device {devices[0]} is {names[0]} and device {ordinal} is {other}; the bits of a result would differ "
                "from tile to tile; name GPUs of one kind"
            )
    return names[0]


@dataclasses.dataclass(frozen=True)
class DeviceProduct:
    """A product through a device whose matrices are open; what `StreamedProduct` is to one on the host.

    Attributes
    ----------
    request : Request
        What was asked for.
    a, b, c : MatrixSource
        The factors, and the matrix to add.
    sink : MatrixSink
        Where tiles go.
    part : DevicePart
        How.
    plan : DevicePlan
        The plan: that of a run before, where there was one.
    finished : callable or None
        Which tiles were there already.
    limit : int
        Bytes of host memory that the caller allows.
    work : Work or None
        The result as it was opened, where it is a file.
    activity : list of Transfer
        What ran when, once it ran.
    """

    request: Any
    a: MatrixSource
    b: MatrixSource
    c: MatrixSource | None
    sink: MatrixSink
    part: DevicePart
    plan: DevicePlan
    finished: Finished | None
    limit: int
    work: Work[DevicePlan] | None = None
    activity: list[Transfer] = dataclasses.field(default_factory=list)

    @property
    def tiles_reused(self) -> int:
        """Tiles that were there already."""
        return len(finished_tiles(self.plan, self.finished))

    def run(self, progress: Callable[[Progress], None] | None = None) -> DeviceReport:
        """Compute the tiles that are not there."""
        with blas.threads_set(None if self.work is None else self.work.blas_threads):
            report, activity = self.part.run(
                self.plan, self.a, self.b, self.c, self.sink, self.request.alpha, self.request.beta, self.finished,
                progress,
            )  # fmt: skip
        self.activity.extend(activity)
        return report

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
                c=self.c, precision=self.part.precision, seed=seed,
            )  # fmt: skip
