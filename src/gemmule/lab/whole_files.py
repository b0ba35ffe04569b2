"""Output files: replaced only with force, and atomically."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from gemmule.core.errors import ArgumentError, MissingFileError
from gemmule.files.atomic_file import atomic_write, check_folder


def write_whole(path: Path, content: str | bytes, *, force: bool, inputs: Sequence[Path] = ()) -> None:
    """Write a file atomically: it exists complete or not at all.

    Parameters
    ----------
    path : Path
        Its name.
    content : str or bytes
        Content; text as UTF-8.
    force : bool
        Whether a file of that name may be replaced.
    inputs : sequence of Path
        Files that may not be replaced.

    Raises
    ------
    ArgumentError
        If there is a file of that name that may not be replaced.
    OSError
        If it cannot be written.
    """
    check_target(path, force=force, inputs=inputs)
    with atomic_write(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def check_target(path: Path, *, force: bool, inputs: Sequence[Path] = ()) -> None:
    """Raise ArgumentError or OSError if a file of that name cannot be written."""
    if not path.parent.is_dir():
        raise MissingFileError(errno.ENOENT, "its folder does not exist; make it first", str(path))
    if path.is_dir():
        raise ArgumentError(f"{path}: is a folder; name a file in it")
    if any(
        path.resolve() == one.resolve() or (path.exists() and one.exists() and path.samefile(one)) for one in inputs
    ):
        raise ArgumentError(f"{path}: is one of the files that are read or written besides; name another output")
    if path.exists() and not path.is_file():
        raise ArgumentError(f"{path}: exists and is not a regular file; name another output")
    if path.exists() and not force:
        raise ArgumentError(f"{path}: exists; give force=True to replace it, or another name")
    check_folder(path)
