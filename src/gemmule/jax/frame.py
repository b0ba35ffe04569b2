"""Calls of XLA's, as Python reads them out of its structs."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gemmule.core.errors import DTypeError, GemmuleError, UnsupportedError

from . import structs

#: The newest version of the interface that this was held against: what the handlers say that they speak.
MAJOR, MINOR = 0, 4
_METADATA = 1
_INVALID_ARGUMENT, _INTERNAL = 3, 13
#: XLA's numbers of element types.
_DTYPES = {10: "float16", 11: "float32", 12: "float64", 15: "complex64", 16: "bfloat16", 18: "complex128"}
#: Type of the ends of groups.
_INT32 = {4: "int32"}


_CREATE_ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(structs.ErrorArguments))
# Python's lock is held: releasing and re-acquiring it would cost more than the call.
_GET_STREAM = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(structs.StreamArguments))

# All memory as one array, from which structs are read in place: to read them field by field, or to copy each
# before it is unpacked, takes ctypes several times as long.
_MEMORY: Any = (ctypes.c_char * sys.maxsize).from_address(0)
_WORD = 8
_FRAME = struct.Struct(f"={ctypes.sizeof(structs.Frame) // _WORD}Q")
_API_HEAD = struct.Struct("=4Q2i6Q")
_BUFFER = struct.Struct("=2Qi4xQqQ")
_SPAN, _ADDRESS = struct.Struct("=2Q"), struct.Struct("=Q")
# Offsets of the structs within a frame, in words; a list's size and extension are followed by length, types and items.
_ARGUMENTS, _RESULTS, _ATTRIBUTES = (
    field.offset // _WORD for field in (structs.Frame.arguments, structs.Frame.results, structs.Frame.attributes)
)
_API, _CONTEXT = structs.Frame.api.offset // _WORD, structs.Frame.context.offset // _WORD
_STRUCTS = ("call frame", "arguments", "results", "attributes", "functions")
_SIZES = tuple(map(ctypes.sizeof, (structs.Frame, structs.List, structs.List, structs.Attributes, structs.Api)))
_STREAM_SIZE = ctypes.sizeof(structs.StreamArguments)

#: The type of a handler: it takes a call frame and returns an error of XLA's, or null.
HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


@dataclasses.dataclass(frozen=True)
class Buffer:
    """An array of XLA's, in rows."""

    address: int  #: Address of its first byte.
    dtype: str  #: Its element type.
    shape: tuple[int, ...]  #: Its extents.


#: An array's type and shape as XLA has them: the type's number, and the extents as bytes.
Raw = tuple[int, bytes]


def buffer_of(raw: Raw, address: int = 0) -> Buffer:
    """Return an array of that type and shape.

    Raises
    ------
    DTypeError
        If the type is none that products have.
    """
    number, extents = raw
    dtype = (_DTYPES | _INT32).get(number)
    if dtype is None:
        known = ", ".join(_DTYPES.values())
        raise DTypeError(f"an array has XLA's type number {number}; gemmule.jax takes {known}: convert it")
    return Buffer(address, dtype, struct.unpack(f"={len(extents) // _WORD}q", extents))


class CallFrame:
    """A call by XLA.

    Parameters
    ----------
    address : int
        Address of the frame.
    minor : int
        The minor version of the interface that is spoken.
    """

    __slots__ = ("_address", "_api", "_minor", "_words")

    def __init__(self, address: int, minor: int) -> None:
        self._address, self._minor = address, minor
        self._words = _FRAME.unpack_from(_MEMORY, address)
        self._api: tuple[int, ...] = ()

    def answers_metadata(self) -> bool:
        """Write the version of the interface if only that was requested; return whether it was."""
        address = self._words[1]
        while address:
            extension = structs.Extension.from_address(address)
            if extension.kind == _METADATA:
                metadata = extension.metadata.contents
                metadata.version.major, metadata.version.minor = MAJOR, self._minor
                metadata.traits = 0
                return True
            address = extension.next
        return False

    def check(self) -> None:
        """Refuse a frame that is shorter than it is read.

        Raises
        ------
        UnsupportedError
            If one of its structs is.
        """
        words = self._words
        self._api = api = _API_HEAD.unpack_from(_MEMORY, words[_API])
        if (
            words[0] < _SIZES[0] or words[_ARGUMENTS] < _SIZES[1] or words[_RESULTS] < _SIZES[2]
            or words[_ATTRIBUTES] < _SIZES[3] or api[0] < _SIZES[4]
        ):  # fmt: skip
            given = (words[0], words[_ARGUMENTS], words[_RESULTS], words[_ATTRIBUTES], api[0])
            for name, has, needs in zip(_STRUCTS, given, _SIZES, strict=True):
                if has < needs:
                    raise UnsupportedError(
                        f"XLA's {name} take {has} bytes, and {needs} are read of them; install another version of JAX"
                    )
        if api[4] != MAJOR:
            raise UnsupportedError(
                f"XLA's foreign function interface is of version {api[4]}.{api[5]}, and gemmule speaks "
                f"{MAJOR}.{MINOR}; install another version of JAX"
            )

    def arrays(self) -> tuple[tuple[Raw, ...], tuple[int, ...]]:
        """Return types and shapes of the arrays, those to read and then those to write, and their addresses."""
        buffers = [_BUFFER.unpack_from(_MEMORY, at) for at in self._buffers()]
        raw = tuple([(kind, _MEMORY[dims : dims + _WORD * rank]) for _, _, kind, _, rank, dims in buffers])
        return raw, tuple([buffer[3] for buffer in buffers])

    def addresses(self) -> tuple[int, ...]:
        """Return the addresses of the arrays, those to read and then those to write."""
        return tuple([_BUFFER.unpack_from(_MEMORY, at)[3] for at in self._buffers()])

    def _buffers(self) -> tuple[int, ...]:
        return self._items(_ARGUMENTS) + self._items(_RESULTS)

    def _items(self, of: int) -> tuple[int, ...]:
        return _pointers(self._words[of + 2]).unpack_from(_MEMORY, self._words[of + 4])

    def text(self) -> bytes:
        """Return the one attribute, a string in UTF-8."""
        # Between the types of attributes and their values come their names.
        (at,) = _ADDRESS.unpack_from(_MEMORY, self._words[_ATTRIBUTES + 5])
        address, length = _SPAN.unpack_from(_MEMORY, at)
        text: bytes = _MEMORY[address : address + length]
        return text

    def stream(self) -> int:
        """Return the driver's handle of the stream to work on."""
        try:
            wanted = _spare.pop()
        except IndexError:
            wanted = structs.StreamArguments(_STREAM_SIZE)
        wanted.context = self._words[_CONTEXT]
        if _stream_getter(self._api[-1])(ctypes.byref(wanted)):
            raise UnsupportedError("XLA gives no stream for this call; report it, with the version of JAX")
        stream = wanted.stream or 0
        _spare.append(wanted)
        return stream

    def error(self, raised: BaseException) -> int:
        """Return an exception as an error of XLA's, which then owns it."""
        text = f"{type(raised).__name__}: {raised}".encode(errors="replace")
        code = _INVALID_ARGUMENT if isinstance(raised, GemmuleError) else _INTERNAL
        arguments = structs.ErrorArguments(ctypes.sizeof(structs.ErrorArguments), None, text, code)
        create = structs.Api.from_address(self._words[_API]).error_create
        return int(_CREATE_ERROR(create)(ctypes.byref(arguments)))


# Those that no call uses now.
_spare: list[structs.StreamArguments] = []


@functools.cache
def _pointers(count: int) -> struct.Struct:
    return struct.Struct(f"={count}Q")


@functools.cache
def _stream_getter(address: int) -> Callable[..., Any]:
    return _GET_STREAM(address)


def spoken_minor(include: Any) -> int:
    """Return the minor version to speak: the installed one, at most that known here.

    Parameters
    ----------
    include : path
        The folder of JAX's header files.

    Raises
    ------
    UnsupportedError
        If the header is not there, or the installed major version is another one.
    """
    header = Path(include, "xla", "ffi", "api", "c_api.h")
    if not header.exists():
        raise UnsupportedError(f"{header} is missing, which names the version of XLA's interface; reinstall jaxlib")
    found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header.read_text(encoding="utf-8")))
    if int(found.get("MAJOR", -1)) != MAJOR or int(found.get("MINOR", 0)) < 1:
        version = f"{found.get('MAJOR', '?')}.{found.get('MINOR', '?')}"
        raise UnsupportedError(
            f"XLA's foreign function interface is of version {version}, and gemmule speaks {MAJOR}.1 to "
            f"{MAJOR}.{MINOR}; install another version of JAX"
        )
    return min(int(found["MINOR"]), MINOR)
