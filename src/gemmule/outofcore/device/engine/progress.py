"""Follows a product while it runs."""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from gemmule.core.dataclass import dataclass

from ....executor.streams import DeviceStreams
from ..planner.operation import LANES, Load, Multiply, Op, Store
from .event_table import EventTable


@dataclass(frozen=True)
class Progress:
    """Progress of a product."""

    #: tiles_done, tiles: Tiles that are computed, and all.
    tiles_done: int
    tiles: int
    #: flop_done, flop: Operations.
    flop_done: int
    flop: int
    #: bytes_in, bytes_out: What has crossed the links, at least.
    bytes_in: int
    bytes_out: int
    seconds: float  #: Time since the start.

    def __str__(self) -> str:
        """Say which tile is computed, and how fast the links are."""
        links = " ".join(
            f"{arrow} {size / max(self.seconds, 1e-9) / 1e9:.1f}"
            for arrow, size in (("in", self.bytes_in), ("out", self.bytes_out))
        )
        return f"tile {self.tiles_done}/{self.tiles}, {links} GB/s"


class Watch:
    """Waits for products on the device in order, and reports progress; `begin` is of `time.perf_counter`."""

    def __init__(
        self,
        operations: Iterable[Op],
        device: DeviceStreams,
        event_table: EventTable,
        progress: Callable[[Progress], None] | None,
        begin: float,
    ) -> None:
        self._device, self._event_table, self._progress, self._begin = device, event_table, progress, begin
        self._waiting: queue.SimpleQueue[tuple[Op, Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        if progress is None:
            return
        tiles, flop = set(), 0
        for op in operations:
            if isinstance(op, Multiply):
                tiles.add(op.tile)
                flop += op.flop
        self._now = Progress(0, len(tiles), 0, flop, 0, 0, 0.0)
        self._thread = threading.Thread(target=self._work, name="gemmule-watch", daemon=True)
        self._thread.start()

    def put(self, op: Op, end: Any) -> None:
        """Add an operation that was queued, and the event that it ends with."""
        if self._thread is not None:
            self._waiting.put((op, end))

    def _work(self) -> None:
        assert self._progress is not None
        while (item := self._waiting.get()) is not None:
            op, end = item
            if self._event_table.failed:
                continue
            try:
                self._device.synchronize(end)
                self._now = self._after(op)
                if op.stream in LANES:
                    self._progress(self._now)
            except BaseException as error:
                self._event_table.fail(error)

    def _after(self, op: Op) -> Progress:
        now = dataclasses.replace(self._now, seconds=time.perf_counter() - self._begin)
        if isinstance(op, Load):
            return dataclasses.replace(now, bytes_in=now.bytes_in + op.nbytes)
        if isinstance(op, Store):
            return dataclasses.replace(now, bytes_out=now.bytes_out + op.nbytes, tiles_done=now.tiles_done + op.final)
        return dataclasses.replace(now, flop_done=now.flop_done + op.flop) if isinstance(op, Multiply) else now

    def finish(self) -> None:
        """Wait until all progress was reported."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
