"""Temporary files of predictable names: only files of this user are opened, and links are not followed.

In a folder shared by a group, another user may plant a link under such a name; its target must not be written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile

from ..core.errors import ForbiddenFileError

_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
#: Errors of O_NOFOLLOW at a link: Linux and macOS, FreeBSD, NetBSD.
_IS_LINK = (errno.ELOOP, errno.EMLINK, getattr(errno, "EFTYPE", errno.ELOOP))


def open_own(path: str, flags: int = os.O_RDWR) -> int:
    """Open an existing regular file of this user without hard links.

    Parameters
    ----------
    path : str
        The file. Its folder may be reached through links.
    flags : int
        Flags of os.open. The file is not created or truncated.

    Returns
    -------
    int
        The descriptor.

    Raises
    ------
    FileNotFoundError
        If it does not exist.
    ForbiddenFileError
        If it is another kind of file, or another user's; it is unchanged.
    """
    check_own(path)
    try:
        descriptor = os.open(path, flags | _FLAGS)
    except OSError as error:
        if error.errno in _IS_LINK:
            raise _refusal(path, "is a symbolic link") from None
        raise
    try:
        status = os.fstat(descriptor)
        _check(status, path, folder=False)
        # Without O_NOFOLLOW a link may have been followed; nothing was written yet.
        if not os.path.samestat(status, os.lstat(path)):
            raise _refusal(path, "was replaced while it was opened")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def create_own(path: str, flags: int = os.O_RDWR) -> int:
    """Create a file; a link is not followed, even a dangling one.

    Raises
    ------
    FileExistsError
        If the path exists.
    """
    return os.open(path, flags | _FLAGS | os.O_CREAT | os.O_EXCL, 0o666)


def open_or_create_own(path: str, flags: int = os.O_RDWR) -> int:
    """Open a file of this user, or create it; errors as of `open_own`."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            return open_own(path, flags)
        # Another process may create or delete it between the two.
        with contextlib.suppress(FileExistsError):
            return create_own(path, flags)


def check_own(path: str, *, folder: bool = False) -> None:
    """Check that a path is a regular file (or a folder) of this user, and no link.

    Raises
    ------
    FileNotFoundError
        If it does not exist.
    ForbiddenFileError
        If it is not.
    """
    _check(os.lstat(path), path, folder=folder)


def check_still_own(descriptor: int, path: str, size: int) -> None:
    """Check that an open file is still the one at `path`, has no hard links, and has `size` bytes.

    Raises
    ------
    ForbiddenFileError
        If it is not.
    """
    status = os.fstat(descriptor)
    _check(status, path, folder=False)
    changed = None
    try:
        if not os.path.samestat(status, os.lstat(path)):
            changed = "was replaced"
    except FileNotFoundError:
        changed = "was removed"
    if status.st_size != size:
        changed = f"was made {status.st_size} bytes long instead of {size}"
    if changed:
        text = f"{changed} while the result was written to it, which does not appear; start afresh with resume=False"
        raise ForbiddenFileError(errno.EPERM, text, path)


def _check(status: os.stat_result, path: str, *, folder: bool) -> None:
    what = "folder" if folder else "regular file"
    if stat.S_ISLNK(status.st_mode):
        raise _refusal(path, "is a symbolic link")
    if not (stat.S_ISDIR if folder else stat.S_ISREG)(status.st_mode):
        raise _refusal(path, f"is not a {what}")
    if not folder and status.st_nlink > 1:
        raise _refusal(path, f"is a file with {status.st_nlink} names (hard links)")
    if not hasattr(os, "geteuid") or status.st_uid == os.geteuid():
        return
    if status.st_uid != _owner_of_new_files(os.path.dirname(path)):
        raise _refusal(path, f"belongs to user {status.st_uid}, not {os.geteuid()}")


def _owner_of_new_files(folder: str) -> int | None:
    """Return the owner of new files in a folder, which some file systems map to one user."""
    try:
        with tempfile.TemporaryFile(dir=folder or os.curdir) as probe:
            return os.fstat(probe.fileno()).st_uid
    except OSError:
        return None


def _refusal(path: str, what: str) -> ForbiddenFileError:
    text = f"{what}; a temporary file of gemmule is its user's alone, so this one is left as it is; remove it, or "
    return ForbiddenFileError(errno.EPERM, text + "choose another output", path)
