"""Products that do not fit a stated GPU memory, several types in one process, on one GPU and on two, beside cuBLASXt.

``python benchmarks/records/stream_bars.py RESULTS_FOLDER float64:40000:8GiB float32:40000:8GiB bfloat16:65536:12GiB``.
All share one pool of pinned memory. The rate in core is measured before and after the streamed products, for as long as
one of them takes, and clocks and watts are sampled in between. Some
rows of every result are held against a higher precision.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from cublasxt import cublasxt
from pinned_pool import fill, pageable_pool, pinned_pool, poison, unpin
from streamed_cell import Cell, best_s, record_of, worst_error

from gemmule.dispatch.select import choose
from gemmule.executor.streams import DeviceMatrix, DeviceProduct
from gemmule.lab.experiment import experiment
from gemmule.lab.records import RecordFile
from gemmule.outofcore.device.engine.buffers import Buffers
from gemmule.outofcore.device.engine.multi_gpu import stream_on_devices
from gemmule.outofcore.device.engine.staging_probe import staged_by
from gemmule.outofcore.device.engine.streaming import Settings
from gemmule.outofcore.device.planner.operation import Convert, Multiply
from gemmule.outofcore.device.planner.rates import Rates
from gemmule.outofcore.device.planner.rings import cut_rings, staged_rates
from gemmule.outofcore.device.planner.schedule import operations
from gemmule.outofcore.stores.arrays import ArraySink, ArraySource
from gemmule.runtime.device import get_device
from gemmule.runtime.link_probe import ALLOCATE_S, LINES, Operands, large_product, link_rates, product_rate
from gemmule.runtime.sensors import Sensors
from gemmule.runtime.streams import GpuStreams

#: Sides of the product in core, and the depth at which adding to a sum is measured.
SIDE, DEPTH = 16384, 4096
#: What is near enough for the kernels to be made ready before anything is measured.
NOMINAL = {"float64": 48e12, "float32": 51e12, "bfloat16": 690e12, "float16": 690e12}


def incore(pool: np.ndarray, cell: Cell, seconds: float) -> tuple[float, dict[str, float]]:
    """Return the FLOP/s of a product of the same numbers in core for so long, with clocks and watts."""
    with GpuStreams(choose) as device:
        stream = device.stream()
        parts = []
        size = SIDE * SIDE * cell.numpy.itemsize
        for number in range(3):
            parts.append(DeviceMatrix.compact(device.allocate(size), cell.numpy, SIDE, SIDE))
            if number < 2:
                numbers = pool[number * size :][:size].view(cell.numpy).reshape(SIDE, SIDE)
                device.copy_in(stream, parts[number], numbers)

        def timed(calls: int) -> float:
            start = device.record(stream)
            for _ in range(calls):
                device.multiply(stream, DeviceProduct(*parts))
            end = device.record(stream)
            device.synchronize(end)
            return device.seconds(start, end) / calls

        timed(1)
        calls = max(round(seconds / timed(1)), 1)
        with Sensors(get_device(0).pci_bus_id).readings() as readings:
            each = timed(calls)
    return 2 * SIDE**3 / each, readings.summary()


def rates_of(cell: Cell, compute: float) -> Rates:
    """Return what the planner is told: links, sums, and the rate in core."""
    dtype = cell.numpy
    with GpuStreams(choose) as device:
        h2d, d2h = link_rates(device)
        operands = Operands(dtype, dtype, dtype)
        waves = device.waves(large_product(operands))
        plain = product_rate(device, operands, added=False, side=SIDE, depth=DEPTH, seconds=0.2)
        sums = Operands(dtype, dtype, cell.sums)
        added = product_rate(device, sums, added=True, side=SIDE, depth=DEPTH, seconds=0.2)
    return nominal(cell, compute, compute * min(added / plain, 1), h2d, d2h, waves)


def nominal(cell: Cell, compute: float, added: float, h2d: float, d2h: float, waves: tuple[int, int, int]) -> Rates:
    """Return rates in the form that the planner takes."""
    del cell
    return Rates(compute, added, h2d, d2h, half=16, measured=True, side=SIDE, depth=DEPTH, waves=waves, lines=LINES)


def make_ready(cell: Cell, devices: int, strategies: list[str | None]) -> None:
    """Compile and keep the kernels that plans of such a product take."""
    with GpuStreams(choose) as device:
        dtype, rate = cell.numpy, NOMINAL[cell.dtype]
        waves = device.waves(large_product(Operands(dtype, dtype, dtype)))
    rates = nominal(cell, rate, rate * 0.98, 53e9, 49e9, waves)
    for count, strategy in [(1, one) for one in strategies] + [(devices, None)] * (devices > 1):
        plan = cell.plan(count, rates, strategy).plan
        with GpuStreams(choose) as device:
            buffers, stream = Buffers(plan, device), device.stream()
            for op in operations(plan):
                if isinstance(op, Multiply):
                    for product in buffers.products(op, 1, 0):
                        device.prepare(stream, product)
                elif isinstance(op, Convert):
                    rows, cols = buffers.tile(op)
                    source = buffers.whole_tile("sum", op.source, op).part(rows, cols)
                    device.prepare_convert(stream, buffers.whole_tile("out", op.target, op).part(rows, cols), source)


def measure(cell: Cell, pool: np.ndarray, options, file: RecordFile, source: str = "pinned") -> None:
    """Measure one product in all ways and write the records."""
    m, n, k = cell.shape
    settings = Settings(256 << 20, 12)
    a, b, out = cell.matrices(pool)
    fill(a, 0)
    fill(b, 1)
    rows = np.random.default_rng().integers(0, m, 4)
    seconds = cell.flop / NOMINAL[cell.dtype] if source == "pinned" else 0.5
    before, clocks = incore(pool, cell, seconds)
    print(cell, "in core", round(before / 1e12, 2), clocks, flush=True)
    rates = rates_of(cell, before)
    if source == "pageable":
        with GpuStreams(choose) as device, device.near():
            staged = staged_by(device, settings.pinned, settings.threads)
        print(staged, flush=True)
        rings = cut_rings(("a", "b", "out"), settings.pinned, settings.threads, 1)
        rates = dataclasses.replace(staged.applied_to(rates), launch=2e-4, allocate=ALLOCATE_S)
        rates = staged_rates(rates, rings, settings.threads, settings.threads)
    print(source, dataclasses.asdict(rates), flush=True)
    made = []
    ways = [(1, name) for name in options.strategies.split(",")]
    ways += [(2, "default")] * (cell.dtype in options.two.split(","))
    for devices, name in ways:
        if made and options.late():
            break
        chosen = cell.plan(devices, rates, None if name == "default" else name)
        if any(devices == count and chosen.plan == other.plan for count, _, other, *_ in made):
            continue
        ordinals = list(range(devices))
        runs, samples, error = [], [], 0.0
        # The first one of a product, and on a second GPU, is not counted: it may still load kernels.
        uncounted = name == "default"
        for repeat in range(options.repeats + 1 if uncounted else 1):
            poison(out)
            with contextlib.ExitStack() as stack:
                opened = [stack.enter_context(GpuStreams(choose, one)) for one in ordinals]
                sampled = [stack.enter_context(Sensors(get_device(one).pci_bus_id).readings()) for one in ordinals]
                sources = {"a": ArraySource(a), "b": ArraySource(b)}
                run = stream_on_devices(chosen.plan, sources, ArraySink(out), opened, settings=settings)
            print(devices, name, round(run.seconds, 4), round(run.exposed_share, 4), flush=True)
            if repeat or not uncounted:
                runs.append(run)
                samples.append([one.summary() for one in sampled])
        error = worst_error(a, b, out, rows)
        if not error <= k:
            sys.exit(f"{name} is wrong: {error} u (|A||B|)")
        made.append((devices, name, chosen, runs, samples, error))
        if options.activity:
            where = options.activity / f"activity-{cell.dtype}-{k}-{source}-{name}-{devices}.json"
            where.write_text(json.dumps([dataclasses.astuple(one) for one in runs[-1].activity]))
    after, clocks_after = incore(pool, cell, seconds)
    print("in core", round(after / 1e12, 2), clocks_after, flush=True)
    mean = (before + after) / 2
    for devices, name, chosen, runs, samples, error in made:
        given = argparse.Namespace(
            dtype=cell.dtype, device_memory=cell.device_memory, pinned="256MiB", threads=12,
            devices=",".join(map(str, range(devices))),
        )  # fmt: skip
        record = record_of(given, source, chosen, runs, rates, mean, error)
        record["bound_share"] = best_s(given, chosen, dataclasses.replace(rates, compute=mean)) / record["wall_s"]
        record["ramps"], record["strips"] = list(chosen.plan.ramps), chosen.plan.strips
        record["incore"] = [{"tflops": before / 1e12, **clocks}, {"tflops": after / 1e12, **clocks_after}]
        record["sensors"] = samples
        if devices == 2:
            one = next(wall for count, way, *_, wall in _walls(made) if count == 1 and way == "default")
            record["speedup"] = one / record["wall_s"]
        print(json.dumps({name: record[name] for name in record if name not in ("rates", "sensors")}), flush=True)
        file.write(record)
    for block in map(int, filter(None, options.cublasxt.split(","))):
        if options.late() or cell.dtype not in ("float64", "float32"):
            break
        poison(out)
        wall = cublasxt(a, b, out, block)
        record = {
            "record": "stream", "strategy": "cublasXt", "source": source, "dtype": cell.dtype,
            "m": m, "n": n, "k": k, "block": block, "wall_s": wall, "wall_samples_s": [wall],
            "tflops": cell.flop / wall / 1e12, "error_u": worst_error(a, b, out, rows),
        }  # fmt: skip
        print(json.dumps(record), flush=True)
        file.write(record)


def line_rates(pool: np.ndarray, pitch: int = 128 << 10, nbytes: int = 256 << 20) -> dict[str, float]:
    """Return the bytes a second of copies to a GPU by the bytes of their lines, which lie a pitch apart."""
    found = {}
    with GpuStreams(choose) as device:
        stream, buffer = device.stream(), device.allocate(nbytes)
        for place, width in enumerate((1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, pitch)):
            lines = min(nbytes // width, (len(pool) - pitch) // pitch)
            # Each from another part of the memory, that no cache has.
            start = place * (pitch // 8) % pitch if width < pitch else 0
            host = np.lib.stride_tricks.as_strided(pool[start:], (lines, width), (pitch, 1))
            target = DeviceMatrix.compact(buffer, np.dtype(np.uint8), lines, width)
            begin = device.record(stream)
            device.copy_in(stream, target, host)
            end = device.record(stream)
            device.synchronize(end)
            found[str(width)] = lines * width / device.seconds(begin, end)
    return found


def _walls(made):
    """Yield devices, strategy and median seconds of what was measured."""
    for devices, name, _, runs, *_ in made:
        yield devices, name, sorted(run.seconds for run in runs)[len(runs) // 2]


def main() -> None:
    """Measure, print and write the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("cells", nargs="*", help="type:extent:device memory, or type:m,n,k:device memory")
    parser.add_argument("--strategies", default="default,paper")
    parser.add_argument("--two", default="", help="types that are measured on two GPUs as well")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cublasxt", default="", help="block sizes, e.g. 4096,8192")
    parser.add_argument("--pageable", nargs="*", default=[], help="products whose matrices lie in pageable memory")
    parser.add_argument("--activity", type=Path, help="folder for what ran when")
    parser.add_argument("--until", type=float, default=1e9, help="seconds after which nothing more is begun")
    parser.add_argument("--make-ready", action="store_true", help="only compile the kernels")
    options = parser.parse_args()
    cells, pageable = ([Cell.parse(text) for text in texts] for texts in (options.cells, options.pageable))
    names = [None if name == "default" else name for name in options.strategies.split(",")]
    if options.make_ready:
        for cell in cells:
            make_ready(cell, 2 if cell.dtype in options.two.split(",") else 1, names)
        return
    begin = time.perf_counter()
    options.late = lambda: time.perf_counter() - begin > options.until
    ready = ["--make-ready", "--strategies", options.strategies, "--two", options.two]
    others = [
        # All that has no name stands together, or it is not understood.
        subprocess.Popen([sys.executable, __file__, str(options.results), text, *ready])
        for text in {*options.cells, *options.pageable}
    ]
    nbytes = max(cell.nbytes for cell in (*cells, *pageable))
    pool = pinned_pool(nbytes) if cells else pageable_pool(nbytes)
    print(f"memory: {time.perf_counter() - begin:.1f} s", flush=True)
    for other in others:
        other.wait()
    print(f"kernels: {time.perf_counter() - begin:.1f} s", flush=True)
    with RecordFile(options.results, experiment(" ".join(sys.argv), get_device(0).pci_bus_id)) as file:
        for cell in cells:
            if options.late():
                break
            measure(cell, pool, options, file)
            print(f"{cell.dtype}: {time.perf_counter() - begin:.1f} s", flush=True)
        if cells:
            lines = line_rates(pool)
            print(lines, flush=True)
            file.write({"record": "stream", "source": "lines", "pitch": 128 << 10, "bytes_per_s": lines})
            if pageable:
                unpin(pool)
        options.strategies, options.two, options.repeats, options.cublasxt = "default", "", 2, ""
        for cell in pageable:
            if not options.late():
                measure(cell, pool, options, file, "pageable")
                print(f"{cell.dtype}, pageable: {time.perf_counter() - begin:.1f} s", flush=True)
    print(file.path)


if __name__ == "__main__":
    main()
