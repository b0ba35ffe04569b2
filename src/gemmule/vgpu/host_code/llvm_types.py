"""Types of MLIR's LLVM dialect: their sizes, and their values as bytes.

LLVM language reference, "Data Layout", for x86-64 and AArch64: integers and floats are aligned to their size, pointers
have 8 bytes. A value is an int (integers are unsigned, modulo their width; pointers are addresses), a float, or a tuple
for a structure, an array or a vector.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from typing import Any

import ml_dtypes
import numpy as np

from gemmule.core.errors import UnsupportedError

_FLOATS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}


@dataclasses.dataclass(frozen=True)
class Type:
    """A type."""

    kind: str  #: ``int``, ``float``, ``ptr``, ``struct`` or ``array``; vectors are arrays.
    #: size, alignment: In bytes.
    size: int
    alignment: int
    bits: int = 0  #: Width of an integer in bits; the address space of a pointer.
    parts: tuple[Type, ...] = ()  #: Fields of a structure, elements of an array.
    offsets: tuple[int, ...] = ()  #: Byte offset of each part.
    name: str = ""  #: Its text.

    def zero(self) -> Any:
        """Return the value whose bits are zeros."""
        if self.kind in ("struct", "array"):
            return tuple(part.zero() for part in self.parts)
        return 0.0 if self.kind == "float" else 0

    def read(self, data: bytes | bytearray | memoryview, start: int = 0) -> Any:
        """Return the value whose bytes begin at `start`."""
        if self.kind in ("struct", "array"):
            places = zip(self.parts, self.offsets, strict=True)
            return tuple(part.read(data, start + offset) for part, offset in places)
        raw = bytes(data[start : start + self.size])
        if self.kind == "float":
            return float(np.frombuffer(raw, _FLOATS[self.name])[0])
        value = int.from_bytes(raw, "little")
        return value & ((1 << self.bits) - 1) if self.kind == "int" else value

    def write(self, value: Any, data: bytearray | memoryview, start: int = 0) -> None:
        """Write a value's bytes at `start`."""
        if self.kind in ("struct", "array"):
            for part, offset, field in zip(self.parts, self.offsets, value, strict=True):
                part.write(field, data, start + offset)
        elif self.kind == "float":
            data[start : start + self.size] = np.asarray(value, _FLOATS[self.name]).tobytes()
        else:
            data[start : start + self.size] = int(value).to_bytes(self.size, "little")

    def rounded(self, value: float) -> float:
        """Return a float rounded to this type."""
        with np.errstate(all="ignore"):
            return float(np.asarray(value, _FLOATS[self.name]))

    def leaves(self, start: int = 0) -> list[tuple[int, Type]]:
        """Return the integers, floats and pointers within, with their byte offsets."""
        if self.kind not in ("struct", "array"):
            return [(start, self)]
        found = []
        for part, offset in zip(self.parts, self.offsets, strict=True):
            found += part.leaves(start + offset)
        return found

    def offsets_of(self, kind: str, size: int, element: str, start: int = 0) -> list[int]:
        """Return the byte offsets of the parts of a kind and a size within whose elements are of another kind."""
        if self.kind == kind and self.size == size and all(part.kind == element for part in self.parts):
            return [start]
        found = []
        for part, offset in zip(self.parts, self.offsets, strict=True):
            found += part.offsets_of(kind, size, element, start + offset)
        return found


def _struct(parts: tuple[Type, ...], packed: bool, name: str) -> Type:
    offsets, end, alignment = [], 0, 1
    for part in parts:
        if not packed:
            end = -(-end // part.alignment) * part.alignment
            alignment = max(alignment, part.alignment)
        offsets.append(end)
        end += part.size
    return Type("struct", -(-end // alignment) * alignment, alignment, 0, parts, tuple(offsets), name)


@functools.lru_cache(maxsize=1024)
def type_of(text: str) -> Type:
    """Return the type that MLIR prints so.

    Raises
    ------
    UnsupportedError
        If it is not known.
    """
    found, rest = _read(text.replace("!llvm.", "").replace(" ", ""))
    if rest:
        raise UnsupportedError(f"the host code has the type {text}, which is not modelled")
    return found


def _read(text: str) -> tuple[Type, str]:
    """Return the type that a text begins with, and the rest."""
    match = re.match(r"(struct|array|vector|ptr|i\d+|bf16|f16|f32|f64)", text)
    if match is None:
        raise UnsupportedError(f"the host code has the type {text}, which is not modelled")
    word, rest = match[0], text[match.end() :]
    if word == "ptr":
        space = re.match(r"<(\d+)>", rest)
        return Type("ptr", 8, 8, int(space[1]) if space else 0, name="ptr"), rest[space.end() :] if space else rest
    if word == "struct":
        packed = rest.startswith("<packed")
        rest = rest[rest.index("(") + 1 :]
        parts = []
        while not rest.startswith(")"):
            part, rest = _read(rest.removeprefix(","))
            parts.append(part)
        return _struct(tuple(parts), packed, word), rest[2:]
    if word in ("array", "vector"):
        extent = re.match(r"<(\d+)x", rest)
        if extent is None:
            raise UnsupportedError(f"the host code has the type {text}, which is not modelled")
        part, rest = _read(rest[extent.end() :])
        n = int(extent[1])
        size = n * part.size
        alignment = part.alignment if word == "array" or not n else 1 << max(size - 1, 0).bit_length()
        step = part.size
        return Type("array", size, alignment, 0, (part,) * n, tuple(step * i for i in range(n)), word), rest[1:]
    if word in _FLOATS:
        size = np.dtype(_FLOATS[word]).itemsize
        return Type("float", size, size, 8 * size, name=word), rest
    bits = int(word[1:])
    size = 1 << math.ceil(math.log2(max(-(-bits // 8), 1)))
    return Type("int", size, min(size, 16), bits, name=word), rest
