"""What XLA calls: a product on the host, one on a GPU, and there what was planned before.

Each is a C function that ctypes makes of a Python one.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable

import jax
import numpy as np

import gemmule as gm
from gemmule.core.batch_folding import fold_batch
from gemmule.core.dtype import Precision, dtype_named, numpy_dtype
from gemmule.core.layout import StridedMatrix, compact_strides
from gemmule.core.problem import GemmProblem, mark_own_transpose
from gemmule.dispatch.select import generation, register_clear
from gemmule.runtime.arrays.view import HostArray
from gemmule.runtime.device import device_count
from gemmule.runtime.driver import call, driver
from gemmule.runtime.replay import Queue

from .frame import HANDLER, Buffer, CallFrame, Raw, buffer_of, spoken_minor
from .launches import KEPT, MOST_ALIGNED, alignments_of, kept_queue, queue_of
from .options import Options

#: The name that XLA knows the product by.
TARGET = "gemmule_gemm"


@functools.cache
def register() -> tuple[object, ...]:
    """Tell XLA of the products, for the host and for NVIDIA's GPUs; what is returned must live as long as the process.

    Raises
    ------
    UnsupportedError
        If the installed JAX has another version of the interface.
    """
    minor = spoken_minor(jax.ffi.include_dir())
    handlers = tuple(HANDLER(functools.partial(_answer, work, minor)) for work in (_on_host, _on_gpu, _on_gpu_as_kept))
    for (name, platform), handler in zip(((TARGET, "cpu"), (TARGET, "CUDA"), (KEPT, "CUDA")), handlers, strict=True):
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
    # Where vmap is over c alone, the factors are the same for the whole batch.
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
    # What is decided where A and B are the same memory holds only where they are.
    same = addresses[0] == addresses[1]
    queue = _decided(frame.text(), raw, alignments_of(addresses), _ordinal(addresses), generation(), same)
    queue(addresses, frame.stream())


def _on_gpu_as_kept(frame: CallFrame) -> None:
    addresses = frame.addresses()
    queue = kept_queue(frame.text(), alignments_of(addresses), _ordinal(addresses), generation())
    queue(addresses, frame.stream())


def _ordinal(addresses: tuple[int, ...]) -> int:
    """Return the GPU that arrays are on; of the first one where there is no other, or no memory."""
    if device_count() == 1 or not addresses[-1]:
        return 0
    attribute = driver().CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(call("cuPointerGetAttribute", attribute, addresses[-1]))


@functools.lru_cache(maxsize=2048)
def _decided(
    text: bytes, raw: tuple[Raw, ...], alignments: tuple[int, ...], ordinal: int, began: int, same: bool
) -> Queue:  # fmt: skip
    """Return what queues a product of arrays of those types, shapes and alignments, given their addresses."""
    # What is decided while choices are forgotten is kept under their generation, which nobody asks for any more.
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


def _nothing(addresses: tuple[int, ...], stream: int) -> None:
    """Queue nothing: there is no element to compute."""


register_clear(_decided.cache_clear)


def _matrix(buffer: Buffer, batch: tuple[int, ...], alignment: int) -> StridedMatrix:
    """Describe an array in rows, whose dimensions of extent 1 are repeated over the batch."""
    own = (1,) * (len(batch) + 2 - len(buffer.shape)) + buffer.shape
    *steps, row_stride, col_stride = compact_strides(own)
    over = tuple(0 if extent == 1 else step for extent, step in zip(own[:-2], steps, strict=True))
    return StridedMatrix(dtype_named(buffer.dtype), own[-2], own[-1], row_stride, col_stride, over, alignment)
