"""Open files that threads and forked processes read concurrently."""

from __future__ import annotations

import errno
import io
import os
import threading
import weakref
from pathlib import Path
from typing import IO, Any


class SharedFile:
    """An open file that threads, and processes after a fork, read concurrently, even if `path` is replaced.

    Parameters
    ----------
    path : Path
        The file.
    """

    def __init__(self, path: Path) -> None:
        self.file = path.open("rb", buffering=0)
        weakref.finalize(self, self.file.close)

    def reader(self) -> IO[bytes]:
        """Return a reader with a position of its own."""
        return io.BufferedReader(_Reader(self.file))


class _Reader(io.RawIOBase):
    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._at = file, 0
        self._size = os.fstat(file.fileno()).st_size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if place < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._at = place
        return place

    def readinto(self, buffer: Any) -> int:
        content = _read_at(self._file, len(buffer), self._at)
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)


_SEEKING = threading.Lock()


def _read_at(file: IO[bytes], size: int, place: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(file.fileno(), size, place)
    with _SEEKING:
        file.seek(place)
        return file.read(size)
