"""The journal of a result under way: which tiles are stored, in a file that survives a crash at any moment.

Every line is a JSON object followed by its own CRC-32. The first line, the header, says which product it is; each
further one says that a tile is on the disk, and the CRC-32 of its items. A line is written after its tile is stored.
Whatever follows the first line that is torn or damaged does not count.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from ..core.errors import ArgumentError, FileFormatError
from ..core.file_errors import errors_name
from .hidden import store_folder

#: First row, first column, rows and columns of what was written at once.
Rectangle = tuple[int, int, int, int]


class Journal:
    """The journal at `path`, which is made if it is not there. One process at a time has it.

    Parameters
    ----------
    path : str
        Its file.
    name : str
        The result that it belongs to, for messages.

    Attributes
    ----------
    header : dict or None
        What the product is; None in a new journal.
    tiles : dict
        CRC-32 of each rectangle that was stored.

    Raises
    ------
    ArgumentError
        If another process has it.
    """

    def __init__(self, path: str, name: str) -> None:
        self.path = path
        self.name = name
        self._fd = _locked(path, name)
        self._lines = list(_good_lines(os.pread(self._fd, os.fstat(self._fd).st_size, 0)))
        self.header: dict[str, Any] | None = self._lines[0][0] if self._lines else None
        self.tiles: dict[Rectangle, int] = {}
        for line, _ in self._lines[1:]:
            row, col, rows, cols = line["tile"]
            self.tiles[row, col, rows, cols] = line["crc32"]

    def check_header(self) -> None:
        """Refuse a journal whose first line is damaged while others follow it.

        Raises
        ------
        FileFormatError
            If that is so: then nobody knows what the tiles belong to.
        """
        if self.header is None and b"\n" in os.pread(self._fd, 1 << 20, 0):
            raise FileFormatError(
                f"{self.path}: the first line of this journal is damaged, so that the unfinished work on {self.name} "
                "cannot be used; start afresh with resume=False"
            )

    def clear(self) -> None:
        """Forget everything."""
        os.ftruncate(self._fd, 0)
        os.fsync(self._fd)
        self.header, self.tiles = None, {}

    def start(self, header: Mapping[str, Any]) -> None:
        """Note the product, in an empty journal."""
        self.header = dict(header)
        self._put(_line(header), 0)
        store_folder(os.path.dirname(self.path))

    def go_on(self) -> None:
        """Cut off what follows the last good line, so that new lines can be added."""
        os.ftruncate(self._fd, self._lines[-1][1])
        os.fsync(self._fd)

    def append(self, tiles: Iterable[tuple[Rectangle, int]]) -> None:
        """Note that rectangles with these CRC-32 are stored; return when the notes are stored, too."""
        noted = dict(tiles)
        self.tiles |= noted
        lines = b"".join(_line({"tile": list(tile), "crc32": crc}) for tile, crc in noted.items())
        self._put(lines, os.fstat(self._fd).st_size)

    def remove(self) -> None:
        """Delete the journal."""
        if self._fd >= 0:
            os.unlink(self.path)
            self.close()

    def close(self) -> None:
        """Leave the journal as it is to whoever comes next."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _put(self, raw: bytes, offset: int) -> None:
        with errors_name(self.name, written=True):
            while raw:
                count = os.pwrite(self._fd, raw, offset)
                raw, offset = raw[count:], offset + count
            os.fsync(self._fd)


def header_of(path: str) -> dict[str, Any] | None:
    """Return the header of the journal at `path`, whoever has it; None where there is none that is whole."""
    try:
        with open(path, "rb") as file:
            return next((header for header, _ in _good_lines(file.readline())), None)
    except FileNotFoundError:
        return None


def _locked(path: str, name: str) -> int:
    """Open the file and lock it; the lock ends with the process, however that ends."""
    import fcntl  # Not every system has it, and importing gemmule must not need it.

    while True:
        with errors_name(name, written=True):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # It may have been deleted between the two calls, by whoever had finished.
            if os.path.exists(path) and os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise ArgumentError(
                f"{name}: another process is computing it ({path} is locked); wait for it, or choose another output"
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _line(record: Mapping[str, Any]) -> bytes:
    text = json.dumps(record, separators=(",", ":")).encode()
    return text + b" %08x\n" % zlib.crc32(text)


def _good_lines(raw: bytes) -> Iterable[tuple[dict[str, Any], int]]:
    """Yield each line's object and where the line ends, up to the first line that is torn or damaged."""
    start = 0
    while (end := raw.find(b"\n", start)) >= 0:
        text, space, checksum = raw[start:end].rpartition(b" ")
        if not space or checksum != b"%08x" % zlib.crc32(text):
            return
        yield json.loads(text), end + 1
        start = end + 1
