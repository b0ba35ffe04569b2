"""The structs by which XLA calls a foreign function.

They are those of ``xla/ffi/api/c_api.h``, which JAX installs. XLA only ever adds to them within a major version, at the
end of a struct, whose size it gives; what is read here is the same from version 0.1 to 0.4.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, ClassVar


class Head(ctypes.Structure):
    """The header of most structs."""

    _fields_: ClassVar[Sequence[tuple[str, Any]]] = (("struct_size", ctypes.c_size_t), ("extension", ctypes.c_void_p))


class Version(Head):
    """The version of the interface."""

    _fields_ = (("major", ctypes.c_int), ("minor", ctypes.c_int))


class Metadata(ctypes.Structure):
    """The metadata of a handler."""

    _fields_ = (("struct_size", ctypes.c_size_t), ("version", Version), ("traits", ctypes.c_uint32))


class Extension(ctypes.Structure):
    """The head of every extension, and the fields after it in the metadata extension."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("kind", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("metadata", ctypes.POINTER(Metadata)),
    )


class Api(Head):
    """Those of XLA's functions that are called."""

    _fields_ = (
        ("version", Version),
        ("internal", ctypes.c_void_p),
        ("error_create", ctypes.c_void_p),
        ("error_get_message", ctypes.c_void_p),
        ("error_destroy", ctypes.c_void_p),
        ("handler_register", ctypes.c_void_p),
        ("stream_get", ctypes.c_void_p),
    )


class List(Head):
    """Arguments, or results."""

    _fields_ = (("size", ctypes.c_int64), ("types", ctypes.c_void_p), ("items", ctypes.POINTER(ctypes.c_void_p)))


class Attributes(Head):
    """The attributes of a call."""

    _fields_ = (
        ("size", ctypes.c_int64),
        ("types", ctypes.c_void_p),
        ("names", ctypes.c_void_p),
        ("items", ctypes.POINTER(ctypes.c_void_p)),
    )


class Frame(Head):
    """A call."""

    _fields_ = (
        ("api", ctypes.POINTER(Api)),
        ("context", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("arguments", List),
        ("results", List),
        ("attributes", Attributes),
    )


class BufferStruct(Head):
    """An array."""

    _fields_ = (
        ("dtype", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    )


class ErrorArguments(Head):
    """The arguments of an error."""

    _fields_ = (("message", ctypes.c_char_p), ("code", ctypes.c_int))


class StreamArguments(Head):
    """The query for the stream of a call, and its answer."""

    _fields_ = (("context", ctypes.c_void_p), ("stream", ctypes.c_void_p))
