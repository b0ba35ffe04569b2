"""Errors of the HDF5 and Zarr libraries for damaged files, as one error that names the file and the reason."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from ...core.errors import FileFormatError, GemmuleError, MemoryLimitError
from ...files.file_errors import file_error

#: Errors of h5py for HDF5's error numbers, and of NumPy for types and shapes that HDF5 returns.
_HDF5_ERRORS = (KeyError, OverflowError, RuntimeError, TypeError, ValueError)
#: Numbers that a request beyond the end of a file has: the address is wrong, not the disk.
_BAD_ADDRESS = (errno.EINVAL, errno.EOVERFLOW)


@contextlib.contextmanager
def hdf5_errors(name: str) -> Iterator[None]:
    """Raise what h5py raises inside the block as an error of the dataset or file called `name`."""
    try:
        yield
    except GemmuleError:
        raise
    except OSError as error:
        if error.errno == errno.EAGAIN:
            raise FileFormatError(
                f"{name}: another process has the file open for writing; close it there, or copy the file"
            ) from error
        if error.errno is None or error.errno in _BAD_ADDRESS:
            raise _unreadable(name, "HDF5", error) from error
        raise file_error(OSError(error.errno, os.strerror(error.errno)), name) from error
    except _HDF5_ERRORS as error:
        raise _unreadable(name, "HDF5", error) from error
    except MemoryError as error:
        raise _too_large(name, error) from error


@contextlib.contextmanager
def zarr_errors(name: str) -> Iterator[None]:
    """Raise what zarr raises inside the block as an error of the array or store called `name`.

    The block holds a call into zarr and nothing else.
    """
    try:
        yield
    except GemmuleError:
        raise
    except MemoryError as error:
        raise _too_large(name, error) from error
    except OSError as error:
        if error.errno is None:
            raise _unreadable(name, "zarr", error) from error
        raise file_error(OSError(error.errno, os.strerror(error.errno)), name) from error
    except Exception as error:
        # The set of classes is open: codecs and stores are plug-ins, and neither zarr nor numcodecs wraps what they
        # raise (zlib.error, RuntimeError of Blosc and Zstandard, struct.error, ZeroDivisionError, AttributeError …).
        raise _unreadable(name, "zarr", error) from error


def reason_of(error: BaseException) -> str:
    """Return the message of an error, in one line; its class where it is empty."""
    # The text of a KeyError is the representation of its argument.
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    return " ".join(str(text).split()) or type(error).__name__


def _unreadable(name: str, library: str, error: BaseException) -> FileFormatError:
    return FileFormatError(f"{name}: {library} cannot read it ({reason_of(error)}); write the file again")


def _too_large(name: str, error: BaseException) -> MemoryLimitError:
    return MemoryLimitError(
        f"{name}: a chunk or a piece does not fit into memory ({reason_of(error)}); give a smaller memory limit, or "
        "write the file again with smaller chunks"
    )
