"""Files that are written atomically."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from .file_errors import errors_name

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def check_folder(path: Path) -> None:
    """Raise FileAccessError, before long work, if the folder of a new file takes none."""
    # Calls that only read a setting or the cache need not import it.
    import tempfile

    with errors_name(str(path), written=True), tempfile.TemporaryFile(dir=path.parent):
        pass


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces `path` at the end of the block, and is removed if the block fails.

    Processes may write one path concurrently: readers see one complete file. Errors are `FileAccessError` of `path`.
    """
    # Not by `tempfile`, whose files are this user's alone: for others, the umask would have to be set, for all threads.
    partial = path.with_name(f"{path.stem}{os.urandom(8).hex()}.partial")
    with errors_name(str(path), written=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(partial, _FLAGS, 0o666)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
