"""Files that are read whole or replaced: regular ones only.

Opening a named pipe waits until it is written to; replacing a device takes it away from the whole system.
"""

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
    """Refuse a path that is to be read as `what`, e.g. ``a record file``, and is no regular file.

    Raises
    ------
    FileFormatError
        If it is something else.
    OSError
        If there is nothing, or the system does not say what it is.
    """
    kind = _kind(path)
    if kind is not None:
        remedy = "name a file in it" if kind == "a folder" else "copy its content to a file, and name that"
        raise FileFormatError(f"{os.fspath(path)}: is {kind}; {what} is a regular file; {remedy}")


def check_replaceable(path: str | os.PathLike[str]) -> None:
    """Refuse the name of an output that something else than a regular file has.

    Raises
    ------
    ArgumentError
        If so.
    FileAccessError
        If the system does not say what it is.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), errors_name(os.fspath(path), written=True):
        kind = _kind(path)
        if kind is not None:
            remedy = "name a file in it" if kind == "a folder" else "name another file"
            raise ArgumentError(f"{os.fspath(path)}: is {kind}; an output replaces regular files only; {remedy}")


def _kind(path: str | os.PathLike[str]) -> str | None:
    """Return what else than a regular file it is."""
    mode = os.stat(path).st_mode
    return next((name for test, name in _KINDS if test(mode)), None)
