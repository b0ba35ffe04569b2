"""What XLA calls: a product on the host, and one on a GPU. Each is a C function that ctypes makes of a Python one."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable

import jax
import numpy as np

import gemmule as gm
from gemmule.api.candidates import choose_compiling, run_first_that_compiles
from gemmule.core.dtype import Precision, dtype_named, numpy_dtype
from gemmule.core.layout import StridedMatrix, compact_strides
from gemmule.core.own_transpose import told
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.core.stacking import stacked
from gemmule.dispatch.select import forgets_choices, generation
from gemmule.runtime.arrays.view import HostArray
from gemmule.runtime.device import get_device
from gemmule.runtime.driver import call, driver
from gemmule.runtime.execute import run_kernel
from gemmule.runtime.repeated import Queue, repeated

from .frame import HANDLER, Buffer, CallFrame, spoken_minor
from .options import Options

#: The name that XLA knows the product by.
TARGET = "gemmule_gemm"


@functools.cache
def register() -> tuple[object, ...]:
    """Tell XLA of the product, for the host and for NVIDIA's GPUs; what is returned must live as long as the process.

    Raises
    ------
    UnsupportedError
        If the installed JAX has another version of the interface.
    """
    minor = spoken_minor(jax.ffi.include_dir())
    handlers = tuple(HANDLER(functools.partial(_answer, work, minor)) for work in (_on_host, _on_gpu))
    for platform, handler in zip(("cpu", "CUDA"), handlers, strict=True):
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(handler), platform=platform)
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
    options = Options.parse(frame.text())
    (result,) = frame.results()
    a, b, *rest = (_array(buffer) for buffer in frame.arguments())
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
    (result,) = frame.results()
    arguments = frame.arguments()
    if 0 in result.shape:
        return
    named = {**dict(zip("abc", arguments, strict=False)), "d": result}
    attribute = driver().CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    ordinal = int(call("cuPointerGetAttribute", attribute, result.address))
    described = tuple([(role, x.dtype, x.shape, _alignment(x)) for role, x in named.items()])
    same = named["a"].address == named["b"].address
    queue = _decided(frame.text(), described, ordinal, generation(), same)
    queue(tuple([x.address for x in named.values()]), frame.stream())


def _alignment(buffer: Buffer) -> int:
    return min((buffer.address & -buffer.address) or 256, 256)


@functools.lru_cache(maxsize=2048)
def _decided(
    text: str,
    described: tuple[tuple[str, str, tuple[int, ...], int], ...],
    ordinal: int,
    began: int,
    same: bool = False,
) -> Queue:
    """Return what queues a product of arrays of those types, shapes and alignments, given their addresses.

    `same` says whether A and B begin at one address: what is decided for such holds for no others.
    """
    # What is decided while choices are forgotten is kept under their generation, which nobody asks for any more.
    del began
    options = Options.parse(text)
    *batch, m, n = next(shape for role, _, shape, _ in described if role == "d")
    matrices = {role: _matrix(dtype, shape, tuple(batch), alignment) for role, dtype, shape, alignment in described}
    a = matrices["a"].transposed() if options.transpose_a else matrices["a"]
    b = matrices["b"].transposed() if options.transpose_b else matrices["b"]
    problem = stacked(
        GemmProblem(
            m, n, a.cols, tuple(batch), a, b, matrices.get("c"), matrices["d"], options.alpha, options.beta,
            Precision.parse(options.precision),
        )
    )  # fmt: skip
    problem = told(problem, same)
    device, names = get_device(ordinal), tuple(matrices)
    # Addresses that are as aligned as those to come stand in for them.
    aligned = [(1 << 20) + alignment for *_, alignment in described]
    found: list[Queue] = []

    def decide(choice: Choice) -> None:
        queue = repeated(problem, choice, names, aligned, ordinal)
        found.append(queue or (lambda addresses, stream: run_kernel(
            problem, choice, dict(zip(names, addresses, strict=True)), ordinal, stream
        )))  # fmt: skip

    run_first_that_compiles(problem, choose_compiling(problem, device), device, decide)
    return found[-1]


forgets_choices(_decided.cache_clear)


def _matrix(dtype: str, shape: tuple[int, ...], batch: tuple[int, ...], alignment: int) -> StridedMatrix:
    """Describe an array in rows, whose dimensions of extent 1 are repeated over the batch."""
    own = (1,) * (len(batch) + 2 - len(shape)) + shape
    *steps, row_stride, col_stride = compact_strides(own)
    over = tuple(0 if extent == 1 else step for extent, step in zip(own[:-2], steps, strict=True))
    return StridedMatrix(dtype_named(dtype), own[-2], own[-1], row_stride, col_stride, over, alignment)
