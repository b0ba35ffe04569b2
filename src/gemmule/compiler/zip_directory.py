"""The directory of an uncompressed zip archive, without an object for each of thousands of members."""

from __future__ import annotations

import os
import struct
import zipfile
from typing import IO

#: Bytes of a member's header before the lengths of its name and of what follows that, two bytes each.
_LENGTHS = 26
#: A zip archive's end: signature, members, bytes and place of its directory, bytes of a comment.
_END, _END_SIGNATURE = struct.Struct("<4s6xH2LH"), b"PK\5\6"
#: A member there: signature, method, CRC, size, bytes of its name, of an extra field and of a comment, place.
_ENTRY, _ENTRY_SIGNATURE = struct.Struct("<4s6xH4xL4xLHHH8xL"), b"PK\1\2"


class Directory:
    """The directory of a zip archive; its members are found by their names when they are read.

    `zipfile` would make an object of each of thousands of members, which takes milliseconds.
    """

    def __init__(self, file: IO[bytes]) -> None:
        nbytes = file.seek(0, os.SEEK_END)
        if nbytes < _END.size:
            raise zipfile.BadZipFile(f"its {nbytes} bytes are fewer than those of an empty pack")
        file.seek(-_END.size, os.SEEK_END)
        signature, self.count, nbytes, start, comment = _END.unpack(file.read(_END.size))
        file.seek(start)
        self._bytes = file.read(nbytes)
        if signature != _END_SIGNATURE or comment or len(self._bytes) != nbytes:
            raise zipfile.BadZipFile("its end is not that of a pack")

    def __contains__(self, member: str) -> bool:
        return self._entry(member) is not None

    def crc(self, member: str) -> int:
        """Return the CRC of a member."""
        return self._found(member)[0]

    def content(self, file: IO[bytes], member: str) -> bytes:
        """Return a member, read from the archive."""
        _, size, start = self._found(member)
        file.seek(start + _LENGTHS)
        lengths = file.read(4)
        file.seek(sum(lengths[::2]) + 256 * sum(lengths[1::2]), os.SEEK_CUR)
        return file.read(size)

    def _found(self, member: str) -> tuple[int, int, int]:
        """Return a member's CRC, its size and where its header begins."""
        entry = self._entry(member)
        if entry is None:
            raise zipfile.BadZipFile(f"{member} is not in its directory")
        return entry

    def _entry(self, member: str) -> tuple[int, int, int] | None:
        name = member.encode()
        at = self._bytes.find(name, _ENTRY.size)
        while at >= 0:
            # A name may be a part of another.
            kind, method, crc, size, length, _, _, start = _ENTRY.unpack_from(self._bytes, at - _ENTRY.size)
            if (kind, method, length) == (_ENTRY_SIGNATURE, zipfile.ZIP_STORED, len(name)):
                return crc, size, start
            at = self._bytes.find(name, at + 1)
        return None
