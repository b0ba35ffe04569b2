"""Memory of interpreted host code: its stack and its globals, at addresses of their own."""

from __future__ import annotations

import bisect

from gemmule.core.errors import UnsupportedError

from .llvm_types import Type

#: Address of the first byte; no address of a process or of the virtual GPU's memory is near it.
_BASE = 1 << 44
_GAP = 64


class HostMemory:
    """Blocks of bytes that host code reserves, each with the type that it was reserved for."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._blocks: list[tuple[bytearray, Type]] = []
        self._end = _BASE

    def reserve(self, kind: Type, count: int = 1) -> int:
        """Reserve `count` values of a type, all zeros, and return their address."""
        start = -(-self._end // _GAP) * _GAP
        self._starts.append(start)
        self._blocks.append((bytearray(kind.size * count), kind))
        self._end = start + kind.size * count + 1
        return start

    def read(self, kind: Type, address: int) -> object:
        """Return the value of a type at an address."""
        block, offset, _ = self._at(address, kind.size)
        return kind.read(block, offset)

    def write(self, kind: Type, value: object, address: int) -> None:
        """Write a value of a type at an address."""
        block, offset, _ = self._at(address, kind.size)
        kind.write(value, block, offset)

    def copy(self, to: int, source: int, size: int) -> None:
        """Copy bytes."""
        block, offset, _ = self._at(source, size)
        data = bytes(block[offset : offset + size])
        block, offset, _ = self._at(to, size)
        block[offset : offset + size] = data

    def block(self, address: int) -> tuple[bytes, Type]:
        """Return the bytes from an address to the end of its block, and the type that was reserved."""
        block, offset, kind = self._at(address, 0)
        return bytes(block[offset:]), kind

    def text(self, address: int) -> str:
        """Return the text at an address, up to its zero byte."""
        return self.block(address)[0].split(b"\0", 1)[0].decode(errors="replace")

    def _at(self, address: int, size: int) -> tuple[bytearray, int, Type]:
        number = bisect.bisect_right(self._starts, address) - 1
        if number >= 0:
            block, kind = self._blocks[number]
            offset = address - self._starts[number]
            if offset + size <= len(block):
                return block, offset, kind
        raise UnsupportedError(f"the host code accesses memory at {address:#x} that it has not reserved")
