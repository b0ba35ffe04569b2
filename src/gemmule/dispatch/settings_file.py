"""Files in the user's folder of settings: read by calls, replaced as a whole under a lock."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from gemmule.core.errors import FileFormatError
from gemmule.files.regular_file import check_regular

Content = TypeVar("Content")


class LaterVersionError(FileFormatError):
    """A file that another version of gemmule wrote: it is left as it is."""


def content(path: Path, what: str) -> bytes:
    """Return the bytes of a file that is read as `what`, e.g. ``a file of rates``.

    Raises
    ------
    FileFormatError
        If it is no regular file.
    OSError
        If it cannot be read.
    """
    check_regular(path, what)
    return path.read_bytes()


def read_or_warn(path: Path, read: Callable[[Path], Content], empty: Content, warning: type[UserWarning]) -> Content:
    """Return what a file holds; `empty`, and a warning, where it cannot be used.

    The file is only read: a name that was given by mistake belongs to somebody else.
    """
    try:
        return read(path)
    except (FileNotFoundError, NotADirectoryError):
        return empty
    except FileFormatError as error:
        warnings.warn(f"{error}; it is not used, and left as it is", warning, stacklevel=3)
    except OSError as error:
        warnings.warn(f"{path} cannot be read: {error}", warning, stacklevel=3)
    return empty


def read_or_set_aside(
    path: Path,
    what: str,
    parse: Callable[[bytes, str], Content],
    beginning: str,
    empty: Content,
    warning: type[UserWarning],
) -> Content:
    """Return what a file holds that is to be replaced; `empty` where there is none, or a damaged one was set aside.

    Parameters
    ----------
    path : Path
        The file.
    what : str
        What such a file is called.
    parse : callable
        Gives what a file's bytes hold; its messages begin with the text that it is given.
    beginning : str
        What such files begin with: only such a one is set aside, under a name that nothing has.
    empty : object
        What no file holds.
    warning : type
        Of the warning that a damaged file was set aside.

    Raises
    ------
    LaterVersionError
        If it is of a later version.
    FileFormatError
        If it is damaged, and is no such file or cannot be set aside.
    OSError
        If it cannot be read: what it holds is not known, and must not be lost.
    """
    try:
        text = content(path, what)
    except (FileNotFoundError, NotADirectoryError):
        return empty
    if not text:
        return empty
    try:
        return parse(text, str(path))
    except LaterVersionError as error:
        remedy = "install the gemmule that wrote it, or name another file"
        raise LaterVersionError(f"{error}, and leaves it as it is: {remedy}") from error
    except FileFormatError as error:
        if not text.startswith(beginning.encode()):
            raise FileFormatError(f"{error}; it is left as it is: name another file") from error
        aside = next(
            name
            for number in itertools.count()
            if not (name := path.with_name(f"{path.name}.damaged{number or ''}")).exists()
        )
        try:
            path.replace(aside)
        except OSError as stuck:
            remedy = "move it away, or name another file"
            raise FileFormatError(f"{error}, and cannot be set aside: {stuck}; {remedy}") from stuck
        warnings.warn(f"{error}; it was set aside as {aside}", warning, stacklevel=3)
    return empty


def write_whole(path: Path, text: str) -> None:
    """Replace a file: readers see the old one or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=path.name, suffix=".partial", delete=False
    ) as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            file.close()
            # A temporary file is its owner's alone; settings are not secret.
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            file.close()
            Path(file.name).unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which lies beside it and stays: a lock that were removed would be two."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("a+b") as file:
        try:
            import fcntl
        except ImportError:  # Windows
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)  # type: ignore[attr-defined, unused-ignore]
            try:
                yield
            finally:
                file.seek(0)
                msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined, unused-ignore]
        else:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(file.fileno(), fcntl.LOCK_UN)
