"""Products that pass through a GPU with a stated memory, beside the same kernels in core and cuBLASXt; writes records.

``python benchmarks/records/stream_gpu.py RESULTS_FOLDER --dtype float32 --size 40000 --device-memory 8GiB``. Each
strategy is run in turn with operands in pinned memory, then with pageable ones. Some rows of every result are held
against a higher precision.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from cublasxt import cublasxt

from gemmule.core.dtype import accumulator, dtype_named
from gemmule.dispatch.select import choose
from gemmule.lab.experiment import experiment
from gemmule.lab.records import RecordFile
from gemmule.outofcore.device.engine.multi_gpu import choose_plan_for, stream_on_devices
from gemmule.outofcore.device.engine.streaming import Settings
from gemmule.outofcore.device.planner.rates import Rates
from gemmule.outofcore.stores.arrays import ArraySink, ArraySource
from gemmule.outofcore.tiles.memory_budget import parse_bytes
from gemmule.outofcore.tiles.plan import Operand, Product
from gemmule.runtime.device import get_device
from gemmule.runtime.link_probe import copy_rate, link_rates, product_rate
from gemmule.runtime.streams import GpuStreams

#: Rows of every result that are checked.
ROWS = 4
#: What a product of half the rate has for sides, in the planner's model.
HALF = 64


def filled(array: np.ndarray, seed: int) -> np.ndarray:
    """Fill a matrix with normal numbers: a block of fresh ones, repeated with a shift, as fast as memory takes them."""
    block = np.random.default_rng(seed).standard_normal((1 << 22) + 4093).astype(array.dtype)
    flat = array.reshape(-1)
    for number, start in enumerate(range(0, flat.size, 1 << 22)):
        part = flat[start : start + (1 << 22)]
        part[...] = block[number % 4093 : number % 4093 + part.size]
    return array


def worst_error(a: np.ndarray, b: np.ndarray, out: np.ndarray, rows: np.ndarray) -> float:
    """Return the largest error of some rows in units of u (|A||B|) of the accumulator, output rounding taken off."""
    dtype = dtype_named(out.dtype.name)
    unit = accumulator(dtype, dtype).unit_roundoff
    worst = 0.0
    columns = np.linspace(0, b.shape[1] - 1, 512).astype(int)
    left = a[rows].astype(np.longdouble if dtype.itemsize == 8 else np.float64)
    right = b[:, columns].astype(left.dtype)
    expected, size = left @ right, np.abs(left) @ np.abs(right)
    error = np.abs(out[np.ix_(rows, columns)].astype(left.dtype) - expected)
    error = np.maximum(error - dtype.unit_roundoff * np.abs(expected) * 1.01, 0)
    worst = float((error / (unit * size)).max())
    return worst if np.isfinite(worst) else float("inf")


def incore_rate(device: GpuStreams, dtype: np.dtype, side: int, depth: int) -> float:
    """Return the FLOP/s of the kernel that takes a product in core."""
    return product_rate(device, dtype, dtype, dtype, added=False, side=side, depth=depth, seconds=1.0)


def streamed(plan, matrices, settings, ordinals):
    """Run a plan once in fresh devices and return what it took."""
    a, b, out = matrices
    out[...] = np.nan
    with contextlib.ExitStack() as stack:
        devices = [stack.enter_context(GpuStreams(choose, ordinal)) for ordinal in ordinals]
        sources = {"a": ArraySource(a), "b": ArraySource(b)}
        return stream_on_devices(plan, sources, ArraySink(out), devices, settings=settings)


def record_of(options, source, chosen, runs, rates, incore, error) -> dict:
    """Return the record of some runs of one plan."""
    plan, prediction = chosen.plan, chosen.prediction
    wall = statistics.median(run.seconds for run in runs)
    run = min(runs, key=lambda one: abs(one.seconds - wall))
    return {
        "record": "stream",
        "strategy": plan.strategy,
        "source": source,
        "dtype": options.dtype,
        "m": plan.product.m, "n": plan.product.n, "k": plan.product.k,
        "budgets": {"device": options.device_memory, "pinned": options.pinned, "planned_bytes": plan.device_bytes},
        "tile": [plan.tile_m, plan.tile_n, plan.tile_k],
        "c_tiles": plan.c_tiles,
        "slots": list(plan.slots),
        "threads": options.threads,
        "devices": len(options.devices.split(",")),
        "wall_s": wall,
        "wall_samples_s": [one.seconds for one in runs],
        "device_s": run.device_seconds,
        "predicted_s": prediction.seconds,
        "predicted_exposed_share": prediction.exposed_share,
        "bottleneck": prediction.bottleneck,
        "exposed_copy_share": run.exposed_share,
        "bound_share": best_s(options, chosen, rates) / wall,
        "tflops": run.flop / wall / 1e12,
        "incore_tflops": incore / 1e12,
        "incore_rate_share": run.flop / wall / incore / len(options.devices.split(",")),
        "bytes": {"h2d": run.bytes_in, "d2h": run.bytes_out},
        "busy_s": {
            name: sum(one.duration_ns for one in run.activity if one.stream == name) / 1e9
            for name in sorted({one.stream for one in run.activity})
        },
        "rates": {name: value for name, value in dataclasses.asdict(rates).items() if value != float("inf")},
        "error_u": error,
    }  # fmt: skip


def best_s(options, chosen, rates) -> float:
    """Return the time of the bottleneck if it never waited: products at the rate in core, links at theirs."""
    devices = len(options.devices.split(","))
    return max(chosen.prediction.flop / rates.compute / devices, chosen.prediction.h2d_s, chosen.prediction.d2h_s,
               chosen.prediction.source_s, chosen.prediction.sink_s)  # fmt: skip


def main() -> None:
    """Measure, print and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--size", type=int, default=40_000)
    parser.add_argument("--device-memory", default="8GiB")
    parser.add_argument("--pinned", default="256MiB", help="budget for staging pageable operands")
    parser.add_argument("--threads", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--strategies", default="default,paper")
    parser.add_argument("--sources", default="pinned,pageable")
    parser.add_argument("--incore", default="16384,16384", help="side and depth of the product in core")
    parser.add_argument("--cublasxt", default="", help="block sizes, e.g. 4096,8192")
    parser.add_argument("--devices", default="0", help="GPUs that share the tiles, e.g. 0,1")
    parser.add_argument("--activity", type=Path, help="folder for what ran when, one file for each strategy")
    options = parser.parse_args()
    ordinals = [int(number) for number in options.devices.split(",")]
    n, dtype = options.size, dtype_named(options.dtype).numpy()
    total = accumulator(dtype_named(options.dtype), dtype_named(options.dtype)).numpy()
    memory, settings = parse_bytes(options.device_memory), Settings(parse_bytes(options.pinned), options.threads)
    with GpuStreams(choose) as probe:
        h2d, d2h = link_rates(probe)
        incore = incore_rate(probe, dtype, *map(int, options.incore.split(",")))
        added = product_rate(probe, dtype, dtype, total, added=True, side=8192, seconds=0.5)
    staging = copy_rate(options.threads)
    base = Rates(incore, min(added, incore) if total == dtype else added, h2d, d2h, half=HALF, measured=True)
    print(json.dumps({"rates": dataclasses.asdict(base), "staging": staging}, default=str), flush=True)
    operand = Operand(dtype)
    product = Product(n, n, n, operand, operand, operand)
    rows = np.random.default_rng().integers(0, n, ROWS)
    with (
        GpuStreams(choose) as host,
        RecordFile(options.results, experiment(" ".join(sys.argv), get_device(0).pci_bus_id)) as file,
    ):
        for source in options.sources.split(","):
            if source == "pinned":
                start = time.perf_counter()
                pool = host.pinned(3 * n * n * dtype.itemsize)
                print(f"pinning: {time.perf_counter() - start:.1f} s", flush=True)
            else:
                pool = np.zeros(3 * n * n * dtype.itemsize, np.uint8)
            a, b, out = (part.view(dtype).reshape(n, n) for part in pool.reshape(3, -1))
            filled(a, 0)
            filled(b, 1)
            rates = base if source == "pinned" else dataclasses.replace(base, source=staging, sink=staging)
            names = options.strategies.split(",")
            plans = {
                name: choose_plan_for(
                    len(ordinals), product, total, memory, rates, strategy=None if name == "default" else name
                )
                for name in names
            }
            runs, errors = {name: [] for name in names}, dict.fromkeys(names, 0.0)
            for repeat in range(options.repeats):
                for name in names if repeat % 2 == 0 else reversed(names):
                    runs[name].append(streamed(plans[name].plan, (a, b, out), settings, ordinals))
                    print(source, name, round(runs[name][-1].seconds, 4), flush=True)
                    if options.activity and repeat == 0:
                        where = options.activity / f"activity-{options.dtype}-{source}-{name}.json"
                        where.write_text(json.dumps([dataclasses.astuple(x) for x in runs[name][-1].activity]))
                    errors[name] = max(errors[name], worst_error(a, b, out, rows))
                    if not errors[name] <= n:
                        sys.exit(f"{name} is wrong: {errors[name]} u (|A||B|)")
            for name in names:
                record = record_of(options, source, plans[name], runs[name], rates, incore, errors[name])
                print(json.dumps(record), flush=True)
                file.write(record)
            for block in map(int, filter(None, options.cublasxt.split(","))):
                times = [cublasxt(a, b, out, block) for _ in range(2)]
                if times[0] is not None:
                    wall = min(times)
                    record = {
                        "record": "stream", "strategy": "cublasXt", "source": source, "dtype": options.dtype,
                        "m": n, "n": n, "k": n, "block": block, "wall_s": wall, "wall_samples_s": times,
                        "tflops": 2 * n**3 / wall / 1e12, "error_u": worst_error(a, b, out, rows),
                    }  # fmt: skip
                    print(json.dumps(record), flush=True)
                    file.write(record)
            del a, b, out, pool
    print(file.path)


if __name__ == "__main__":
    main()
