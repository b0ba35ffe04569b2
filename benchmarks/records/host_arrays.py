"""NumPy arrays on a machine with a GPU: gm.matmul, PyTorch's round trip and NumPy; writes records.

``python benchmarks/records/host_arrays.py RESULTS_FOLDER``. For squares of 64 to 16384 in float32 and float64 each way
is called again and again for a while before it is timed. OpenBLAS's threads spin after a product, and slow down copies:
a way through the GPU that comes after one on the host waits until they sleep. The ways come in their order, then the
other way round, below a side of 4096 twice: what else a machine does lasts longer than a block of calls. The
medians are written, by their `executor` also those of gemmule's two ways. NumPy is left out where it took three times
as long as the best of the size before, as are samples for which there is no time.
``--parts`` prints, instead, what the copies of a round trip take: by the driver from pageable memory, and staged by
gemmule. ``--small`` times small products and batches instead, beside NumPy and PyTorch on the host, in turns; it needs
no GPU, and writes `overhead` records.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gemmule as gm
from gemmule.lab.experiment import experiment
from gemmule.lab.records import RecordFile
from gemmule.runtime.device import current, device_count, get_device
from gemmule.runtime.driver import call
from gemmule.runtime.round_trip import Staging, link_of

DTYPES = ("float32", "float64")
SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
#: Seconds that the samples of a size and type may take, the most of a way each time, and seconds of calls before.
BUDGET_S, MOST, BEFORE_S = 1.0, 15, 0.02
#: Seconds after which OpenBLAS's threads sleep, and the ways that use them.
SPINNING_S, BLAS = 0.15, {"numpy", "cpu"}
#: Multiple of the best time from which a way is left out at larger sizes; and the least size at which it may be.
HOPELESS, FROM = 3.0, 4096
#: Side up to which a sample is the mean of ten calls, and how often all ways are called to and fro below `FROM`.
SEVERAL, TURNS = 256, 2
#: Small products: library, batch, side; how often their ways take turns, and calls of a sample.
SMALL = (("numpy", (), 4), ("torch", (), 16), ("numpy", (16,), 2), ("numpy", (1024,), 2))
SMALL_ROUNDS, SMALL_CALLS = 41, 200


def round_trip(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Multiply as a user of PyTorch does."""
    return (torch.from_numpy(a).cuda() @ torch.from_numpy(b).cuda()).cpu().numpy()


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "gm": gm.matmul,
    "round_trip": round_trip,
    "numpy": np.matmul,
    "cpu": lambda a, b: gm.matmul(a, b, executor="cpu"),
    "gpu": lambda a, b: gm.matmul(a, b, executor="gpu"),
}


def seconds(way: Callable[[Any, Any], Any], a: np.ndarray, b: np.ndarray, calls: int = 1) -> float:
    """Return the time of a product, the mean of some calls; the last result is freed after that."""
    start = time.perf_counter()
    for _ in range(calls):
        result = way(a, b)
    taken = (time.perf_counter() - start) / calls
    del result
    return taken


def filled(n: int, dtype: str) -> np.ndarray:
    """Return a square of numbers, a block of them again and again: random ones take longer than the products."""
    block = np.random.default_rng(n).standard_normal(min(n * n, (1 << 20) + 4093)).astype(dtype)
    return np.resize(block, (n, n))


def sampled(way: Callable[[Any, Any], Any], a: np.ndarray, b: np.ndarray, budget: float) -> list[float]:
    """Return the seconds of a way's calls, after some that do not count, within a budget of seconds."""
    calls = 10 if len(a) <= SEVERAL else 1
    # The first brings rates that are measured once.
    taken = [seconds(way, a, b) for _ in range(2)][1:]
    while sum(taken) < BEFORE_S:
        taken.append(seconds(way, a, b))
    # The first of the largest are within a few percent of the others.
    samples = taken[-1:] if taken[-1] > budget else []
    while not samples or (len(samples) < MOST and sum(samples) * calls < budget):
        samples.append(seconds(way, a, b, calls))
    return samples


def measured(n: int, dtype: str, ways: dict[str, Callable[[Any, Any], Any]], blas: set[str]) -> dict[str, float]:
    """Return the median seconds of each way, some of which use BLAS."""
    a, b = filled(n, dtype), filled(n, dtype)
    samples: dict[str, list[float]] = {name: [] for name in ways}
    turns = TURNS if n < FROM else 1
    for before, name in itertools.pairwise(("numpy", *(*ways, *reversed(ways)) * turns)):
        if before in blas and name not in blas:
            time.sleep(SPINNING_S)
        samples[name] += sampled(ways[name], a, b, BUDGET_S / 2 / turns / len(ways))
    return {name: statistics.median(each) for name, each in samples.items()}


def records_of(dtype: str, least: int, most: int) -> Iterator[dict[str, Any]]:
    """Yield the records of a type, of squares of sides from `least` to `most`."""
    ways = dict(WAYS)
    for n in (size for size in SIZES if least <= size <= most):
        a = np.empty((n, n), dtype)
        plan = gm.matmul.plan(a, a.copy())
        taken = measured(n, dtype, ways, BLAS | ({"gm"} if plan.executor == "cpu" else set()))
        record = {"record": "host_arrays", "dtype": dtype, "m": n, "n": n, "k": n, "executor": plan.executor}
        record |= {f"{name}_ms": round(one * 1e3, 6) for name, one in taken.items()}
        other = min(one for name, one in taken.items() if name in ("round_trip", "numpy"))
        record |= {"ratio": round(other / taken["gm"], 3), "reason": plan.reason}
        print(record, flush=True)
        yield record
        if n >= FROM:
            best = min(taken.values())
            ways = {
                name: way for name, way in ways.items() if name in ("gm", "round_trip") or taken[name] < HOPELESS * best
            }


def small_records() -> Iterator[dict[str, Any]]:
    """Yield the records of small products on the host: microseconds of a call, gemmule's and the library's in turns."""
    for dtype, (library, batch, side) in itertools.product(DTYPES, SMALL):
        x: Any = np.random.default_rng(side).standard_normal((*batch, side, side)).astype(dtype)
        x = torch.from_numpy(x) if library == "torch" else x
        ways = {
            f"matmul_{library}_host": gm.matmul,
            f"{library}_host": torch.matmul if library == "torch" else np.matmul,
        }
        samples: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(SMALL_ROUNDS):
            for name, way in ways.items():
                samples[name].append(1e6 * seconds(way, x, x, SMALL_CALLS))
        for name, each in samples.items():
            record = {
                "record": "overhead",
                "path": name,
                "dtype": dtype,
                **dict.fromkeys("mnk", side),
                "batch": [*batch],
            }
            record |= {"host_us": round(statistics.median(each), 3), "samples_us": [round(one, 3) for one in each]}
            print({name: value for name, value in record.items() if name != "samples_us"}, flush=True)
            yield record


def rate(nbytes: int, call: Callable[[], Any]) -> float:
    """Return the GB/s of something that moves so many bytes."""
    taken = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        kept = call()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
        del kept
    return nbytes / statistics.median(taken) / 1e9


def parts(nbytes: int) -> dict[str, float]:
    """Return the rates of copies of so many bytes, by name."""
    link, host = link_of(0), np.ones(nbytes, np.uint8)
    device = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    pinned = torch.empty(nbytes, dtype=torch.uint8).pin_memory()
    calls: dict[str, Callable[[], Any]] = {
        "pinned in": lambda: device.copy_(pinned, non_blocking=True),
        "pinned out": lambda: pinned.copy_(device, non_blocking=True),
        "driver in": lambda: torch.from_numpy(host).cuda(),
        "driver out": device.cpu,
        "memcpy into new memory": host.copy,
        "memcpy": lambda: np.copyto(pinned.numpy(), host),
    }
    found = {name: rate(nbytes, call) for name, call in calls.items()}
    with ThreadPoolExecutor(2) as pool:
        streams = [torch.cuda.Stream().cuda_stream for _ in range(2)]

        def half(place: int) -> None:
            part = host[place * (nbytes // 2) :][: nbytes // 2]
            with current(0):
                address = device.data_ptr() + place * (nbytes // 2)
                call("cuMemcpyHtoDAsync", address, part.ctypes.data, part.nbytes, streams[place])

        found["driver in by two threads"] = rate(nbytes, lambda: list(pool.map(half, range(2))))
    for chunk, threads in itertools.product((2 << 20, 4 << 20, 8 << 20), (0, 4, 8)):
        with contextlib.closing(Staging(0, chunk=chunk, threads=threads)) as staging:
            send = functools.partial(link.send, [(host, device.data_ptr())], staging)
            found[f"in by {threads} of {chunk >> 10} KiB"] = rate(nbytes, send)
            receive = functools.partial(link.receive, address=device.data_ptr(), staging=staging)
            found[f"out by {threads} of {chunk >> 10} KiB"] = rate(nbytes, lambda: receive(np.empty_like(host)))  # noqa: B023
    return found


def print_parts() -> None:
    """Print the rates of copies, in GB/s: by the driver from and to pageable memory, as PyTorch does, and staged."""
    for size in (1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20):
        print(f"{size >> 10} KiB:", ", ".join(f"{name} {one:.1f}" for name, one in parts(size).items()), flush=True)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="folder for the records")
    parser.add_argument("--parts", action="store_true", help="print what copies take, and write nothing")
    parser.add_argument("--small", action="store_true", help="small products on the host")
    parser.add_argument("--least", type=int, default=SIZES[0], help="side of the smallest square")
    parser.add_argument("--most", type=int, default=SIZES[-1], help="side of the largest square")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    arguments = parser.parse_args()
    if arguments.parts:
        print_parts()
        return
    command = "python benchmarks/records/host_arrays.py RESULTS_FOLDER "
    records: Iterator[dict[str, Any]]
    if arguments.small:
        command, records = f"{command}--small", small_records()
    else:
        command = f"{command}--least {arguments.least} --most {arguments.most} --dtypes {' '.join(arguments.dtypes)}"
        records = (
            record for dtype in arguments.dtypes for record in records_of(dtype, arguments.least, arguments.most)
        )
    gpu = get_device(0).pci_bus_id if device_count() else None
    with RecordFile(arguments.results, experiment(command, gpu)) as file:
        for record in records:
            file.write(record)
    print(file.path)


if __name__ == "__main__":
    main()
