"""Where the time of a product goes whose matrices lie in pageable memory, through one GPU; writes records.

``python benchmarks/records/stream_pageable.py RESULTS_FOLDER float32:40000:8GiB --ways 12:256MiB:8MiB 4:256MiB:8MiB``.
A way is the number of threads that copy on either side, the pinned memory, and the bytes of a buffer of it. The records
tell the time before the first copy is queued (memory is allocated and pinned then), between products, and behind the
last one; what the copies of threads add up to; and how busy the host was with other things.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from pinned_pool import copy_rate, fill, pageable_pool, poison
from stream_bars import incore, rates_of
from streamed_cell import Cell, best_s, record_of, worst_error

from gemmule.dispatch.select import choose
from gemmule.lab.experiment import experiment
from gemmule.lab.records import RecordFile
from gemmule.outofcore.device.engine import streaming as engine
from gemmule.outofcore.device.planner import rings
from gemmule.outofcore.stores.arrays import ArraySink, ArraySource
from gemmule.outofcore.tiles.memory_budget import parse_bytes
from gemmule.runtime.device import get_device
from gemmule.runtime.streams import GpuStreams


class Times:
    """When something ran, and what it moved."""

    def __init__(self) -> None:
        self.spans: list[tuple[float, float, int]] = []

    def ran(self, nbytes, work, *arguments):
        """Do something and note when, and the bytes that it is for."""
        start = time.perf_counter()
        done = work(*arguments)
        self.spans.append((start, time.perf_counter(), nbytes))
        return done

    def summary(self) -> dict[str, float]:
        """Return the time of all together, and for how long any of them was at it."""
        if not self.spans:
            return {}
        any_s, end = 0.0, 0.0
        for start, stop, _ in sorted(self.spans):
            any_s += max(stop - max(start, end), 0.0)
            end = max(end, stop)
        together = sum(stop - start for start, stop, _ in self.spans)
        return {
            "any_s": any_s, "together_s": together, "bytes": sum(one[2] for one in self.spans),
            "calls": len(self.spans),
        }  # fmt: skip


class TimedStreams(GpuStreams):
    """A GPU that notes when memory is made, and when the first copy is queued."""

    def __init__(self, chooser) -> None:
        super().__init__(chooser)
        self.times = {name: Times() for name in ("allocate", "pin", "copy_in", "copy_out", "record", "synchronize")}
        self.first, self.copies = None, []

    def allocate(self, nbytes):
        return self.times["allocate"].ran(nbytes, super().allocate, nbytes)

    def pinned(self, nbytes):
        return self.times["pin"].ran(nbytes, super().pinned, nbytes)

    def copy_in(self, stream, target, source):
        self.first = self.first or time.perf_counter()
        self._between("copy_in", stream, source.nbytes, super().copy_in, target, source)

    def copy_out(self, stream, target, source):
        self._between("copy_out", stream, target.nbytes, super().copy_out, target, source)

    def _between(self, name, stream, nbytes, copy, *arguments):
        """Queue a copy between two events."""
        start = super().record(stream)
        self.times[name].ran(nbytes, copy, stream, *arguments)
        self.copies.append((name, start, super().record(stream)))

    def on_the_links(self):
        """Return the seconds in which each link copied; everything is done."""
        found = {"copy_in": 0.0, "copy_out": 0.0}
        for name, start, end in self.copies:
            found[name] += self.seconds(start, end)
        return found

    def record(self, stream):
        return self.times["record"].ran(0, super().record, stream)

    def synchronize(self, event):
        self.times["synchronize"].ran(0, super().synchronize, event)


class TimedSource(ArraySource):
    """An array that notes when it is read."""

    def read(self, rows, cols, out):
        return self.times.ran(out.nbytes, super().read, rows, cols, out)


class TimedSink(ArraySink):
    """An array that notes when it is written."""

    def write(self, row, col, tile):
        return self.times.ran(tile.nbytes, super().write, row, col, tile)


def idle(activity) -> dict[str, float]:
    """Return for how long nothing was computed: before the first product, between them, and behind the last one."""
    ran = sorted((one.start_ns, one.end_ns) for one in activity if one.stream == "compute")
    gaps = [max(after - before, 0) for (_, before), (after, _) in itertools.pairwise(ran)]
    end = max(one.end_ns for one in activity)
    return {
        "before_s": ran[0][0] / 1e9, "between_s": sum(gaps) / 1e9, "longest_s": max(gaps, default=0) / 1e9,
        "behind_s": (end - ran[-1][1]) / 1e9,
    }  # fmt: skip


def run_once(plan, matrices, settings):
    """Run a plan once and return what it took, and where the time went."""
    a, b, out = matrices
    sources = {"a": TimedSource(a), "b": TimedSource(b)}
    reads, sink = Times(), TimedSink(out)
    sink.times = Times()
    for source in sources.values():
        source.times = reads
    begin = time.perf_counter()
    with TimedStreams(choose) as device:
        opened = time.perf_counter()
        run = engine.stream_product(plan, sources, sink, device, settings=settings)
        ended = time.perf_counter()
        parts = {name: one.summary() for name, one in device.times.items()}
        first, parts["links_s"] = device.first, device.on_the_links()
    parts |= {"read": reads.summary(), "write": sink.times.summary(), "idle": idle(run.activity)}
    parts |= {"open_s": opened - begin, "first_s": first - opened, "close_s": time.perf_counter() - ended}
    return run, parts


def measure(cell: Cell, pool, options, file: RecordFile) -> None:
    """Measure one product in all ways and write the records."""
    a, b, out = cell.matrices(pool)
    fill(a, 0)
    fill(b, 1)
    rate, _ = incore(pool, cell, 0.5)
    staging = copy_rate(12)
    rates = dataclasses.replace(rates_of(cell, rate), source=staging, sink=staging, launch=2e-4)
    print(cell, round(rate / 1e12, 2), "TFLOP/s in core;", round(staging / 1e9, 1), "GB/s copied", flush=True)
    rows = np.random.default_rng().integers(0, cell.shape[0], 4)
    plan = cell.plan(1, rates).plan
    run_once(plan, (a, b, out), engine.Settings())
    for repeat in range(options.repeats):
        for way in options.ways:
            if options.late():
                return
            threads, pinned, buffer = way.split(":")
            rings.LARGEST = parse_bytes(buffer)
            poison(out)
            load, copied = os.getloadavg()[0], copy_rate(int(threads))
            run, parts = run_once(plan, (a, b, out), engine.Settings(parse_bytes(pinned), int(threads)))
            error = worst_error(a, b, out, rows)
            if not error <= cell.shape[2]:
                sys.exit(f"wrong: {error} u (|A||B|)")
            given = argparse.Namespace(
                dtype=cell.dtype, device_memory=cell.device_memory, pinned=pinned, threads=int(threads), devices="0"
            )
            record = record_of(given, "pageable", cell.plan(1, rates), [run], rates, rate, error)
            record |= {"buffer": buffer, "parts": parts, "load": load, "copied": copied, "repeat": repeat}
            record["bound_share"] = best_s(given, cell.plan(1, rates), rates) / record["wall_s"]
            file.write(record)
            print(cell.dtype, way, round(run.seconds, 3), round(run.exposed_share, 4), f"load {load:.0f}",
                  round(copied / 1e9, 1), json.dumps(parts, default=lambda x: round(x, 4)), flush=True)  # fmt: skip
            if options.activity and not repeat:
                where = options.activity / f"activity-{cell.dtype}-{way.replace(':', '-')}.json"
                where.write_text(json.dumps([dataclasses.astuple(one) for one in run.activity]))


def main() -> None:
    """Measure, print and write the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("cells", nargs="+", help="type:extent:device memory, or type:m,n,k:device memory")
    parser.add_argument("--ways", nargs="+", default=["12:256MiB:8MiB"])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--activity", type=Path, help="folder for what ran when")
    parser.add_argument("--until", type=float, default=1e9, help="seconds after which nothing more is begun")
    options = parser.parse_args()
    cells = [Cell.parse(text) for text in options.cells]
    begin = time.perf_counter()
    options.late = lambda: time.perf_counter() - begin > options.until
    bars = Path(__file__).with_name("stream_bars.py")
    begun = [sys.executable, str(bars), str(options.results)]
    others = [subprocess.Popen([*begun, text, "--make-ready", "--strategies", "default"]) for text in options.cells]
    pool = pageable_pool(max(cell.nbytes for cell in cells))
    for other in others:
        other.wait()
    print(f"memory and kernels: {time.perf_counter() - begin:.1f} s", flush=True)
    with RecordFile(options.results, experiment(" ".join(sys.argv), get_device(0).pci_bus_id)) as file:
        for cell in cells:
            if not options.late():
                measure(cell, pool, options, file)
                print(f"{cell.dtype}: {time.perf_counter() - begin:.1f} s", flush=True)
    print(file.path)


if __name__ == "__main__":
    main()
