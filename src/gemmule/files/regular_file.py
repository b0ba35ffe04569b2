"""Checks that a file is regular: opening a named pipe blocks, and replacing a device breaks the system."""

from __future__ import annotations

import contextlib
import os
import stat

from ..core.errors import ArgumentError, FileFormatError
from .file_errors import errors_name

_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a folder"),
)


def check_regular(path: str | os.PathLike[str], what: str) -> None:
    """Check that an input is a regular file; `what` names it in messages, e.g. ``a record file``.

    Raises
    ------
    FileFormatError
        If it is no regular file.
    OSError
        If it does not exist, or its status cannot be read.
    """
    kind = _kind(path)
    if kind is not None:
        remedy = "name a file in it" if kind == "a folder" else "copy its content to a file, and name that"
        raise FileFormatError(f"{os.fspath(path)}: is {kind}; {what} is a regular file; {remedy}")


def check_replaceable(path: str | os.PathLike[str]) -> None:
    """Check that an output is a regular file or does not exist.

    Raises
    ------
    ArgumentError
        If it is no regular file.
    FileAccessError
        If its status cannot be read.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), errors_name(os.fspath(path), written=True):
        kind = _kind(path)
        if kind is not None:
            remedy = "name a file in it" if kind == "a folder" else "name another file"
            raise ArgumentError(f"{os.fspath(path)}: is {kind}; an output replaces regular files only; {remedy}")


def _kind(path: str | os.PathLike[str]) -> str | None:
    """Return the kind of a file that is not regular, or None."""
    mode = os.stat(path).st_mode
    return next((name for test, name in _KINDS if test(mode)), None)
