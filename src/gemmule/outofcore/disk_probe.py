"""How fast files are read and written: measured with a few long requests, as a plan needs to know."""

from __future__ import annotations

import errno
import itertools
import os
import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from .page_cache import held

#: Bytes a second that a disk is taken to read and write where that is not measured.
DISK_RATE = 1.5e9
#: Bytes of a request, and requests that are timed: a few answer before the disk is busy.
_BLOCK, _BLOCKS = 8 << 20, 48
#: Files that are smaller together are not worth the time.
_LEAST = 1 << 30
#: Places of a file at which the page cache is asked for.
_SAMPLES = 4096
#: What a file system without unnamed files, or a folder that may not be written, answers.
_NOT_HERE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EACCES, errno.EROFS, errno.ENOSPC)
#: What one without room for the probe answers. Whether there is room for the result is found out when that is made.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def read_rate(paths: Sequence[str | None], threads: int) -> float:
    """Return the bytes a second at which files will be read, where what the page cache holds takes no time.

    A long run is timed where the cache holds least, so that a probe does not find what one before has read. If it holds
    everything, the run is read from there, as the product will read it. `DISK_RATE` for small files.
    """
    sizes = {path: os.path.getsize(path) for path in paths if path is not None and os.path.isfile(path)}
    total = sum(sizes.values())
    if total < _LEAST:
        return DISK_RATE
    # The system reads ahead of requests that follow each other, as a product's do.
    run = min(_BLOCKS * _BLOCK, max(sizes.values()) // 2)
    step = max(_BLOCK, max(sizes.values()) // _SAMPLES)
    there = {path: held(path, step) for path, size in sizes.items() if size}
    absent = sum(sizes[path] * (1 - statistics.fmean(samples)) for path, samples in there.items()) / total
    share, first, path = min(
        (*_emptiest(samples, step, run, sizes[path]), path) for path, samples in there.items() if sizes[path] >= run
    )
    rate = _timed_reads(path, first, run, threads)
    return rate * max((1 - share) / absent, 1) if share < 1 else rate


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


def _timed_reads(path: str, first: int, run: int, threads: int) -> float:
    """Return the bytes a second at which a run is read."""
    descriptor = os.open(path, os.O_RDONLY)
    own = threading.local()

    def get(place: int) -> int:
        if not hasattr(own, "buffer"):
            own.buffer = memoryview(bytearray(_BLOCK))
        return os.preadv(descriptor, [own.buffer[: min(_BLOCK, first + run - place)]], place)

    try:
        begin = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            count = sum(pool.map(get, range(first, first + run, _BLOCK)))
        return count / (time.perf_counter() - begin)
    finally:
        os.close(descriptor)


def write_rate(folder: str, nbytes: int, threads: int) -> float:
    """Return the bytes a second at which an unnamed file in a folder is written and stored.

    `DISK_RATE` where the result has few bytes, or the folder takes no such file, or has no room for it.
    """
    if nbytes < _LEAST:
        return DISK_RATE
    try:
        descriptor = os.open(folder, os.O_RDWR | os.O_TMPFILE, 0o600)
    except (AttributeError, OSError) as error:
        # A system without unnamed files; the sink says itself what is wrong with its folder.
        if isinstance(error, OSError) and error.errno not in _NOT_HERE:
            raise
        return DISK_RATE
    try:
        return _timed_writes(descriptor, threads)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        return DISK_RATE
    finally:
        os.close(descriptor)


def _timed_writes(descriptor: int, threads: int) -> float:
    block = os.urandom(_BLOCK)
    try:
        # A result's room is reserved before, too.
        os.posix_fallocate(descriptor, 0, _BLOCKS * _BLOCK)
    except OSError as error:
        # Where room cannot be reserved, it is found by writing.
        if error.errno in _NO_ROOM:
            raise
    begin = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        count = sum(pool.map(lambda place: os.pwrite(descriptor, block, place * _BLOCK), range(_BLOCKS)))
    os.fdatasync(descriptor)
    return count / (time.perf_counter() - begin)
