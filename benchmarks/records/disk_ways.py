"""Ways to read and write files: through the page cache or past it, threads, lengths of requests, both at once.

``python benchmarks/records/disk_ways.py RESULTS_FOLDER SCRATCH_FOLDER``. Nothing is computed. The page cache is emptied
of a file before it is read. One way to read is repeated all along: how much its rate varies is how much the disk does.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import json
import mmap
import os
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gemmule.lab.experiment import experiment
from gemmule.lab.records import RecordFile
from gemmule.outofcore.device.planner.disk_probe import read_rate, write_rate

MIB = 1 << 20
#: The way that is repeated: threads and bytes of a request, through the page cache.
USUAL = (8, 4 * MIB, False)
_LIBC = ctypes.CDLL(None, use_errno=True)
#: Flag of sync_file_range: begin to write what is dirty, and do not wait.
_BEGIN_TO_WRITE = 2


def buffers(nbytes: int) -> threading.local:
    """Return what holds a buffer for each thread, which begins at a page."""

    class Own(threading.local):
        def __init__(self) -> None:
            self.memory = mmap.mmap(-1, nbytes)
            self.memory[:] = os.urandom(4096) * (nbytes // 4096)

    return Own()


def forget(path: Path) -> None:
    """Let the page cache forget a file."""
    descriptor = os.open(path, os.O_RDWR)
    os.fdatasync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def read(path: Path, nbytes: int, threads: int, request: int, direct: bool) -> dict[str, float]:
    """Read the beginning of a file; return the bytes a second."""
    descriptor = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    own = buffers(request)

    def get(place: int) -> None:
        os.preadv(descriptor, [own.memory], place)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: own.memory[0] or time.sleep(0.01), range(threads)))
        begin = time.perf_counter()
        list(pool.map(get, range(0, nbytes, request)))
        seconds = time.perf_counter() - begin
    os.close(descriptor)
    return {"bytes_per_s": nbytes / seconds, "seconds": seconds}


def write(folder: Path, nbytes: int, threads: int, request: int, how: str) -> dict[str, float]:
    """Write a file whose room is reserved first, and wait for the disk; `how` is cached, early or direct."""
    path = folder / "written"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | (os.O_DIRECT if how == "direct" else 0), 0o600)
    own = buffers(request)
    begin = time.perf_counter()
    with contextlib.suppress(OSError):
        os.posix_fallocate(descriptor, 0, nbytes)
    reserved = time.perf_counter()

    def put(place: int) -> None:
        os.pwrite(descriptor, own.memory, place)
        if how == "early":
            _LIBC.sync_file_range(
                descriptor, ctypes.c_int64(place), ctypes.c_int64(request), ctypes.c_uint(_BEGIN_TO_WRITE)
            )

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(put, range(0, nbytes, request)))
    written = time.perf_counter()
    os.fdatasync(descriptor)
    end = time.perf_counter()
    os.close(descriptor)
    path.unlink()
    return {
        "bytes_per_s": nbytes / (end - begin), "seconds": end - begin, "reserve_s": reserved - begin,
        "write_s": written - reserved, "sync_s": end - written,
    }  # fmt: skip


def main() -> None:
    """Measure, print and write the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--mib", type=int, default=1024, help="MiB that are read, and half as many that are written")
    parser.add_argument("--until", type=float, default=1e9, help="seconds after which nothing more is begun")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.scratch))
    begin = time.perf_counter()
    nbytes = options.mib * MIB
    files = [folder / name for name in "abc"]
    turns = itertools.cycle(files)

    def cold(**way) -> dict[str, float]:
        path = next(turns)
        forget(path)
        return read(path, nbytes, **way)

    def way_of(threads: int, request: int, direct: bool) -> dict:
        return {"threads": threads, "request": request, "direct": direct}

    try:
        with RecordFile(options.results, experiment(" ".join(sys.argv))) as file:

            def note(what: str, **found) -> None:
                record = {"record": "stream", "source": "disk", "what": what, "at_s": time.perf_counter() - begin}
                record |= found
                print(json.dumps(record), flush=True)
                file.write(record)

            mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
            real = os.path.realpath(folder)
            mount = max((one for one in mounts if real.startswith(one[1])), key=lambda one: len(one[1]))
            print(mount, flush=True)
            for path in files:
                note("write", threads=8, request=4 * MIB, how="cached", **write_file(path, nbytes))
            for path in files:
                forget(path)
            reads, writes = read_rate([str(files[0]), str(files[1])], 14), write_rate(str(folder), nbytes, 14)
            note("probe", read=reads.rate, read_between=[reads.slow, reads.fast], write=writes.rate,
                 write_between=[writes.slow, writes.fast], file_system=mount[2])  # fmt: skip
            ways = list(itertools.product((4, 8, 16), (1 * MIB, 4 * MIB, 16 * MIB), (False, True)))
            for number, way in enumerate(ways):
                if number % 4 == 0:
                    note("usual", **way_of(*USUAL), **cold(**way_of(*USUAL)))
                note("read", **way_of(*way), **cold(**way_of(*way)))
            for how, threads in itertools.product(("cached", "early", "direct"), (4, 14)):
                note("write", threads=threads, request=4 * MIB, how=how,
                     **write(folder, nbytes // 2, threads, 4 * MIB, how))  # fmt: skip
            for direct, how in itertools.product((False, True), ("cached", "early", "direct")):
                for _ in range(2):
                    if time.perf_counter() - begin > options.until:
                        break
                    both = way_of(14, 4 * MIB, direct)
                    start = time.perf_counter()
                    with ThreadPoolExecutor(2) as pool:
                        reading = pool.submit(cold, **both)
                        writing = pool.submit(write, folder, nbytes // 2, 14, 4 * MIB, how)
                        found = {"reading": reading.result(), "writing": writing.result()}
                    note("both", **both, how=how, seconds=time.perf_counter() - start, **found)
            note("usual", **way_of(*USUAL), **cold(**way_of(*USUAL)))
        print(file.path)
    finally:
        shutil.rmtree(folder)


def write_file(path: Path, nbytes: int) -> dict[str, float]:
    """Write a file that stays."""
    block = os.urandom(4 * MIB)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    begin = time.perf_counter()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda place: os.pwrite(descriptor, block, place), range(0, nbytes, len(block))))
    written = time.perf_counter()
    os.fdatasync(descriptor)
    end = time.perf_counter()
    os.close(descriptor)
    return {"bytes_per_s": nbytes / (end - begin), "write_s": written - begin, "sync_s": end - written}


if __name__ == "__main__":
    main()
