"""Errors of the operating system with the file's name, the reason and the remedy."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from ..core.errors import FileAccessError, ForbiddenFileError, GemmuleError, MissingFileError

_MISSING = (errno.ENOENT, errno.ENOTDIR)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EDQUOT)


def file_error(error: OSError, name: str, *, written: bool = False) -> FileAccessError:
    """Return the `FileAccessError` of an OSError.

    Parameters
    ----------
    error : OSError
        The system's error.
    name : str
        The file as the caller named it.
    written : bool
        The file was written, not read.
    """
    code = error.errno if error.errno is not None else errno.EIO
    reason = error.strerror or str(error)
    verb = "writing" if written else "reading"
    if code == errno.ELOOP:
        remedy = "correct or remove the link, or name the file itself"
        return FileAccessError(code, f"its path has a symbolic link that leads to itself; {remedy}", name)
    if code in _MISSING and not written and os.path.islink(name):
        remedy = "correct the link, or name the file itself"
        return MissingFileError(code, f"it is a symbolic link to {os.readlink(name)}, which is missing; {remedy}", name)
    if code == errno.ENOTDIR and written:
        return MissingFileError(code, "a part of its path is a file, not a folder; correct the path", name)
    if code in _MISSING and written and not os.path.isdir(os.path.dirname(os.path.realpath(name.partition("::")[0]))):
        return MissingFileError(code, "its folder does not exist; make it first", name)
    if code in _MISSING and written:
        return MissingFileError(code, "its folder does not take new files; name a folder that does", name)
    if code in _MISSING:
        if "://" in name:
            return MissingFileError(code, "it is a URL, and files alone are read; download it first", name)
        relative = "" if os.path.isabs(name) else f", which is looked for in {os.getcwd()}"
        return MissingFileError(code, f"there is no such file; check the name{relative}", name)
    if code in _FORBIDDEN:
        place = "it or its folder" if written else "it"
        other = "name another place" if written else "name another file"
        return ForbiddenFileError(
            code, f"{verb} {place} is not allowed ({reason}); change the permissions, or {other}", name
        )
    if code in _FULL:
        return FileAccessError(code, f"{verb} it failed: {reason}; free some room, or choose another disk", name)
    if code == errno.EFBIG:
        return FileAccessError(code, f"{verb} it failed: {reason}; raise the limit (ulimit -f), or write less", name)
    if code == errno.ENAMETOOLONG:
        return FileAccessError(code, "the name is longer than the file system takes; give a shorter one", name)
    remedy = "choose another disk or folder" if written else "check the disk, or copy the file again"
    return FileAccessError(code, f"{verb} it failed: {reason}; {remedy}", name)


@contextlib.contextmanager
def errors_name(name: str, *, written: bool = False) -> Iterator[None]:
    """Convert an OSError inside the block into a `FileAccessError` of the file `name`."""
    try:
        yield
    except OSError as error:
        if isinstance(error, GemmuleError):
            raise
        raise file_error(error, name, written=written) from error
