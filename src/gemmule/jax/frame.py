"""The structs by which XLA calls a foreign function, read from Python.

They are those of ``xla/ffi/api/c_api.h``, which JAX installs. XLA only ever adds to them within a major version, at the
end of a struct, whose size it gives; what is read here is the same from version 0.1 to 0.4.
"""

from __future__ import annotations

import ctypes
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gemmule.core.errors import DTypeError, GemmuleError, UnsupportedError

#: The newest version of the interface that this was held against: what the handlers say that they speak.
MAJOR, MINOR = 0, 4
_METADATA = 1
_INVALID_ARGUMENT, _INTERNAL = 3, 13
#: XLA's numbers of element types.
_DTYPES = {10: "float16", 11: "float32", 12: "float64", 16: "bfloat16"}


class _Version(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
    )


class _Metadata(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("version", _Version), ("traits", ctypes.c_uint32))


class _Extension(ctypes.Structure):
    """The head of every extension, and what follows it in the one that asks for metadata."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("kind", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("metadata", ctypes.POINTER(_Metadata)),
    )


class _Api(ctypes.Structure):
    """Those of XLA's functions that are called."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("version", _Version),
        ("internal", ctypes.c_void_p),
        ("error_create", ctypes.c_void_p),
        ("error_get_message", ctypes.c_void_p),
        ("error_destroy", ctypes.c_void_p),
        ("handler_register", ctypes.c_void_p),
        ("stream_get", ctypes.c_void_p),
    )


class _List(ctypes.Structure):
    """Arguments, or results."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("types", ctypes.c_void_p),
        ("items", ctypes.POINTER(ctypes.c_void_p)),
    )


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("types", ctypes.c_void_p),
        ("names", ctypes.c_void_p),
        ("items", ctypes.POINTER(ctypes.c_void_p)),
    )


class _Frame(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("api", ctypes.POINTER(_Api)),
        ("context", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("arguments", _List),
        ("results", _List),
        ("attributes", _Attributes),
    )


class _Bytes(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("dtype", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    )


class _ErrorArguments(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
        ("code", ctypes.c_int),
    )


class _StreamArguments(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    )


_CREATE_ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_ErrorArguments))
_GET_STREAM = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_StreamArguments))

#: The type of a handler: it takes a call frame and returns an error of XLA's, or null.
HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


@dataclasses.dataclass(frozen=True)
class Buffer:
    """An array of XLA's, in rows.

    Attributes
    ----------
    address : int
        Where it begins.
    dtype : str
        Its element type.
    shape : tuple of int
        Its extents.
    """

    address: int
    dtype: str
    shape: tuple[int, ...]


class CallFrame:
    """A call by XLA.

    Parameters
    ----------
    address : int
        Where the frame lies.
    minor : int
        The minor version of the interface that is spoken.
    """

    def __init__(self, address: int, minor: int) -> None:
        self._frame = _Frame.from_address(address)
        self._minor = minor

    def answers_metadata(self) -> bool:
        """Say which version of the interface is spoken if that is all that was asked; return whether it was."""
        address = self._frame.extension
        while address:
            extension = _Extension.from_address(address)
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
        frame = self._frame
        api = frame.api.contents
        for name, struct in (
            ("call frame", frame), ("arguments", frame.arguments), ("results", frame.results),
            ("attributes", frame.attributes), ("functions", api),
        ):  # fmt: skip
            if struct.struct_size < ctypes.sizeof(struct):
                raise UnsupportedError(
                    f"XLA's {name} take {struct.struct_size} bytes, and {ctypes.sizeof(struct)} are read of them; "
                    "install another version of JAX"
                )
        if api.version.major != MAJOR:
            raise UnsupportedError(
                f"XLA's foreign function interface is of version {api.version.major}.{api.version.minor}, and gemmule "
                f"speaks {MAJOR}.{MINOR}; install another version of JAX"
            )

    def arguments(self) -> list[Buffer]:
        """Return the arrays to read."""
        return list(_buffers(self._frame.arguments))

    def results(self) -> list[Buffer]:
        """Return the arrays to write."""
        return list(_buffers(self._frame.results))

    def text(self) -> str:
        """Return the one attribute, a string."""
        (address,) = self._frame.attributes.items[: self._frame.attributes.size]
        span = _Bytes.from_address(address)
        return ctypes.string_at(span.address, span.length).decode() if span.length else ""

    def stream(self) -> int:
        """Return the driver's handle of the stream to work on."""
        api = self._frame.api.contents
        wanted = _StreamArguments(ctypes.sizeof(_StreamArguments), None, self._frame.context, None)
        if _GET_STREAM(api.stream_get)(ctypes.byref(wanted)):
            raise UnsupportedError("XLA gives no stream for this call; report it, with the version of JAX")
        return wanted.stream or 0

    def error(self, raised: BaseException) -> int:
        """Return an exception as an error of XLA's, which then owns it."""
        text = f"{type(raised).__name__}: {raised}".encode(errors="replace")
        code = _INVALID_ARGUMENT if isinstance(raised, GemmuleError) else _INTERNAL
        arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, text, code)
        return int(_CREATE_ERROR(self._frame.api.contents.error_create)(ctypes.byref(arguments)))


def _buffers(listed: _List) -> Iterator[Buffer]:
    for address in listed.items[: listed.size]:
        buffer = _Buffer.from_address(address)
        if buffer.dtype not in _DTYPES:
            known = ", ".join(_DTYPES.values())
            raise DTypeError(f"an array has XLA's type number {buffer.dtype}; gemmule.jax takes {known}: convert it")
        yield Buffer(buffer.data or 0, _DTYPES[buffer.dtype], tuple(buffer.dims[: buffer.rank]))


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
