"""The journal of a result under way: which tiles are stored, in a file that survives a crash at any moment.

Every line is a JSON object followed by its own CRC-32. The first line, the header, says which product it is; each
further one says that a tile is on the disk, and the CRC-32 of its items. A line is written after its tile is stored.
Whatever follows the first line that is torn or damaged does not count.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from ...core.errors import ArgumentError, FileAccessError, FileFormatError
from ...files.file_errors import errors_name
from ...files.temporary_file import open_or_create_own, open_own
from .temporary_files import store_folder

#: First row, first column, rows and columns of what was written at once.
Rectangle = tuple[int, int, int, int]

#: Suffix of the name of a band's journal: row and column of its first tile.
_BAND = re.compile(r"\.\d+-\d+")


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
        Description of the product; None in a new journal.
    tiles : dict
        CRC-32 of each rectangle that was stored.

    Raises
    ------
    ArgumentError
        If another process has it.
    ForbiddenFileError
        If what has its name is a link, or not this user's alone.
    """

    def __init__(self, path: str, name: str) -> None:
        self.path = path
        self.name = name
        self._fd = _locked(path, name)
        self.header: dict[str, Any] | None = None
        self.tiles: dict[Rectangle, int] = {}
        self._end = 0
        self._flaw: str | None = None
        raw = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        try:
            for line, end in _good_lines(raw):
                if self.header is None:
                    self.header = line
                else:
                    rectangle, crc = _tile(line)
                    self.tiles[rectangle] = crc
                self._end = end
        except (ValueError, RecursionError):
            # Its checksum is right, so that it was written like that.
            number = raw[: self._end].count(b"\n") + 1
            self._flaw = f"line {number} of this journal is not one that gemmule writes"
        # A line that was never finished ends in none, and begins like a header or with what was never written.
        if self.header is None and (b"\n" in raw or raw.rstrip(b"\0")[:2] not in (b"", b"{", b'{"')):
            self._flaw = "the first line of this journal is damaged"

    @property
    def is_empty(self) -> bool:
        """Whether nothing stands in the file."""
        return os.fstat(self._fd).st_size == 0

    def check(self, shape: tuple[int, int] | None = None) -> None:
        """Refuse a journal whose first line is damaged while others follow it, or that gemmule cannot have written.

        Parameters
        ----------
        shape : tuple of int, optional
            Rows and columns of the result that contains the tiles.

        Raises
        ------
        FileFormatError
            If that is so: then nobody knows what the tiles belong to.
        """
        flaw = self._flaw
        for row, col, rows, cols in self.tiles if shape else ():
            assert shape is not None
            if row + rows > shape[0] or col + cols > shape[1]:
                result = f"a result of {shape[0]} x {shape[1]}"
                flaw = f"this journal has a tile of {rows} x {cols} at ({row}, {col}), outside of {result}"
        if flaw is not None:
            raise FileFormatError(
                f"{self.path}: {flaw}, so that the unfinished work on {self.name} cannot be used; everything is left "
                "as it is; start afresh with resume=False"
            )

    def clear(self) -> None:
        """Forget everything."""
        os.ftruncate(self._fd, 0)
        os.fsync(self._fd)
        self.header, self.tiles, self._flaw, self._end = None, {}, None, 0

    def start(self, header: Mapping[str, Any]) -> None:
        """Note the product, in an empty journal."""
        self.header = dict(header)
        self._put(_line(header), 0)
        store_folder(os.path.dirname(self.path))

    def go_on(self) -> None:
        """Cut off what follows the last good line, so that new lines can be added."""
        os.ftruncate(self._fd, self._end)
        os.fsync(self._fd)

    def append(self, tiles: Iterable[tuple[Rectangle, int]]) -> None:
        """Note that rectangles with these CRC-32 are stored; return when the notes are stored, too."""
        written = dict(tiles)
        self.tiles |= written
        lines = b"".join(_line({"tile": list(tile), "crc32": crc}) for tile, crc in written.items())
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


def band_journals(path: str) -> list[str]:
    """Return the journals of bands in the folder of their product's journal."""
    folder, name = os.path.split(path)
    try:
        found = os.listdir(folder or ".")
    except OSError:
        # A folder may be writable and not readable.
        return []
    return sorted(
        os.path.join(folder, one) for one in found if one.startswith(name) and _BAND.fullmatch(one, len(name))
    )


def remove_band_journals(path: str, name: str) -> None:
    """Delete the journals of the bands of a product that is finished, but for those of processes that are at them."""
    for found in band_journals(path):
        # Files that cannot be deleted, or are damaged, stay.
        with contextlib.suppress(ArgumentError, FileFormatError, FileAccessError):
            band = Journal(found, name)
            try:
                band.check()
                band.remove()
            finally:
                band.close()


def header_of(path: str) -> dict[str, Any] | None:
    """Return the header of the journal at `path`, whoever has it; None where there is none that is whole."""
    try:
        with os.fdopen(open_own(path, os.O_RDONLY), "rb") as file:
            return next((header for header, _ in _good_lines(file.readline())), None)
    except (FileNotFoundError, ValueError, RecursionError):
        return None


def _locked(path: str, name: str) -> int:
    """Open the file and lock it; the lock ends with the process, however that ends."""
    import fcntl  # Not every system has it, and importing gemmule must not need it.

    while True:
        with errors_name(name, written=True):
            descriptor = open_or_create_own(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # It may have been deleted between the two calls, by whoever had finished.
            if os.path.lexists(path) and os.path.samestat(os.fstat(descriptor), os.lstat(path)):
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
    """Yield each line's object and where the line ends, up to the first line that is torn or damaged.

    Raises
    ------
    ValueError, RecursionError
        If a line whose checksum is right is no JSON object.
    """
    start = 0
    while (end := raw.find(b"\n", start)) >= 0:
        text, space, checksum = raw[start:end].rpartition(b" ")
        if not space or checksum != b"%08x" % zlib.crc32(text):
            return
        record = json.loads(text)
        if not isinstance(record, dict):
            raise ValueError("no object")
        yield record, end + 1
        start = end + 1


def _tile(line: Mapping[str, Any]) -> tuple[Rectangle, int]:
    """Return the rectangle and the CRC-32 of a line; raise ValueError where it is no tile's."""
    rectangle, crc = line.get("tile"), line.get("crc32")
    if len(line) != 2 or not isinstance(rectangle, list) or len(rectangle) != 4:
        raise ValueError("no tile")
    # A bool is an int, and a float may equal one.
    if any(type(number) is not int for number in (*rectangle, crc)):
        raise ValueError("no whole numbers")
    row, col, rows, cols = rectangle
    if min(row, col) < 0 or min(rows, cols) < 1 or crc is None or not 0 <= crc < 2**32:
        raise ValueError("no rectangle")
    return (row, col, rows, cols), crc
