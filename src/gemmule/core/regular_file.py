"""Files that are read whole: regular ones only, since opening a named pipe waits until it is written to."""

from __future__ import annotations

import os
import stat

from .errors import FileFormatError

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
    mode = os.stat(path).st_mode
    kind = next((name for test, name in _KINDS if test(mode)), None)
    if kind is not None:
        remedy = "name a file in it" if kind == "a folder" else "copy its content to a file, and name that"
        raise FileFormatError(f"{os.fspath(path)}: is {kind}; {what} is a regular file; {remedy}")
