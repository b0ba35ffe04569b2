"""Opens what users name: files, folders, arrays."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ...core.errors import ArgumentError, DTypeError
from ...files.file_errors import errors_name
from .conversion import ConvertedSource
from .formats.hdf5_source import Hdf5Source
from .formats.npy_source import NpySource
from .formats.npy_target import NpyTarget
from .formats.zarr_source import ZarrSource
from .formats.zarr_target import ZarrTarget
from .mapped_source import array_source
from .matrix import AnyDType, MatrixSource
from .target import Target
from .uri import MatrixUri

_NPY_ENDING = ".npy"


def open_source(
    matrix: Any, name: str, dtype: str | None = None, compute_dtype: AnyDType | None = None
) -> MatrixSource:
    """Open a matrix; the caller closes it.

    Parameters
    ----------
    matrix : str, path or array
        A file, folder or URI such as ``data.h5::/group/x``; or an array of NumPy, a zarr.Array or an h5py.Dataset.
    name : str
        Name of an array in messages.
    dtype : str, optional
        Type of raw items, which their store cannot name.
    compute_dtype : dtype, optional
        Type that is multiplied, where it is not the one that is stored.

    Raises
    ------
    FileFormatError, ShapeError, DTypeError
        If it is no matrix of a type that is multiplied.
    UnsupportedError
        If the package that reads it is not installed.
    FileAccessError
        If the file is not there or may not be read.
    """
    with errors_name(os.fspath(matrix) if isinstance(matrix, (str, os.PathLike)) else name):
        source = _open(matrix, name, dtype)
    try:
        if dtype and source.dtype.name != dtype:
            raise DTypeError(
                f"{source.name}: the file has {source.dtype}, not {dtype}; leave its type out, or give another "
                "file's type with a_dtype, b_dtype or c_dtype"
            )
        if compute_dtype is None or compute_dtype == source.dtype:
            return source
        return ConvertedSource(source, compute_dtype)
    except BaseException:
        source.close()
        raise


def _open(matrix: Any, name: str, dtype: str | None) -> MatrixSource:
    if isinstance(matrix, (str, os.PathLike)):
        if not os.fspath(matrix) or "\0" in os.fspath(matrix):
            raise ArgumentError(f"{name}={os.fspath(matrix)!r} names no file; give the name of one, such as A.npy")
        uri = MatrixUri.parse(os.fspath(matrix))
        kind = uri.kind()
        if kind == "zarr":
            return ZarrSource.open(uri.path, uri.inner, dtype)
        if kind == "hdf5":
            return Hdf5Source.open(uri.path, uri.inner, dtype)
        if uri.inner is not None:
            os.stat(uri.path)
            raise ArgumentError(
                f"{uri}: {uri.path} is neither HDF5 nor Zarr and holds one matrix; leave out ::{uri.inner}"
            )
        return NpySource(uri.path, dtype)
    # Whoever has such an object has imported its package.
    package = type(matrix).__module__.partition(".")[0]
    if package == "zarr":
        return ZarrSource(matrix, name, dtype)
    if package == "h5py":
        return Hdf5Source(matrix, name, dtype)
    if isinstance(matrix, np.ndarray):
        return array_source(matrix, name)
    raise ArgumentError(
        f"{name} is of type {type(matrix).__name__}; "
        "give a NumPy array, a zarr.Array, an h5py.Dataset, or the name of a file"
    )


def result_target(
    output: str | os.PathLike[str],
    shape: tuple[int, int],
    dtype: AnyDType,
    chunks: tuple[int, int] | None = None,
    shards: tuple[int, int] | None = None,
) -> Target:
    """Return the place of a result: a .npy file, or a Zarr array.

    Parameters
    ----------
    output : str or path
        Its name; a Zarr array where it ends in ``.zarr`` or names a place in a store.
    shape : tuple of int
        Rows and columns of the result.
    dtype : dtype
        Its element type.
    chunks, shards : tuple of int, optional
        Rows and columns of the chunks and shards of a Zarr array.

    Raises
    ------
    ArgumentError
        If results are not written to such a place.
    """
    if "\0" in os.fspath(output):
        raise ArgumentError(f"out={os.fspath(output)!r} names no file; give the name of one, such as C.npy")
    uri = MatrixUri.parse(os.fspath(output))
    kind = uri.kind()
    if kind == "hdf5":
        raise ArgumentError(
            f"{uri}: results are not written to HDF5, since a file is unreadable if the process is killed while it is "
            "open; write to .npy or .zarr"
        )
    if kind == "zarr":
        return ZarrTarget(uri.path, uri.inner, shape, dtype, chunks, shards)
    if uri.inner is not None:
        raise ArgumentError(f"{uri}: only Zarr takes a matrix at a place in a store; end it in .zarr, or leave out ::")
    if chunks or shards:
        raise ArgumentError(f"{uri}: a .npy file has no chunks or shards; leave them out, or write to .zarr")
    there = os.path.exists(uri.path) and not os.path.isfile(uri.path)
    if uri.path not in ("", "-") and not there and not uri.path.lower().endswith(_NPY_ENDING):
        raise ArgumentError(
            f"{uri}: a result is written to a .npy file or a .zarr store, which its name must say; name it "
            f"{os.path.splitext(uri.path)[0]}.npy, or end it in .zarr"
        )
    return NpyTarget(uri.path)
