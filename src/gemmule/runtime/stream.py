"""Streams as callers hand them over."""

from __future__ import annotations

from typing import Any

from gemmule.core.errors import ArgumentError

#: The legacy default stream, as DLPack and the driver number it.
LEGACY_DEFAULT = 1


def stream_handle(stream: Any) -> int:
    """Return the driver's handle of a stream.

    Parameters
    ----------
    stream : int or object
        A handle, or a stream of PyTorch (``cuda_stream``), CuPy (``ptr``) or any library that has ``__cuda_stream__``.

    Raises
    ------
    ArgumentError
        If it is none of these.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    # PyTorch's, which has the protocol too, answers this sooner.
    if type(handle := getattr(stream, "cuda_stream", None)) is int:
        return handle
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        _, handle = protocol() if callable(protocol) else protocol
        return int(handle)
    if isinstance(getattr(stream, "ptr", None), int):
        return int(stream.ptr)
    raise ArgumentError(
        f"stream of type {type(stream).__name__} is not understood; pass an integer handle, or a stream of PyTorch, "
        "CuPy or cuda.core"
    )
