"""Handlers that XLA calls: a product on the host, one on a GPU, and there what was planned before.

Each is a C function that ctypes makes of a Python one.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import gemmule as gm
from gemmule.api.planning.grouped_device_products import grouped_queue
from gemmule.core.batch_folding import fold_batch
from gemmule.core.dtype import Precision, dtype_named, numpy_dtype
from gemmule.core.errors import ArgumentError
from gemmule.core.grouped_problem import GroupedProblem
from gemmule.core.layout import StridedMatrix, compact_strides
from gemmule.core.problem import GemmProblem, mark_own_transpose
from gemmule.dispatch.choices.choice_cache import generation, register_clear
from gemmule.runtime.arrays.view import HostArray
from gemmule.runtime.device import device_count, ordinal_of_address
from gemmule.runtime.replay import Queue

from .frame import HANDLER, Buffer, CallFrame, Raw, buffer_of, spoken_minor
from .launches import KEPT, MOST_ALIGNED, alignments_of, kept_queue, queue_of
from .options import Options

#: The names that XLA knows the products by.
TARGET, GROUPED = "gemmule_gemm", "gemmule_grouped"


@functools.cache
def register() -> tuple[object, ...]:
    """Tell XLA of the products, for the host and for NVIDIA's GPUs; what is returned must live as long as the process.

    Raises
    ------
    UnsupportedError
        If the installed JAX has another version of the interface.
    """
    minor = spoken_minor(jax.ffi.include_dir())
    work_of = {
        (TARGET, "cpu"): _on_host,
        (TARGET, "CUDA"): _on_gpu,
        (KEPT, "CUDA"): _on_gpu_as_kept,
        (GROUPED, "cpu"): _groups_on_host,
        (GROUPED, "CUDA"): _groups_on_gpu,
    }
    handlers = tuple(HANDLER(functools.partial(_answer, work, minor)) for work in work_of.values())
    for (name, platform), handler in zip(work_of, handlers, strict=True):
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler), platform=platform)
    return handlers


def _answer(work: Callable[[CallFrame], None], minor: int, address: int) -> int | None:
    frame = CallFrame(address, minor)
    if frame.answers_metadata():
        return None
    try:
        frame.check()
        work(frame)
    except BaseException as error:
        # Whatever it is: XLA would take a call that leaves by an exception for one that succeeded.
        return frame.error(error)
    return None


def _on_host(frame: CallFrame) -> None:
    options = Options.parse(frame.text().decode())
    *arguments, result = [buffer_of(raw, address) for raw, address in zip(*frame.arrays(), strict=True)]
    a, b, *rest = map(_array, arguments)
    a = a.swapaxes(-1, -2) if options.transpose_a else a
    b = b.swapaxes(-1, -2) if options.transpose_b else b
    c = np.broadcast_to(rest[0], result.shape) if rest else None
    # With vmap over c alone, the factors are the same for the whole batch.
    a = np.broadcast_to(a, (*result.shape[:-2], *a.shape[-2:]))
    gm.gemm(a, b, c, alpha=options.alpha, beta=options.beta, out=_array(result), precision=options.precision)


def _array(buffer: Buffer) -> HostArray:
    """Return the array itself, not a copy."""
    dtype = numpy_dtype(buffer.dtype)
    if 0 in buffer.shape:
        return np.empty(buffer.shape, dtype)
    memory = memoryview((ctypes.c_char * (math.prod(buffer.shape) * dtype.itemsize)).from_address(buffer.address))
    return np.ndarray(buffer.shape, dtype, memory)


def _on_gpu(frame: CallFrame) -> None:
    raw, addresses = frame.arrays()
    # A decision for A and B in the same memory holds for such pairs only.
    same = addresses[0] == addresses[1]
    queue = _decided(frame.text(), raw, alignments_of(addresses), _ordinal(addresses), generation(), same)
    queue(addresses, frame.stream())


def _on_gpu_as_kept(frame: CallFrame) -> None:
    addresses = frame.addresses()
    queue = kept_queue(frame.text(), alignments_of(addresses), _ordinal(addresses), generation())
    queue(addresses, frame.stream())


def _ordinal(addresses: tuple[int, ...]) -> int:
    """Return the GPU that arrays are on; of the first one where there is no other, or no memory."""
    return 0 if device_count() == 1 or not addresses[-1] else ordinal_of_address(addresses[-1])


@functools.lru_cache(maxsize=2048)
def _decided(
    text: bytes, raw: tuple[Raw, ...], alignments: tuple[int, ...], ordinal: int, began: int, same: bool
) -> Queue:  # fmt: skip
    """Return the queue of a product of arrays of those types, shapes and alignments, given their addresses."""
    # A decision made while choices are discarded is cached under their generation, which is never looked up again.
    del began
    options = Options.parse(text.decode())
    buffers = [buffer_of(one) for one in raw]
    shape = buffers[-1].shape
    if 0 in shape:
        return _nothing
    *batch, m, n = shape
    names = ("a", "b", "c", "d") if len(buffers) == 4 else ("a", "b", "d")
    matrices = {
        name: _matrix(buffer, tuple(batch), alignment)
        for name, buffer, alignment in zip(names, buffers, alignments or (MOST_ALIGNED,) * len(names), strict=True)
    }
    a = matrices["a"].transposed() if options.transpose_a else matrices["a"]
    b = matrices["b"].transposed() if options.transpose_b else matrices["b"]
    problem = fold_batch(
        GemmProblem(
            m, n, a.cols, tuple(batch), a, b, matrices.get("c"), matrices["d"], options.alpha, options.beta,
            Precision.parse(options.precision),
        )
    )  # fmt: skip
    return queue_of(mark_own_transpose(problem, same), names, ordinal)


def _groups_on_host(frame: CallFrame) -> None:
    a, b, ends, result = (
        _array(buffer_of(raw, address)) for raw, address in zip(*frame.arrays(), strict=True)
    )  # fmt: skip
    stored = frame.text().decode()
    check_sizes(ends, a.shape[0])
    gm.grouped_gemm(*as_stored(stored, a, b), ends, out=result)


def check_sizes(ends: HostArray, rows: int) -> None:
    """Refuse sizes of groups, given as their sums, that are no rows.

    Raises
    ------
    ArgumentError
        If one is negative, or there are too many.
    """
    before = 0
    for group, end in enumerate(ends.tolist()):
        if not before <= end <= rows:
            raise ArgumentError(
                f"group_sizes add up to {end} at group_sizes[{group}] and {before} before it; none may be negative, "
                f"and all together at most {rows}, the rows of lhs"
            )
        before = end


def _groups_on_gpu(frame: CallFrame) -> None:
    raw, addresses = frame.arrays()
    queue = _groups_decided(frame.text(), raw, alignments_of(addresses), _ordinal(addresses), generation())
    queue(addresses, frame.stream())


@functools.lru_cache(maxsize=2048)
def _groups_decided(
    text: bytes, raw: tuple[Raw, ...], alignments: tuple[int, ...], ordinal: int, began: int
) -> Queue:  # fmt: skip
    """Return the queue of grouped products of arrays of those types, shapes and alignments, given their addresses."""
    del began
    a, b, ends, result = (buffer_of(one) for one in raw)
    if 0 in result.shape:
        return _nothing
    most = alignments or (MOST_ALIGNED,) * len(raw)
    matrices = [
        _matrix(buffer, buffer.shape[:-2], alignment)
        for buffer, alignment in ((a, most[0]), (b, most[1]), (result, most[3]))
    ]
    first, second = as_stored(text.decode(), *(matrix for matrix in matrices[:2]))
    axis = "k" if len(result.shape) == 3 else "m"
    problem = GroupedProblem(axis, first.rows, second.cols, first.cols, ends.shape[0], first, second, matrices[2])
    return grouped_queue(problem, ordinal, generation())


register_clear(_groups_decided.cache_clear)


def as_stored(text: str, a: Any, b: Any) -> tuple[Any, Any]:
    """Return operands, of which the one that the text names is stored with its last two dimensions exchanged."""

    def exchanged(x: Any) -> Any:
        return x.transposed() if isinstance(x, StridedMatrix) else x.swapaxes(-1, -2)

    return (exchanged(a) if text == "a" else a), (exchanged(b) if text == "b" else b)


def _nothing(addresses: tuple[int, ...], stream: int) -> None:
    """Queue nothing: there is no element to compute."""


register_clear(_decided.cache_clear)


def _matrix(buffer: Buffer, batch: tuple[int, ...], alignment: int) -> StridedMatrix:
    """Describe an array in rows, whose dimensions of extent 1 are repeated over the batch."""
    own = (1,) * (len(batch) + 2 - len(buffer.shape)) + buffer.shape
    *steps, row_stride, col_stride = compact_strides(own)
    over = tuple(0 if extent == 1 else step for extent, step in zip(own[:-2], steps, strict=True))
    return StridedMatrix(dtype_named(buffer.dtype), own[-2], own[-1], row_stride, col_stride, over, alignment)
