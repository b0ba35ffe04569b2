"""Rates of reading files and arrays and of writing files, measured with a product's accesses, for the plan."""

from __future__ import annotations

import bisect
import dataclasses
import errno
import itertools
import math
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from gemmule.core.dataclass import dataclass

from ...stores.matrix import Array
from .page_cache import held
from .probe_cache import ProbeCache

#: Bytes a second that a disk is taken to read and write where that is not measured.
DISK_RATE = 1.5e9
#: Parts of what is timed whose rates are compared.
_PARTS = 3
#: Part of a result that is written to try, at most.
_TRIED = 4
#: Places of a file at which the page cache is queried.
_SAMPLES = 4096
#: Errors of a file system without unnamed files, and of a read-only folder.
_NOT_HERE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EACCES, errno.EROFS, errno.ENOSPC)
#: What one without room for the probe answers. Whether there is room for the result is found out when that is made.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Probe:
    """Size of a probe."""

    block: int = 4 << 20  #: Bytes of a request, as of a product's.
    blocks: int = 96  #: Requests that are timed: a few answer before the disk is busy.
    least: int = 480 << 20  #: Bytes below which files are not worth the time.
    clock: Callable[[], float] = time.perf_counter  #: Seconds, as of `time.perf_counter`.


@dataclass(frozen=True)
class DiskRate:
    """Bytes a second of a disk, and of the slowest and the fastest part of what was timed."""

    rate: float
    slow: float
    fast: float

    def times(self, factor: float) -> DiskRate:
        """Return rates that are so many times as high."""
        return DiskRate(self.rate * factor, self.slow * factor, self.fast * factor)


#: Assumed rates of a disk that is not measured.
USUAL = DiskRate(DISK_RATE, DISK_RATE, DISK_RATE)
#: A probe of files of a product's size.
PROBE = Probe()


def read_rate(
    paths: Sequence[str | None], threads: int, probe: Probe = PROBE, stored: ProbeCache | None = None
) -> DiskRate:
    """Return the bytes a second at which files will be read, where what the page cache holds takes no time.

    A long run is timed where the cache holds least, so that a probe does not find what one before has read. If it holds
    everything, the run is read from there, as the product will read it. `USUAL` for small files. Rates of the disk, and
    of its page cache, that are stored serve instead.
    """
    stored = stored or ProbeCache()
    sizes = {path: os.path.getsize(path) for path in paths if path is not None and os.path.isfile(path)}
    total = sum(sizes.values())
    if total < probe.least:
        return USUAL
    # The system reads ahead of requests that follow each other, as a product's do.
    run = min(probe.blocks * probe.block, max(sizes.values()) // 2)
    step = max(probe.block, max(sizes.values()) // _SAMPLES)
    there = {path: held(path, step) for path, size in sizes.items() if size}
    absent = sum(sizes[path] * (1 - statistics.fmean(samples)) for path, samples in there.items()) / total
    share, first, path = min(
        (*_emptiest(samples, step, run, sizes[path]), path) for path, samples in there.items() if sizes[path] >= run
    )
    was_read = False

    def timed() -> tuple[float, ...]:
        nonlocal was_read
        was_read = True
        rate = _timed_reads(path, first, run, threads, probe)
        # For a file partly in the page cache, the disk's own rate.
        return dataclasses.astuple(rate.times(1 - share) if share < 1 else rate)

    kind = "disk" if share < 1 else "page cache"
    rate = DiskRate(*stored.figures(("read", kind, *_disk(path), str(threads)), 3, timed))
    # Data that was just read is cached, too.
    absent -= (1 - share) * run / total if was_read else 0.0
    return rate.times(1 / min(max(absent, 0.01), 1 - share)) if share < 1 else rate


def _disk(path: str) -> tuple[str, str]:
    """Return the host, and the device of a file or folder; no device where it cannot be found."""
    try:
        return platform.node(), str(os.stat(path).st_dev)
    except OSError:
        return platform.node(), ""


def _emptiest(samples: Sequence[bool], step: int, run: int, size: int) -> tuple[float, int]:
    """Return the share that is held of the run of which least is, and where that begins; of equal ones the middle."""
    width = max(run // step, 1)
    sums = [0, *itertools.accumulate(samples)]
    last = (size - run) // step
    shares = [
        ((sums[min(first + width, len(samples))] - sums[first]) / width, abs(2 * first - last), first)
        for first in range(last + 1)
    ]
    share, _, first = min(shares)
    return share, first * step


def _timed_reads(path: str, first: int, run: int, threads: int, probe: Probe) -> DiskRate:
    """Return the bytes a second at which a run is read."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return _timed(lambda buffer, place: os.preadv(descriptor, [buffer], place), first, run, threads, probe)
    finally:
        os.close(descriptor)


def copy_rate(array: Array, threads: int, probe: Probe = PROBE, stored: ProbeCache | None = None) -> float:
    """Return the bytes a second at which threads copy from an array; infinity for a small or strided one."""
    lines = array.T if array.flags.f_contiguous else array
    if array.nbytes < probe.least or not lines.flags.c_contiguous:
        return math.inf
    flat = lines.reshape(-1).view(np.uint8)

    def read(buffer: memoryview, place: int) -> int:
        np.copyto(np.frombuffer(buffer, np.uint8), flat[place : place + len(buffer)])
        return len(buffer)

    def timed() -> tuple[float]:
        return (_timed(read, 0, min(probe.blocks * probe.block, array.nbytes // 2), threads, probe).rate,)

    return (stored or ProbeCache()).figures(("copy", platform.node(), str(threads)), 1, timed)[0]


def _timed(read: Callable[[memoryview, int], int], first: int, run: int, threads: int, probe: Probe) -> DiskRate:
    """Return the bytes a second at which threads read a run, each into a buffer of its own.

    Time begins once all threads, and the pages of their buffers, are there, as a product's are.
    """
    own, places = threading.local(), range(first, first + run, probe.block)
    begin: list[float] = []
    count = max(min(threads, len(places)), 1)
    ready = threading.Barrier(count, lambda: begin.append(probe.clock()))

    def prepare() -> None:
        try:
            own.buffer = memoryview(bytearray(probe.block))
        except MemoryError:
            ready.abort()
            raise
        ready.wait()

    def get(place: int) -> tuple[float, int]:
        count = read(own.buffer[: min(probe.block, first + run - place)], place)
        return probe.clock(), count

    with ThreadPoolExecutor(count, initializer=prepare) as pool:
        try:
            done = sorted(pool.map(get, places))
        except RuntimeError:
            # A thread could not begin, for which others wait.
            ready.abort()
            raise
    # Threads that begin, and the last ones of them, do not keep the disk busy.
    ends = len(done) // 8
    return _rate(done[ends - 1][0], done[ends : len(done) - ends]) if ends else _rate(begin[0], done)


def _rate(begin: float, done: Sequence[tuple[float, int]]) -> DiskRate:
    """Return the rate of requests that were done at such times, and those of parts of them."""
    counts = [0, *itertools.accumulate(count for _, count in done)]
    ends = [begin, *(end for end, _ in done)]
    cuts = sorted({bisect.bisect_left(counts, counts[-1] * part / _PARTS) for part in range(_PARTS + 1)})
    rates = [
        (counts[last] - counts[first]) / (ends[last] - ends[first])
        for first, last in itertools.pairwise(cuts)
        if ends[last] > ends[first]
    ]
    whole = counts[-1] / max(ends[-1] - begin, 1e-9)
    return DiskRate(whole, min(rates, default=whole), max(rates, default=whole))


def write_rate(
    folder: str, nbytes: int, threads: int, probe: Probe = PROBE, stored: ProbeCache | None = None
) -> DiskRate:
    """Return the bytes a second at which an unnamed file in a folder is written and stored.

    As in a product, a thread lets the disk store what is there while others write on. `USUAL` where the result has few
    bytes, or the folder takes no such file, or has no room for it, or `stored` measures nothing. A rate that is stored
    serves instead.
    """
    if nbytes < probe.least:
        return USUAL

    def timed() -> tuple[float, ...]:
        rate = _tried_writes(folder, nbytes, threads, probe)
        return () if rate is None else dataclasses.astuple(rate)

    usual = dataclasses.astuple(USUAL)
    found = (stored or ProbeCache()).figures(("write", *_disk(folder), str(threads)), 3, timed, usual)
    return DiskRate(*found) if found else USUAL


def _tried_writes(folder: str, nbytes: int, threads: int, probe: Probe) -> DiskRate | None:
    """Return the rate of an unnamed file, or None where the folder takes none or has no room."""
    try:
        descriptor = os.open(folder, os.O_RDWR | os.O_TMPFILE, 0o600)
    except (AttributeError, OSError) as error:
        # A system without unnamed files; the sink itself reports its folder's fault.
        if isinstance(error, OSError) and error.errno not in _NOT_HERE:
            raise
        return None
    try:
        blocks = min(probe.blocks, max(nbytes // _TRIED // probe.block, 1))
        return _timed_writes(descriptor, threads, blocks, probe)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        return None
    finally:
        os.close(descriptor)


def _timed_writes(descriptor: int, threads: int, blocks: int, probe: Probe) -> DiskRate:
    block = os.urandom(probe.block)
    try:
        # A result's room is reserved before, too.
        os.posix_fallocate(descriptor, 0, blocks * probe.block)
    except OSError as error:
        # Where room cannot be reserved, writing shows whether it exists.
        if error.errno in _NO_ROOM:
            raise
    begin, written, stored = probe.clock(), [0], [(0.0, 0)]

    def put(place: int) -> None:
        count = os.pwrite(descriptor, block, place * probe.block)
        with lock:
            written[0] += count

    lock, over = threading.Lock(), threading.Event()

    def store() -> None:
        """Let the disk store again and again what was written so far, and note when that was done."""
        while not over.is_set() or stored[-1][1] < written[0]:
            count = written[0]
            if count == stored[-1][1]:
                over.wait(1e-3)
                continue
            os.fdatasync(descriptor)
            stored.append((probe.clock(), count))

    with ThreadPoolExecutor(1) as storer:
        storing = storer.submit(store)
        try:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(put, range(blocks)))
        finally:
            over.set()
        storing.result()
    ends = [(end, later - count) for (_, count), (end, later) in itertools.pairwise(stored)]
    return _rate(begin, ends)
