"""A .npy file as the sink of a large product: it appears under its name only when it is complete."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
from collections.abc import Sequence
from types import TracebackType

import numpy as np

from ....core.errors import ArgumentError, FileAccessError
from ....files.file_errors import errors_name, file_error
from ....files.temporary_file import check_still_own, create_own, open_own
from ...journal.temporary_files import appear, check_folder, check_output, signals_held, store_file, store_folder
from ..matrix import AnyDType, Array, MatrixSource
from .npy_header import NAMED_BY_USER, header_bytes
from .npy_source import NpySource


class NpySink:
    """A matrix that is written to a .npy file through a temporary file next to it.

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
    inputs : sequence of MatrixSource
        Matrices that must not be replaced, under any name.
    partial : str, optional
        The temporary file; by default one of a new name.
    again : bool
        Whether `partial` is there already, with tiles from a run before.

    Raises
    ------
    ArgumentError
        If the file exists and `force` is false, or is no regular file.
    OverlapError
        If the file is one of `inputs`.
    FileAccessError
        If the directory cannot be written to or has no space.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        shape: tuple[int, int],
        dtype: AnyDType,
        *,
        force: bool = False,
        inputs: Sequence[MatrixSource] = (),
        partial: str | None = None,
        again: bool = False,
    ) -> None:
        self.name = os.fspath(path)
        self.shape = shape
        self.dtype = dtype
        self.block_shape = (1, 1)
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
        self._partial = partial or os.path.join(folder, f".gemmule-{secrets.token_hex(4)}.partial")
        self._open = False
        try:
            with signals_held():
                self._fd = (open_own if again else create_own)(self._partial)
                self._open = True
            self._reserve()
            with errors_name(self.name, written=True):
                self._put(np.frombuffer(header, np.uint8), 0)
        except BaseException as error:
            if again:
                self.keep()
            else:
                self.abort()
            if isinstance(error, OSError) and not isinstance(error, FileAccessError):
                if isinstance(error, FileNotFoundError):
                    check_folder(self._final, self.name)
                raise file_error(error, self.name, written=True) from error
            raise

    def write(self, row: int, col: int, tile: Array) -> int:
        if tile.size == 0:
            return 0
        raw = tile.view(np.uint8)
        item, cols = self.dtype.itemsize, self.shape[1]
        start = self._data_offset + (row * cols + col) * item
        with errors_name(self.name, written=True):
            if raw.flags.c_contiguous and (tile.shape[1] == cols or len(raw) == 1):
                self._put(raw.reshape(-1), start)
            else:
                for offset, line in zip(itertools.count(start, cols * item), raw, strict=False):
                    count = os.pwrite(self._fd, line, offset)
                    if count != len(line):
                        self._put(line[count:], offset + count)
        return tile.nbytes

    def flush(self) -> None:
        """Return when all that was written is on the disk."""
        with errors_name(self.name, written=True):
            store_file(self._fd)

    def written(self) -> NpySource:
        """Return the written matrix, to be read back before the commit. The caller closes it."""
        return NpySource(self._partial, self.dtype.name if self.dtype.name in NAMED_BY_USER else None)

    def commit(self) -> None:
        """Let the finished file appear under its name, at once and for good."""
        self.flush()
        check_still_own(self._fd, self._partial, self._bytes)
        check_output(self.name, force=self._force)
        # From here on the file is there whole, whatever happens.
        with signals_held():
            try:
                appear(self._partial, self._final, force=self._force)
            except FileExistsError:
                check_output(self.name, force=False)
                raise
            self._close()
        store_folder(os.path.dirname(self._final))

    def keep(self) -> str:
        """Leave the temporary file as it is, and return its name. Does nothing after a commit."""
        if self._open:
            self._close()
        return self._partial

    def abort(self) -> None:
        """Remove the temporary file. Does nothing after a commit."""
        if self._open:
            self._close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._partial)

    def __enter__(self) -> NpySink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _close(self) -> None:
        self._open = False
        # The number may soon be another file's: who writes too late must fail rather than write there.
        descriptor, self._fd = self._fd, -1
        os.close(descriptor)

    def _reserve(self) -> None:
        """Reserve the space of the whole file now, so that it cannot run out later."""
        if os.fstat(self._fd).st_size > self._bytes:
            os.ftruncate(self._fd, self._bytes)
        try:
            os.posix_fallocate(self._fd, 0, self._bytes)
        except AttributeError:  # a system without the call
            os.ftruncate(self._fd, self._bytes)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise FileAccessError(
                    errno.ENOSPC,
                    f"no space for the {self._bytes} bytes of the result; free some or choose another disk",
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
