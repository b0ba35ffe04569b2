"""How fast files are read and written: measured with a few long requests, as a plan needs to know."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

#: Bytes a second that a disk is taken to read and write where that is not measured.
DISK_RATE = 1.5e9
#: Bytes of a request, and requests that are timed: a few answer before the disk is busy.
_BLOCK, _BLOCKS = 8 << 20, 48
#: Files that are smaller together are not worth the time.
_LEAST = 1 << 30
#: What a file system without unnamed files, or a folder that may not be written, answers.
_NOT_HERE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EACCES, errno.EROFS, errno.ENOSPC)
#: What one without room for the probe answers. Whether there is room for the result is found out when that is made.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def read_rate(paths: Sequence[str | None], threads: int) -> float:
    """Return the bytes a second at which a long run in the middle of the largest file is read.

    `DISK_RATE` for small ones. What the page cache holds is read from there, as the product will read it.
    """
    sizes = {path: os.path.getsize(path) for path in paths if path is not None and os.path.isfile(path)}
    if sum(sizes.values()) < _LEAST:
        return DISK_RATE
    path = max(sizes, key=sizes.__getitem__)
    # The system reads ahead of requests that follow each other, as a product's do.
    run = min(_BLOCKS * _BLOCK, sizes[path] // 2)
    first = (sizes[path] - run) // 2
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
