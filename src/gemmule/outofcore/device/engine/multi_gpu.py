"""A product through several devices: each computes its share of the tiles of one plan."""

from __future__ import annotations

import dataclasses
import statistics
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from ....executor.streams import DeviceStreams
from ...stores.matrix import MatrixSink, MatrixSource
from ..planner.plan import DevicePlan
from ..planner.shares import Tile, shares
from .progress import Progress
from .streaming import Settings, Streamed, Tracking, stream_product


class OtherDeviceError(Exception):
    """Another device has failed, or somebody interrupted: this one need not go on."""


def stream_on_devices(
    plan: DevicePlan,
    sources: dict[str, MatrixSource],
    sink: MatrixSink,
    devices: Sequence[DeviceStreams],
    *,
    alpha: float | int = 1,
    beta: float | int = 0,
    settings: Settings | None = None,
    tracking: Tracking | None = None,
) -> Streamed:
    """Write ``alpha * a @ b + beta * c`` into `sink` from several devices, as `stream_product` does from one.

    The result has the same bits whatever the number of devices, as each tile is summed in the plan's order. Pinned
    memory and threads are shared; where a device fails, the others stop, and what failed first is raised.

    Returns
    -------
    Streamed
        Report of all devices; times on the device are means, streams carry the device's number.
    """
    if len(devices) == 1:
        return stream_product(
            plan, sources, sink, devices[0], alpha=alpha, beta=beta, settings=settings, tracking=tracking,
        )  # fmt: skip
    all_settings = settings or Settings()
    each, tracking = all_settings.share(len(devices)), tracking or Tracking()
    every = set(plan.order())
    parts = shares(plan, len(devices), tracking.done)
    busy = [number for number, part in enumerate(parts) if part] or [0]
    joint = _JointProgress(plan, parts, tracking.progress)

    def run(number: int) -> Streamed:
        try:
            return stream_product(
                plan, sources, sink, devices[number], alpha=alpha, beta=beta, settings=each,
                tracking=Tracking(every - parts[number], joint.by(number), tracking.stored),
            )  # fmt: skip
        except BaseException as error:
            joint.failed(error)
            raise

    with ThreadPoolExecutor(len(busy), "gemmule-device") as pool:
        futures = [pool.submit(run, number) for number in busy]
        try:
            wait(futures)
        except BaseException:
            # They are waited for when the block is left: they write to what the caller gives back.
            joint.stop.set()
            raise
    if joint.error is not None:
        raise joint.error
    return _together({number: future.result() for number, future in zip(busy, futures, strict=True)})


class _JointProgress:
    """Progress of all devices together, which stops each of them at its next report where one failed."""

    def __init__(
        self, plan: DevicePlan, parts: Sequence[frozenset[Tile]], progress: Callable[[Progress], None] | None
    ) -> None:
        self.stop = threading.Event()
        self._progress = progress
        self._lock = threading.Lock()
        self._flop = [2 * plan.product.k * sum(plan.area(tile) for tile in part) for part in parts]
        self._tiles = [len(part) for part in parts]
        self._now: dict[int, Progress] = {}
        #: The first error.
        self.error: BaseException | None = None

    def failed(self, error: BaseException) -> None:
        """Let every device stop."""
        with self._lock:
            self.error = self.error or error
        self.stop.set()

    def by(self, number: int) -> Callable[[Progress], None]:
        """Return the progress function of a device."""

        def report(now: Progress) -> None:
            if self.stop.is_set():
                raise OtherDeviceError
            with self._lock:
                self._now[number] = now
                if self._progress is not None:
                    self._progress(self._sum(now.seconds))

        return report

    def _sum(self, seconds: float) -> Progress:
        there = self._now.values()
        return Progress(
            tiles_done=sum(one.tiles_done for one in there),
            tiles=sum(self._tiles),
            flop_done=sum(one.flop_done for one in there),
            flop=sum(self._now[number].flop if number in self._now else f for number, f in enumerate(self._flop)),
            bytes_in=sum(one.bytes_in for one in there),
            bytes_out=sum(one.bytes_out for one in there),
            seconds=seconds,
        )


def _together(ran: dict[int, Streamed]) -> Streamed:
    each = list(ran.values())
    return Streamed(
        seconds=max(one.seconds for one in each),
        device_seconds=statistics.fmean(one.device_seconds for one in each),
        compute_s=statistics.fmean(one.compute_s for one in each),
        flop=sum(one.flop for one in each),
        bytes_in=sum(one.bytes_in for one in each),
        bytes_out=sum(one.bytes_out for one in each),
        bytes_read=sum(one.bytes_read for one in each),
        bytes_written=sum(one.bytes_written for one in each),
        tiles=sum(one.tiles for one in each),
        staged=tuple(dict.fromkeys(name for one in each for name in one.staged)),
        activity=tuple(
            dataclasses.replace(transfer, stream=f"{number}: {transfer.stream}")
            for number, one in ran.items()
            for transfer in one.activity
        ),
    )
