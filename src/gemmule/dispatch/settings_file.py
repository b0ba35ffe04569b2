"""JSON files in the user's folder of settings: read by calls, replaced as a whole under a lock."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from gemmule.core.dataclass import dataclass
from gemmule.core.errors import FileFormatError
from gemmule.files.atomic_file import atomic_write, check_folder
from gemmule.files.file_errors import errors_name, file_error
from gemmule.files.regular_file import check_regular

Item = TypeVar("Item")


class LaterVersionError(FileFormatError):
    """A file of a later version of gemmule; it is not changed."""


@dataclass(frozen=True)
class SettingsFormat(Generic[Item]):
    """A format of JSON files, each of which holds a tuple of items."""

    content: str  #: Noun for the items, e.g. ``GPU rates``.
    version: int  #: Version that is read and written.
    #: Returns the items of a file's JSON object; raises ValueError, KeyError, TypeError or the like where it is
    #: malformed.
    parse: Callable[[dict[str, Any]], tuple[Item, ...]]
    warning: type[UserWarning]  #: Class of the warnings about a file that cannot be used.

    @property
    def _beginning(self) -> str:
        return f'{{"format": "gemmule {self.content}"'

    def read(self, path: Path) -> tuple[Item, ...]:
        """Return the items of a file.

        Raises
        ------
        FileFormatError
            If the file has another format or a later version, or is no regular file.
        OSError
            If it cannot be read.
        """
        return self.items(self._bytes(path), str(path))

    def items(self, text: bytes, what: str) -> tuple[Item, ...]:
        """Return the items of a file's bytes; messages begin with `what`.

        Raises
        ------
        FileFormatError
            If the bytes have another format or a later version.
        """
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FileFormatError(f"{what}: not a file of {self.content}: {error}") from error
        if not isinstance(content, dict) or content.get("format") != f"gemmule {self.content}":
            raise FileFormatError(f"{what}: not a file of {self.content}, whose 'format' is 'gemmule {self.content}'")
        if content.get("version") != self.version:
            version = content.get("version")
            raise LaterVersionError(f"{what}: is of version {version}; this gemmule reads {self.version}")
        try:
            return self.parse(content)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise FileFormatError(f"{what}: {self.content} are malformed ({type(error).__name__}: {error})") from error

    def read_or_warn(self, path: Path) -> tuple[Item, ...]:
        """Return the items of a user's file; none, and a warning, where it cannot be used. The file is not changed."""
        try:
            return self.read(path)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except FileFormatError as error:
            warnings.warn(f"{error}; it is not used, and left as it is", self.warning, stacklevel=2)
        except OSError as error:
            warnings.warn(f"{file_error(error, str(path))}; it is not used", self.warning, stacklevel=2)
        return ()

    def read_or_set_aside(self, path: Path) -> tuple[Item, ...]:
        """Return the items of a file that is to be replaced; none where it does not exist.

        A damaged file of this format is renamed, with a warning, and counts as none.

        Raises
        ------
        LaterVersionError
            If it is of a later version.
        FileFormatError
            If it has another format, or is damaged and cannot be renamed.
        OSError
            If it cannot be read: its items are unknown, and must not be lost.
        """
        try:
            text = self._bytes(path)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        if not text:
            return ()
        try:
            return self.items(text, str(path))
        except LaterVersionError as error:
            remedy = "install the gemmule that wrote it, or name another file"
            raise LaterVersionError(f"{error}, and leaves it as it is: {remedy}") from error
        except FileFormatError as error:
            if not text.startswith(self._beginning.encode()):
                raise FileFormatError(f"{error}; it is left as it is: name another file") from error
            target = _target(path)
            aside = next(
                name
                for number in itertools.count()
                if not (name := target.with_name(f"{target.name}.damaged{number or ''}")).exists()
            )
            try:
                target.replace(aside)
            except OSError as stuck:
                remedy = "move it away, or name another file"
                raise FileFormatError(f"{error}, and cannot be set aside: {stuck}; {remedy}") from stuck
            warnings.warn(f"{error}; it was set aside as {aside}", self.warning, stacklevel=2)
        return ()

    def write(self, path: Path, fields: str) -> None:
        """Replace a file, or a link's target, by one with the given JSON fields; readers see the old or the new one."""
        with atomic_write(_target(path)) as file:
            file.write(f'{self._beginning}, "version": {self.version},\n{fields}}}\n'.encode())

    def _bytes(self, path: Path) -> bytes:
        check_regular(path, f"a file of {self.content}")
        return path.read_bytes()


def check_writable(path: Path) -> None:
    """Check, before long work whose result goes into a file, that its folder takes files.

    Raises
    ------
    FileAccessError
        If it does not.
    """
    with errors_name(str(path), written=True), locked(path):
        check_folder(_target(path))


def _target(path: Path) -> Path:
    """Return the file that a link leads to: settings may be links into a folder of their user's."""
    return Path(os.path.realpath(path))


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file. The lock file stays: removed, two processes could lock different files."""
    path = _target(path)
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
