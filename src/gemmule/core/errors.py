"""The error tree: every deliberate error is a `GemmuleError`, whose message has the value, the rule and the remedy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

#: Characters of a value that a message shows.
_MOST_SHOWN = 60


def shown(value: Any) -> str:
    """Return a value formatted for messages: in one line, arrays by type and shape."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape != ():
        return f"<{type(value).__name__} of shape {tuple(shape)}>"
    text = " ".join(repr(value).split())
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


class GemmuleError(Exception):
    """Base of all deliberate errors."""


class ArgumentError(GemmuleError, ValueError):
    """An argument has an invalid value."""


class InputChangedError(ArgumentError):
    """An input changed during a computation."""


class ShapeError(ArgumentError):
    """Shapes do not fit together."""


class DTypeError(GemmuleError, TypeError):
    """An element type is not supported, or two have no common type."""


class OverlapError(ArgumentError):
    """An output shares memory with an input, or with itself."""


class UnsupportedError(GemmuleError):
    """No kernel or executor supports the problem."""


class NoKernelError(UnsupportedError):
    """No kernel supports a problem. The message has the reason of the most general kernel.

    Attributes
    ----------
    refused : tuple of (str, str)
        Names and reasons of all kernels, the most general last.
    """

    def __init__(self, refused: Iterable[tuple[str, str]]) -> None:
        self.refused = tuple(refused)
        super().__init__(self.refused)

    def __str__(self) -> str:
        if not self.refused:
            return "there is no kernel for this operation"
        *others, (name, reason) = self.refused
        if not others:
            return f"{name}: {reason}"
        return f"{name}: {reason} ({len(others)} more kernels refuse it too: `refused` of this error has their reasons)"


class WrongResultError(GemmuleError):
    """A kernel computed a wrong result."""


class CompileError(GemmuleError, RuntimeError):
    """A kernel could not be compiled."""


class CompilerMissingError(CompileError):
    """The kernel compiler (nvidia-cutlass-dsl) is not installed, and the kernel is not cached."""


class KernelFailedError(CompileError):
    """The compiler rejected a kernel, or returned no code; the message has the kernel and its config."""


class DriverError(GemmuleError, RuntimeError):
    """A call to the CUDA driver failed.

    Attributes
    ----------
    call : str
        Name of the driver function.
    status : str
        The driver's name for the error, e.g. ``CUDA_ERROR_OUT_OF_MEMORY``.
    """

    def __init__(self, call: str, status: str, detail: str) -> None:
        super().__init__(f"{call} failed with {status}: {detail}")
        self.call = call
        self.status = status
        self.detail = detail

    def __reduce__(self) -> tuple[type[DriverError], tuple[str, str, str]]:
        """Pickle by the three arguments."""
        return type(self), (self.call, self.status, self.detail)


class DeviceMemoryError(DriverError):
    """A GPU has too little free memory. The context stays valid."""


class HostMemoryError(GemmuleError, MemoryError):
    """The host has too little free memory for a result or its intermediates."""


class FileFormatError(GemmuleError, ValueError):
    """A file's content does not match its name or header."""


class FileAccessError(GemmuleError, OSError):
    """A file could not be opened, read or written.

    Attributes
    ----------
    errno : int
        The system's error number.
    strerror : str
        Reason and remedy.
    filename : str
        The file as the caller named it.
    """

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class MissingFileError(FileAccessError, FileNotFoundError):
    """A file, or the folder of a new one, does not exist."""


class ForbiddenFileError(FileAccessError, PermissionError):
    """A file must not be read or written."""


class MemoryLimitError(GemmuleError, ValueError):
    """A memory limit is too small for the work.

    Attributes
    ----------
    least : int or None
        Smallest sufficient value of the argument `memory`, in bytes; None where another limit is too small.
    """

    def __init__(self, message: str, least: int | None = None) -> None:
        super().__init__(message)
        self.least = least
