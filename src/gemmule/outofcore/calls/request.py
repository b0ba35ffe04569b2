"""A large product as the caller requests it, and the opening of what it names."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import Precision
from gemmule.core.errors import ArgumentError, OverlapError
from gemmule.executor.memory_overlap import overlaps_itself, share_memory

from ..journal.fingerprint import mapped_file
from ..stores.arrays import file_range
from ..stores.conversion import ConjugatedSource
from ..stores.formats.zarr_sink import ZarrArraySink
from ..stores.formats.zarr_source import array_folder, same_array
from ..stores.mapped_sink import array_sink
from ..stores.matrix import AnyDType, MatrixSink, MatrixSource, TransposedSource
from ..stores.opening import open_source
from ..tiles.result_rules import output_dtype


@dataclass(frozen=True)
class Request:
    """A requested product; `gemmule.outofcore.matmul` documents the fields."""

    a: Any
    b: Any
    out: Any
    c: Any = None
    alpha: Any = 1
    beta: Any = 0
    transpose_a: bool = False
    transpose_b: bool = False
    conj_a: bool = False
    conj_b: bool = False
    memory: int | str | None = None
    out_dtype: str | None = None
    compute_dtype: str | None = None
    a_dtype: str | None = None
    b_dtype: str | None = None
    c_dtype: str | None = None
    precision: str | Precision | None = None
    executor: str | None = None
    resume: bool = True
    force: bool = False
    chunks: tuple[int, int] | None = None
    shards: tuple[int, int] | None = None
    verify: bool = False
    scheduler: str | None = None
    device_memory: int | str | None = None
    pinned_memory: int | str | None = None
    strategy: str | None = None
    traced: bool = False
    devices: tuple[int, ...] | None = None
    #: Whether to measure rates again that are stored.
    probe: bool = False

    @property
    def names_file(self) -> bool:
        """Whether the result goes to a file, which is resumed, and not to an array of the caller."""
        return isinstance(self.out, (str, os.PathLike))


@contextlib.contextmanager
def open_inputs(request: Request) -> Iterator[tuple[MatrixSource, MatrixSource, MatrixSource | None]]:
    """Open A and B, converted and transposed as requested, and C."""
    computed = None if request.compute_dtype is None else output_dtype(request.compute_dtype, "compute_dtype")
    with contextlib.ExitStack() as stack:

        def opened(matrix: Any, name: str, dtype: str | None, compute: AnyDType | None = None) -> MatrixSource:
            if dtype is not None:
                # Not with the module: it loads the array libraries' adapters.
                from gemmule.api.validation.rules import dtype_name

                dtype = dtype_name(dtype, f"{name}_dtype")
            return stack.enter_context(contextlib.closing(open_source(matrix, name, dtype, compute)))

        a, b = opened(request.a, "a", request.a_dtype, computed), opened(request.b, "b", request.b_dtype, computed)
        Precision.of_inputs(request.precision, (a.dtype.name, b.dtype.name))
        c = None if request.c is None else opened(request.c, "c", request.c_dtype)
        yield (
            _as_operand(a, conj=request.conj_a, transposed=request.transpose_a),
            _as_operand(b, conj=request.conj_b, transposed=request.transpose_b),
            c,
        )


def _as_operand(source: MatrixSource, *, conj: bool, transposed: bool) -> MatrixSource:
    """Return the conjugate or transpose of a matrix where requested; real ones are their own conjugates."""
    if conj and source.dtype.kind == "c":
        source = ConjugatedSource(source)
    return TransposedSource(source) if transposed else source


def open_sink(request: Request, inputs: Mapping[str, MatrixSource]) -> MatrixSink:
    """Return the array of the caller as a sink; `inputs` are what is multiplied and added, by role.

    Raises
    ------
    OverlapError
        If it is an input, also under another name.
    ArgumentError
        If it is no array that takes a result.
    """
    out = request.out
    if request.chunks or request.shards:
        raise ArgumentError("chunks and shards are for a result that is made; out is an array, which has its own")
    package = type(out).__module__.partition(".")[0]
    if package == "h5py":
        raise ArgumentError(
            "out is an HDF5 dataset; its file is unreadable if the process is killed while it is open; write to .npy, "
            "to .zarr or to an array"
        )
    if package == "zarr":
        _refuse_inputs(request, inputs)
        return ZarrArraySink(out, "out")
    if not isinstance(out, np.ndarray):
        raise ArgumentError(
            f"out is of type {type(out).__name__}; "
            "give a NumPy array, a zarr.Array, or the name of a .npy or .zarr file"
        )
    if not out.flags.writeable:
        raise ArgumentError("out is read-only; pass an array that may be written, or open the map with mode='r+'")
    if overlaps_itself(out):
        raise OverlapError(f"out has strides {out.strides}: elements may share memory; pass an array of its own")
    _refuse_inputs(request, inputs)
    return array_sink(out, "out")


def _refuse_inputs(request: Request, inputs: Mapping[str, MatrixSource]) -> None:
    """Refuse an array as the result that is an input: tiles would be written over what is still to be read."""
    out = request.out
    place = mapped_file(out) if isinstance(out, np.ndarray) else array_folder(out)
    for name, source in inputs.items():
        matrix = getattr(request, name)
        if name == "c" and request.beta == 0:
            continue
        if isinstance(out, np.ndarray) and isinstance(matrix, np.ndarray):
            # Different parts of one file may be read and written.
            if _overlap(out, matrix):
                raise OverlapError(f"out shares memory with {name}; an input is not overwritten; pass another array")
        elif _same_place(place, source.path) or same_array(out, matrix):
            raise OverlapError(f"out is the input {source.name}; an input is not overwritten; pass another array")


def _same_place(first: str | None, second: str | None) -> bool:
    if first is None or second is None:
        return False
    return first == second or (os.path.exists(first) and os.path.exists(second) and os.path.samefile(first, second))


def _overlap(out: np.ndarray[Any, Any], matrix: np.ndarray[Any, Any]) -> bool:
    if share_memory(out, matrix):
        return True
    files = mapped_file(out), mapped_file(matrix)
    if files[0] is None or files[1] is None or not os.path.samefile(files[0], files[1]):
        return False
    first, second = file_range(out), file_range(matrix)
    return first is None or second is None or (first[0] < second[1] and second[0] < first[1])
