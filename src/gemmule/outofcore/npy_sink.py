"""A .npy file as the sink of a large product: it appears under its name only when it is complete."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import signal
import stat
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType, TracebackType

import numpy as np

from ..core.errors import ArgumentError, OverlapError
from .matrix import AnyDType, Array
from .npy_header import NAMED_BY_USER, header_bytes
from .npy_source import NpySource

#: Bytes after which the disk is told to store what it has, so that it works while the next tiles are computed.
SYNC_BYTES = 64 << 20


class NpySink:
    """A matrix that is written to a .npy file through a temporary file beside it.

    Used as a context manager: leaving the block without a commit removes the temporary file.

    Parameters
    ----------
    path : str or path
        Final name of the file.
    shape : tuple of int
        Rows and columns.
    dtype : dtype
        Element type.
    force : bool
        Whether an existing file may be replaced.
    inputs : sequence of NpySource
        Files that must not be replaced, under any name.

    Raises
    ------
    ArgumentError
        If the file exists and `force` is false, or is no regular file.
    OverlapError
        If the file is one of `inputs`.
    OSError
        If the directory cannot be written to or has no room.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        shape: tuple[int, int],
        dtype: AnyDType,
        *,
        force: bool = False,
        inputs: Sequence[NpySource] = (),
    ) -> None:
        self.name = os.fspath(path)
        self.shape = shape
        self.dtype = dtype
        self.grain = (1, 1)
        self.scratch_bytes = 0
        self._final = os.path.realpath(self.name)
        self._force = force
        check_output(self.name, force=force, inputs=inputs)
        header = header_bytes(shape, dtype)
        self._data_offset = len(header)
        self._bytes = len(header) + shape[0] * shape[1] * dtype.itemsize
        if self._bytes >= 2**63:
            raise ArgumentError(
                f"{self.name}: a result of {self._bytes} bytes fits into no file; multiply less at a time"
            )
        folder = os.path.dirname(self._final)
        self._partial = os.path.join(folder, f".gemmule-{secrets.token_hex(4)}.partial")
        self._unsynced = 0
        # The disk works beside the writing of the next tiles.
        self._syncer = ThreadPoolExecutor(1, "gemmule-sync")
        self._sync: Future[None] | None = None
        self._open = False
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
        try:
            with signals_held():
                self._fd = os.open(self._partial, flags, 0o666)
                self._open = True
            self._reserve()
            with self._named():
                self._put(np.frombuffer(header, np.uint8), 0)
        except BaseException as error:
            self.abort()
            if isinstance(error, FileNotFoundError):
                raise FileNotFoundError(errno.ENOENT, "its folder does not exist; make it first", self.name) from None
            raise

    def write(self, row: int, col: int, tile: Array) -> int:
        """Put `tile` at (row, col); return the bytes written."""
        if tile.size == 0:
            return 0
        raw = tile.view(np.uint8)
        item, cols = self.dtype.itemsize, self.shape[1]
        start = self._data_offset + (row * cols + col) * item
        with self._named():
            if raw.flags.c_contiguous and (tile.shape[1] == cols or len(raw) == 1):
                self._put(raw.reshape(-1), start)
            else:
                for index, line in enumerate(raw):
                    self._put(line, start + index * cols * item)
        self._unsynced += tile.nbytes
        if self._unsynced >= SYNC_BYTES and (self._sync is None or self._sync.done()):
            self._synced()
            self._sync = self._syncer.submit(_store, self._fd)
            self._unsynced = 0
        return tile.nbytes

    def flush(self) -> None:
        """Return when all that was written is on the disk."""
        self._synced()
        with self._named():
            _store(self._fd)
        self._unsynced = 0

    def _synced(self) -> None:
        """Wait for the disk where it was told to store, and raise what went wrong."""
        if self._sync is not None:
            with self._named():
                self._sync.result()
            self._sync = None

    def written(self) -> NpySource:
        """Return what was written, to be read back before the commit. The caller closes it."""
        return NpySource(self._partial, self.dtype.name if self.dtype.name in NAMED_BY_USER else None)

    def commit(self) -> None:
        """Let the finished file appear under its name, at once and for good."""
        self.flush()
        check_output(self.name, force=self._force)
        # From here on the file is there whole, whatever happens.
        self._syncer.shutdown()
        with signals_held():
            self._appear()
            self._open = False
            os.close(self._fd)
        folder = os.open(os.path.dirname(self._final), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _appear(self) -> None:
        if not self._force:
            # A link, unlike a rename, does not replace what somebody else has made meanwhile.
            try:
                os.link(self._partial, self._final)
            except FileExistsError:
                check_output(self.name, force=False)
                raise
            except OSError:
                # Not every file system has links.
                os.replace(self._partial, self._final)
            else:
                os.unlink(self._partial)
        else:
            os.replace(self._partial, self._final)

    def abort(self) -> None:
        """Remove the temporary file. Does nothing after a commit."""
        # The file is not closed under a thread that stores it.
        self._syncer.shutdown(cancel_futures=True)
        if self._open:
            self._open = False
            os.close(self._fd)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._partial)

    def __enter__(self) -> NpySink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _reserve(self) -> None:
        """Take the room for the whole file now, so that it cannot run out later."""
        try:
            os.posix_fallocate(self._fd, 0, self._bytes)
        except AttributeError:  # a system without the call
            os.ftruncate(self._fd, self._bytes)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise OSError(
                    errno.ENOSPC,
                    f"no room for the {self._bytes} bytes of the result; free some or choose another disk",
                    self.name,
                ) from None
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            os.ftruncate(self._fd, self._bytes)

    def _put(self, raw: Array, offset: int) -> None:
        view = raw.data
        while view:
            count = os.pwrite(self._fd, view, offset)
            view, offset = view[count:], offset + count

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Let errors name the file that the user asked for."""
        try:
            yield
        except OSError as error:
            text = f"writing it failed: {error.strerror}; nothing was left of it; choose another disk or folder"
            raise OSError(error.errno, text, self.name) from error


def _store(descriptor: int) -> None:
    getattr(os, "fdatasync", os.fsync)(descriptor)


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

    ending = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    handled = [number for number in ending if signal.getsignal(number) not in (None, signal.SIG_IGN)]
    before = {number: signal.signal(number, note) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in waiting:
            signal.raise_signal(number)


def check_output(path: str, *, force: bool, inputs: Sequence[NpySource] = ()) -> None:
    """Refuse an output that is an input, that exists without `force`, or that is no regular file.

    Raises
    ------
    OverlapError
        If it is one of `inputs`, also through links.
    ArgumentError
        If it may not be replaced.
    """
    if not path:
        raise ArgumentError("the output has no name; give one such as C.npy")
    if path == "-":
        raise ArgumentError("-: a result is written tile by tile, which standard output cannot take; name a file")
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return
    for source in inputs:
        if source.identity == (status.st_dev, status.st_ino):
            raise OverlapError(
                f"{path}: is the input {source.name}; an input is not overwritten; choose another output"
            )
    if not stat.S_ISREG(status.st_mode):
        raise ArgumentError(f"{path}: exists and is not a regular file; choose another output")
    if not force:
        raise ArgumentError(f"{path}: exists already; give --force to replace it, or choose another output")
