"""Results under way: the hidden names that they have, and how they appear under their own at once."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import shutil
import signal
import stat
import threading
from collections.abc import Iterator, Sequence
from types import FrameType

from ...core.errors import ArgumentError, MissingFileError, OverlapError
from ...files.file_errors import file_error
from ..stores.matrix import MatrixSource

#: Bytes of the final name that the hidden one shows; names have an end of their own, and a file system a longest name.
SHOWN_BYTES = 64
#: Signals that end a process; not every system has all.
_ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def hidden_path(final: str, ending: str) -> str:
    """Return the hidden name in the folder of `final` for what is not finished; the same one every time."""
    folder, name = os.path.split(final)
    raw = os.fsencode(name)
    digest = hashlib.blake2b(raw, digest_size=4).hexdigest()
    # Whole letters, of a name in UTF-8, as the file system's encoding spells them.
    shown = os.fsdecode(raw[:SHOWN_BYTES].decode(errors="ignore").encode())
    return os.path.join(folder, f".gemmule-{shown}-{digest}{ending}")


def check_folder(path: str, name: str) -> None:
    """Refuse a place in a folder that is not there.

    Raises
    ------
    MissingFileError
        If so; it names `name`.
    """
    if not os.path.isdir(os.path.dirname(os.path.realpath(path))):
        raise MissingFileError(errno.ENOENT, "its folder does not exist; make it first", name)


def store_folder(path: str) -> None:
    """Return when the names in a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def store_file(descriptor: int) -> None:
    """Return when the content of a file is on the disk."""
    getattr(os, "fdatasync", os.fsync)(descriptor)


def check_output(
    path: str, *, force: bool, inputs: Sequence[MatrixSource] = (), folder: bool = False, name: str | None = None
) -> None:
    """Refuse an output that is an input, that exists without `force`, or that is no regular file.

    Parameters
    ----------
    path : str
        Name of the output.
    force : bool
        Whether what exists may be replaced.
    inputs : sequence of MatrixSource
        Matrices that must not be replaced, under any name.
    folder : bool
        Whether the output is a folder rather than a file.
    name : str, optional
        Name in messages, if not `path`.

    Raises
    ------
    OverlapError
        If it is one of `inputs`, also through links, or holds one.
    ArgumentError
        If it may not be replaced.
    """
    if not path:
        raise ArgumentError("the output has no name; give one such as C.npy")
    if path == "-":
        raise ArgumentError("-: a result is written tile by tile, which standard output cannot take; name a file")
    name = name or path
    inside = os.path.realpath(path) + os.sep if folder else ""
    for source in inputs if folder else ():
        if source.path and os.path.realpath(source.path).startswith(inside):
            raise OverlapError(f"{name}: holds the input {source.name}; choose another output")
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise file_error(error, name, written=True) from error
    for source in inputs:
        if source.path and os.path.exists(source.path) and os.path.samestat(os.stat(source.path), status):
            raise OverlapError(
                f"{name}: is the input {source.name}; an input is not overwritten; choose another output"
            )
    if not (stat.S_ISDIR if folder else stat.S_ISREG)(status.st_mode):
        what = "a folder, which a Zarr array is" if folder else "a regular file"
        raise ArgumentError(f"{name}: exists and is not {what}; choose another output")
    if not force:
        raise ArgumentError(f"{name}: exists already; give force=True to replace it, or choose another output")


def appear(partial: str, final: str, *, force: bool) -> None:
    """Give the file `partial` its name `final`, in one step; without `force` nothing is replaced.

    Raises
    ------
    FileExistsError
        If `final` is there and `force` is false.
    """
    if not force:
        # A link, unlike a rename, does not replace what somebody else has made meanwhile.
        try:
            os.link(partial, final)
        except FileExistsError:
            raise
        except OSError:
            # Not every file system has links.
            os.replace(partial, final)
        else:
            os.unlink(partial)
    else:
        os.replace(partial, final)


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Let signals that end the process wait until the block is done."""
    if threading.current_thread() is not threading.main_thread():
        # Handlers run in the main thread only.
        yield
        return
    waiting: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        waiting.append(number)

    before = {}
    for number in _ENDING:
        if (handler := signal.getsignal(number)) not in (None, signal.SIG_IGN):
            before[number] = handler
            signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in waiting:
            signal.raise_signal(number)


def appear_folder(partial: str, final: str, *, replace: bool) -> None:
    """Give the folder `partial` its name `final`, in one step; what `replace` allows to go is deleted afterwards.

    Raises
    ------
    FileExistsError
        If something is there and `replace` is false.
    """
    if replace and os.path.lexists(final):
        _exchange(partial, final)
        store_folder(os.path.dirname(final))
        shutil.rmtree(partial, ignore_errors=True)
        return
    try:
        os.rename(partial, final)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise FileExistsError(errno.EEXIST, "exists already", final) from None
    store_folder(os.path.dirname(final))


def _exchange(first: str, second: str) -> None:
    """Let two folders exchange their names, in one step where the system can."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
        if libc.renameat2(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0:
            return
        if ctypes.get_errno() not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), second)
    aside = first + ".old"
    os.rename(second, aside)
    os.rename(first, second)
    os.rename(aside, first)
