"""The device engine: a product through a GPU, or through host memory as one; planned, streamed, reported."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import FEWEST_INT8_PRODUCTS, FLOAT64, GUARDED_PRODUCTS, INT8_PRODUCTS, Precision
from gemmule.core.errors import ArgumentError
from gemmule.executor.activity import Transfer
from gemmule.executor.streams import DeviceStreams
from gemmule.host import blas
from gemmule.kernels.emulation.residues import BLOCK_BYTES

from ..device.engine.host_memory import direct_memory
from ..device.engine.multi_gpu import stream_on_devices
from ..device.engine.progress import Progress
from ..device.engine.streaming import Settings, Streamed, Tracking
from ..device.planner.budgets import Budgeted, Budgets, Staging, choose_within
from ..device.planner.plan import DevicePlan
from ..device.planner.probe_cache import ProbeCache, probes_file
from ..journal.resumption import finished_tiles
from ..stores.arrays import ArraySink
from ..stores.matrix import Finished, MatrixSink
from ..stores.target import Target
from ..tiles.memory_budget import memory_limit
from ..tiles.plan import Product
from ..tiles.problem import StreamProblem
from ..tiles.report import Report
from .devices import accumulator_dtype, device_memory, measured_rates, open_streams, threads_for_copies

#: Seconds from which on a product is worth the time of measuring rates that are stated for shorter ones: that takes at
#: most a tenth of them.
_WORTH_S = 10.0
#: Bytes of the three bfloat16 parts of a float32, as a share of its own.
_PARTS_SHARE = 1.5


def memory_beside_workspaces(memory: int, precision: Precision) -> int:
    """Return the bytes of a device's memory that are left for matrices, if kernels split them into parts."""
    if precision in FEWEST_INT8_PRODUCTS:
        # Two slices of A are there, of which one is converted; B and the result are in blocks, or else as a whole.
        share = INT8_PRODUCTS.get(precision, GUARDED_PRODUCTS[-1]) / FLOAT64.itemsize
        return max(int((memory - BLOCK_BYTES) / (1 + share / 2)), int(memory / (1 + share)))
    return int(memory / (1 + _PARTS_SHARE)) if precision is Precision.BF16X6 else memory


@dataclass(frozen=True)
class DeviceReport(Report):
    """Time, rate and traffic of a product through a device, and the prediction."""

    strategy: str  #: Matrix that stayed on the device.
    #: bytes_h2d, bytes_d2h: Bytes over the links.
    bytes_h2d: int
    bytes_d2h: int
    #: device_s, compute_s: From the first operation on the device to the last, and how long of it products were
    #: computed.
    device_s: float
    compute_s: float
    exposed_copy_share: float  #: Share of `device_s` in which nothing was computed.
    predicted_s: float  #: Predicted time of the plan.
    #: The same at the fastest and the slowest measured bandwidths of sources and sinks.
    predicted_between_s: tuple[float, float]
    bottleneck: str  #: The longest part: ``compute``, ``H2D``, ``D2H``, or reading and writing the matrices.
    rates_measured: bool  #: Whether all rates of the prediction were measured; some are usual ones otherwise.
    bound_share: float  #: Time of the bottleneck, if it never waited, as a share of the time that was taken.
    staged: tuple[str, ...]  #: Matrices that went through pinned buffers.

    def __str__(self) -> str:
        """Say in two lines what was done, how fast, and how good that was."""
        return f"{super().__str__()}\n{self.summary}"

    @property
    def summary(self) -> str:
        """The plan's efficiency, in a line."""
        bound = f": {self.bound_share:.1%} of what {self.bottleneck} allows" if self.rates_measured else ""
        return (
            f"{self.gflops / 1e3:.3g} TFLOP/s by {self.strategy}{bound}; nothing was computed in "
            f"{self.exposed_copy_share:.1%} of the time on the device; "
            f"{self.bytes_h2d / 1e9:.4g} GB went there and {self.bytes_d2h / 1e9:.4g} GB came back"
        )


@dataclass(frozen=True)
class Limits:
    """Bytes of device memory, of pinned memory for staging, and of host memory in all; None for the default."""

    device: int | None = None
    pinned: int | None = None
    host: int | None = None


@dataclass(frozen=True)
class DeviceEngine:
    """Computes a product through a device."""

    #: name, device: ``gpu`` or ``cpu``, and its name in words.
    name: str
    device: str
    chosen: Budgeted  #: The plan, and what is predicted.
    settings: Settings  #: Threads and pinned memory of the host.
    precision: Precision  #: Precision that operands may be rounded to.
    ordinals: tuple[int, ...] = (0,)  #: The GPUs, which are of one kind.
    activity: list[Transfer] = dataclasses.field(default_factory=list)  #: Times of operations, after the run.

    @property
    def plan(self) -> DevicePlan:
        """The plan."""
        return self.chosen.plan

    @property
    def memory(self) -> int:
        """Bytes of device memory that a plan may take."""
        return self.chosen.memory

    def identity(self) -> dict[str, Any]:
        """Return the facts that determine the bits of a tile, for the journal."""
        threads = {"blas_threads": blas.thread_count()} if self.name != "gpu" else {}
        return {"executor": self.device, "device": self.name, **threads}

    def run(
        self,
        problem: StreamProblem,
        sink: MatrixSink,
        plan: DevicePlan,
        finished: Finished | None = None,
        progress: Callable[..., None] | None = None,
    ) -> DeviceReport:
        """Compute the tiles that are not there."""
        there = finished_tiles(plan, finished)
        sources = {name: one for name, one in problem.inputs.items() if name != "c" or plan.product.c is not None}
        with contextlib.ExitStack() as stack:
            devices = [
                stack.enter_context(open_streams(self.name, self.precision, ordinal)) for ordinal in self.ordinals
            ]
            streamed = stream_on_devices(
                plan, sources, sink, devices, alpha=problem.alpha, beta=problem.beta, settings=self.settings,
                tracking=Tracking(there, None if progress is None else _multiplications(progress)),
            )  # fmt: skip
        self.activity.extend(streamed.activity)
        return self._report(plan, streamed, problem.a.shape[1])

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
            verified=None,
            strategy=plan.strategy,
            bytes_h2d=streamed.bytes_in,
            bytes_d2h=streamed.bytes_out,
            device_s=streamed.device_seconds,
            compute_s=streamed.compute_s,
            exposed_copy_share=streamed.exposed_share,
            predicted_s=prediction.seconds * share,
            predicted_between_s=(self.chosen.between[0] * share, self.chosen.between[1] * share),
            bottleneck=prediction.bottleneck,
            rates_measured=self.chosen.rates.measured,
            bound_share=min(prediction.best_s * share / max(streamed.seconds, 1e-9), 1.0),
            staged=streamed.staged,
        )


def plan_device_engine(
    name: str,
    problem: StreamProblem,
    place: MatrixSink | Target,
    limits: Limits,
    *,
    precision: Precision = Precision.IEEE,
    strategy: str | None = None,
    devices: Sequence[int] = (0,),
    probes: ProbeCache | None = None,
) -> DeviceEngine:
    """Check a product, find how fast its device is (a GPU, or the ``cpu`` as one), and plan it.

    Raises
    ------
    ShapeError, DTypeError, ArgumentError, MemoryLimitError
        As of `plan_tiles` and `choose_plan`; also if the GPUs are not of one kind.
    """
    product = problem.product(place.block_shape)
    if problem.a.dtype.kind == "c":
        # The real forms of complex operands are not in the budgets: tiles are computed natively.
        precision = Precision.IEEE
    sums = accumulator_dtype(name, problem.a.dtype, problem.b.dtype, problem.dtype)
    described = _one_kind(name, precision, devices)
    taken = device_memory(name, devices) if limits.device is None else limits.device
    budgets = Budgets(
        memory_beside_workspaces(taken, precision) if name == "gpu" else taken,
        Settings().pinned if limits.pinned is None else limits.pinned,
        memory_limit(limits.host),
    )
    with open_streams(name, precision, devices[0]) as device:
        staging = _staging(device, product, problem, place, on_host=name != "gpu")
    probes = probes or ProbeCache(probes_file(), measures=False)

    def chosen() -> Budgeted:
        rates = measured_rates(name, problem, place, sums, precision, budgets, devices[0], probes)
        return choose_within(
            len(devices), product, sums, budgets, staging, rates, symmetric=problem.is_symmetric(product),
            strategy=strategy,
        )  # fmt: skip

    found = chosen()
    if probes.stated and found.prediction.seconds > _WORTH_S:
        probes.measures, probes.stated = True, False
        found = chosen()
    settings = Settings(found.pinned, found.threads, found.result)
    return DeviceEngine(name, described, found, settings, precision, tuple(devices))


def _multiplications(progress: Callable[..., None]) -> Callable[[Progress], None]:
    """Return a function of a device's progress that calls `progress` with multiply-adds done and in all, and a text."""
    return lambda now: progress(now.flop_done // 2, now.flop // 2, str(now))


def _staging(
    device: DeviceStreams, product: Product, problem: StreamProblem, place: MatrixSink | Target, *, on_host: bool
) -> Staging:
    """Return which matrices copies cannot run from and to, and what staging them takes."""
    needed = {"a": product.k > 0, "b": product.k > 0, "c": product.c is not None}
    staged = {
        name: one
        for name, one in problem.inputs.items()
        if needed[name] and direct_memory(one, one.order, device) is None
    }
    reading = [
        max((one.scratch_bytes for name, one in staged.items() if name in group), default=0) for group in ("ab", "c")
    ]
    out = not isinstance(place, ArraySink) or direct_memory(place, "C", device) is None
    return Staging(
        (*staged, *(["out"] if out else [])), threads_for_copies(), sum(reading) + place.scratch_bytes * out, on_host
    )


def _one_kind(name: str, precision: Precision, devices: Sequence[int]) -> str:
    """Return the name of the devices, all alike."""
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
