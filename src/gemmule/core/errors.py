"""The error tree: every error that gemmule raises on purpose is a `GemmuleError`.

Each message names the value, the rule that it breaks and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

#: Characters of a value that a message shows.
_MOST_SHOWN = 60


def shown(value: Any) -> str:
    """Return a value as messages show it: in one line, arrays by their type and shape."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape != ():
        return f"<{type(value).__name__} of shape {tuple(shape)}>"
    text = " ".join(repr(value).split())
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


class GemmuleError(Exception):
    """Base of all errors that gemmule raises on purpose."""


class ArgumentError(GemmuleError, ValueError):
    """An argument has a value that the operation does not allow."""


class InputChangedError(ArgumentError):
    """An input was changed while a result was computed from it."""


class CallError(ArgumentError, TypeError):
    """A function has no argument of that name, or one was left out: what Python calls a TypeError."""


class ShapeError(ArgumentError):
    """Shapes do not fit together."""


class DTypeError(GemmuleError, TypeError):
    """An element type is not supported, or two have no common type."""


class OverlapError(ArgumentError):
    """An output shares memory with an input, or with itself."""


class UnsupportedError(GemmuleError):
    """No kernel or executor can take the problem."""


class NoKernelError(UnsupportedError):
    """None of the kernels takes a problem. The message has the reason of the one that takes the most.

    Attributes
    ----------
    refused : tuple of (str, str)
        Every kernel that was asked, by name, and why it does not take the problem; the last takes the most.
    """

    def __init__(self, refused: Iterable[tuple[str, str]]) -> None:
        self.refused = tuple(refused)
        super().__init__(self.refused)

    def __str__(self) -> str:
        if not self.refused:
            return "there is no kernel to take this"
        *others, (name, reason) = self.refused
        if not others:
            return f"{name}: {reason}"
        return f"{name}: {reason} ({len(others)} more kernels refuse it too: `refused` of this error has their reasons)"


class WrongResultError(GemmuleError):
    """A kernel computed something else than it should."""


class CompileError(GemmuleError, RuntimeError):
    """A kernel could not be compiled."""


class CompilerMissingError(CompileError):
    """The kernel compiler (nvidia-cutlass-dsl) is not installed and no cached kernel fits."""


class KernelFailedError(CompileError):
    """The compiler refused a kernel, or gave no code; the message names the kernel and its config."""


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
        """Let the error pass between processes."""
        return type(self), (self.call, self.status, self.detail)


class DeviceMemoryError(DriverError):
    """A GPU has too little free memory. Nothing is broken: with more of it, the same call works."""


class HostMemoryError(GemmuleError, MemoryError):
    """The host has too little free memory for a result, or for what is computed on the way to it."""


class FileFormatError(GemmuleError, ValueError):
    """A file is not what its name or header promises."""


class FileAccessError(GemmuleError, OSError):
    """The system does not open, read or write a file.

    Attributes
    ----------
    errno : int
        The system's number for the reason.
    strerror : str
        Reason and remedy.
    filename : str
        The file as the caller named it.
    """

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class MissingFileError(FileAccessError, FileNotFoundError):
    """A file, or the folder of a new one, is not there."""


class ForbiddenFileError(FileAccessError, PermissionError):
    """A file may not be read or written."""


class MemoryLimitError(GemmuleError, ValueError):
    """A memory limit is too small for the work."""
