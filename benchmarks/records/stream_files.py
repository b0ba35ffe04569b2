"""Products from files to a file through a GPU, beside the disk alone: reading and writing the same bytes.

``python benchmarks/records/stream_files.py RESULTS_FOLDER SCRATCH_FOLDER --size 24000 16000,16000,4000``. The page
cache is emptied of the files before each run. The disk's best is the time in which several threads read both inputs and
write as many bytes as the result has, with long requests, at the same time, the disk storing meanwhile what is written,
and nothing being computed. It is measured before the runs and after them: how much it differs is how steady the disk
is.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import gemmule as gm
from gemmule.lab.experiment import experiment
from gemmule.lab.records import RecordFile
from gemmule.runtime.device import get_device

_BLOCK = 8 << 20


def written(path: Path, shape: tuple[int, int], seed: int) -> float:
    """Write a .npy file of normal numbers; return the bytes a second, the disk waited for."""
    numbers = np.random.default_rng(seed).standard_normal((_BLOCK >> 2) + 4093).astype("f4")
    header = np.lib.format.open_memmap(path, mode="w+", dtype="f4", shape=shape)
    offset = header.offset
    del header
    size = shape[0] * shape[1] * 4
    descriptor = os.open(path, os.O_RDWR)

    def put(start: int) -> None:
        part = numbers[(start // _BLOCK) % 4093 :][: min(_BLOCK, size - start) >> 2]
        os.pwrite(descriptor, part.data, offset + start)

    with contextlib.suppress(OSError):
        os.posix_fallocate(descriptor, 0, offset + size)
    begin = time.perf_counter()
    with ThreadPoolExecutor(8) as threads, storing(descriptor):
        list(threads.map(put, range(0, size, _BLOCK)))
    os.fdatasync(descriptor)
    seconds = time.perf_counter() - begin
    os.close(descriptor)
    return size / seconds


@contextlib.contextmanager
def storing(descriptor: int):
    """Return a block in which the disk stores what is written, again and again."""
    over = threading.Event()

    def store() -> None:
        while not over.is_set():
            os.fdatasync(descriptor)

    thread = threading.Thread(target=store)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def forget(*paths: Path) -> None:
    """Let the page cache forget files."""
    for path in paths:
        descriptor = os.open(path, os.O_RDWR)
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def read(paths: list[Path], threads: int = 12) -> float:
    """Read files with long requests by several threads; return the seconds."""
    descriptors = [os.open(path, os.O_RDONLY) for path in paths]
    own = threading.local()

    def get(place: tuple[int, int]) -> None:
        if not hasattr(own, "buffer"):
            own.buffer = memoryview(bytearray(_BLOCK))
        os.preadv(place[0], [own.buffer], place[1])

    begin = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        places = [(one, start) for one in descriptors for start in range(0, os.fstat(one).st_size, _BLOCK)]
        list(pool.map(get, places))
    seconds = time.perf_counter() - begin
    for descriptor in descriptors:
        os.close(descriptor)
    return seconds


def disk_seconds(inputs: list[Path], scratch: Path, shape: tuple[int, int]) -> dict[str, float]:
    """Return the seconds in which the disk alone reads the inputs, writes a result, and does both at once."""
    forget(*inputs)
    found = {"read_s": read(inputs)}
    begin = time.perf_counter()
    written(scratch, shape, 2)
    found["write_s"] = time.perf_counter() - begin
    forget(*inputs)
    scratch.unlink()
    begin = time.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(read, inputs), pool.submit(written, scratch, shape, 2)]
        for one in both:
            one.result()
    found["both_s"] = time.perf_counter() - begin
    scratch.unlink()
    return found


def rows_error(a: Path, b: Path, c: Path, rows: np.ndarray) -> float:
    """Return the largest error of some elements in units of u (|A||B|)."""
    left, right, result = (np.load(path, mmap_mode="r") for path in (a, b, c))
    columns = np.linspace(0, right.shape[1] - 1, 64).astype(int)
    factor, other = left[rows].astype("f8"), right[:, columns].astype("f8")
    error = np.abs(result[np.ix_(rows, columns)] - factor @ other)
    return float((error / (np.abs(factor) @ np.abs(other) * 2.0**-24)).max())


def measure(shape: tuple[int, int, int], folder: Path, options, file: RecordFile) -> None:
    """Measure one product and write its record."""
    m, n, k = shape
    a, b, c, scratch = (folder / f"{name}.npy" for name in ("A", "B", "C", "scratch"))
    written(a, (m, k), 0)
    written(b, (k, n), 1)
    disk = disk_seconds([a, b], scratch, (m, n))
    print(json.dumps(disk), flush=True)
    more = {"device_memory": options.device_memory} if options.device_memory else {}
    reports, walls = [], []
    for repeat in range(options.repeats + 1):
        forget(a, b)
        c.unlink(missing_ok=True)
        begin = time.perf_counter()
        report = gm.outofcore.matmul(a, b, c, executor="gpu", **more)
        # The first one may still compile kernels.
        if repeat:
            walls.append(time.perf_counter() - begin)
            reports.append(report)
        print(round(time.perf_counter() - begin, 3), report, flush=True)
    error = rows_error(a, b, c, np.random.default_rng().integers(0, m, 4))
    if not error <= k:
        sys.exit(f"wrong: {error} u (|A||B|)")
    c.unlink()
    after = disk_seconds([a, b], scratch, (m, n))
    place = int(np.argsort(walls)[len(walls) // 2])
    report = reports[place]
    best = max(statistics.fmean((disk["both_s"], after["both_s"])), report.compute_s)
    record = {
        "record": "stream", "source": "files", "dtype": "float32", "m": m, "n": n, "k": k,
        "strategy": report.strategy,
        "tile": [report.tile_m, report.tile_n, report.tile_k], "wall_s": walls[place], "wall_samples_s": walls,
        "stream_s": report.seconds, "predicted_s": report.predicted_s, "compute_s": report.compute_s,
        "disk": disk, "disk_after": after,
        "samples": [
            {"stream_s": one.seconds, "predicted_s": one.predicted_s, "between_s": list(one.predicted_between_s)}
            for one in reports
        ],
        "bytes": {"read": report.bytes_read, "written": report.bytes_written},
        "bound_share": best / report.seconds, "call_bound_share": best / walls[place], "error_u": error,
    }  # fmt: skip
    print(json.dumps(record), flush=True)
    file.write(record)
    for path in (a, b):
        path.unlink()


def main() -> None:
    """Measure, print and write the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--size", nargs="+", default=["24000"], help="one extent, or m,n,k")
    parser.add_argument("--device-memory")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--until", type=float, default=1e9, help="seconds after which nothing more is begun")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.scratch))
    begin = time.perf_counter()
    try:
        with RecordFile(options.results, experiment(" ".join(sys.argv), get_device(0).pci_bus_id)) as file:
            # Kernels are loaded, and the probe's too.
            gm.outofcore.matmul(np.ones((2048, 1024), "f4"), np.ones((1024, 2048), "f4"), np.empty((2048, 2048), "f4"),
                        executor="gpu", device_memory="64MiB")  # fmt: skip
            for size in options.size:
                if time.perf_counter() - begin < options.until:
                    measure(tuple((list(map(int, size.split(","))) * 3)[:3]), folder, options, file)
        print(file.path)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
