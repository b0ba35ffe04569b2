"""Tiles of a large product on a GPU: slices go up, sums stay there, the finished tile comes down."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from gemmule.core.arch import Arch
from gemmule.core.dtype import DType, Precision, accumulator, dtype_named
from gemmule.core.layout import contiguous
from gemmule.core.problem import GemmProblem, Problem
from gemmule.core.spec import Choice
from gemmule.executor.tiles import Array

from .device import current, get_device
from .driver import call
from .execute import run_kernel
from .memory import DeviceBuffer


class Chooser(Protocol):
    """Chooses the kernel of a problem."""

    def __call__(self, problem: Problem, arch: Arch, /, *, multiprocessors: int, chip: str) -> Choice: ...


# Bytes of the widest element of a matrix to add.
_WIDEST = 8


class GpuTileExecutor:
    """Computes tiles on a GPU.

    Parameters
    ----------
    choose : callable
        Chooses the kernel of a problem for an architecture and a number of multiprocessors.
    ordinal : int
        The GPU.
    precision : Precision
        What float32 products may be rounded to.
    """

    name = "gpu"

    def __init__(self, choose: Chooser, ordinal: int = 0, precision: Precision = Precision.IEEE) -> None:
        self.device = get_device(ordinal)
        self.choose = choose
        self.precision = precision
        with current(ordinal):
            self.stream = int(call("cuStreamCreate", 1))

    def close(self) -> None:
        """Give the stream back."""
        with current(self.device.ordinal):
            call("cuStreamDestroy", self.stream)

    def __enter__(self) -> GpuTileExecutor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def describe(self) -> str:
        """Name the GPU."""
        return self.device.name

    def tile_bytes(
        self, a_dtype: np.dtype[Any], b_dtype: np.dtype[Any], out_dtype: np.dtype[Any], m: int, n: int, k: int
    ) -> int:
        """Bound what a tile takes, of host memory for staging as well as of device memory."""
        total = accumulator(dtype_named(a_dtype.name), dtype_named(b_dtype.name))
        slices = m * k * a_dtype.itemsize + k * n * b_dtype.itemsize
        return slices + m * n * (total.itemsize + out_dtype.itemsize + _WIDEST)

    def tile_sum(
        self,
        m: int,
        n: int,
        a_dtype: np.dtype[Any],
        b_dtype: np.dtype[Any],
        out_dtype: np.dtype[Any],
        into: Array | None = None,
    ) -> GpuTileSum:
        """Start a sum for an (m, n) tile."""
        del out_dtype, into
        return GpuTileSum(self, m, n, dtype_named(a_dtype.name), dtype_named(b_dtype.name))


class GpuTileSum:
    """A sum of products in device memory. The last slice waits, so that a tile of one slice needs no sum at all."""

    def __init__(self, executor: GpuTileExecutor, m: int, n: int, a: DType, b: DType) -> None:
        self._executor = executor
        self._m, self._n = m, n
        self._a, self._b = a, b
        self._total_dtype = accumulator(a, b)
        self._total: DeviceBuffer | None = None
        self._slice: tuple[DeviceBuffer, DeviceBuffer, int] | None = None
        self._buffers: list[DeviceBuffer] = []

    def __enter__(self) -> GpuTileSum:
        return self

    def __exit__(self, *exc: object) -> None:
        for buffer in self._buffers:
            buffer.free()

    def add(self, a: Array, b: Array) -> None:
        """Add ``a @ b``."""
        self._flush()
        self._slice = (self._uploaded(a), self._uploaded(b), a.shape[1])

    def finish(self, out: Array, alpha: float | int = 1, beta: float | int = 0, c: Array | None = None) -> None:
        """Write ``alpha * sum + beta * c`` into `out`."""
        addend = self._uploaded(c) if c is not None and beta != 0 else None
        c_dtype = dtype_named(c.dtype.name) if c is not None else None
        out_dtype = dtype_named(out.dtype.name)
        result = self._buffer(self._m * self._n * out_dtype.itemsize)
        if self._total is None and self._slice is not None:
            a, b, k = self._slice
            self._run(k, a, self._a, b, self._b, result, out_dtype, alpha, beta, addend, c_dtype)
        elif self._total is not None:
            self._flush()
            self._scale(self._total, result, out_dtype, alpha, beta, addend, c_dtype)
        else:
            self._run(0, result, self._a, result, self._b, result, out_dtype, 0, beta, addend, c_dtype)
        direct = out.flags.c_contiguous and out.dtype.isnative
        contiguous_out = out if direct else np.empty(out.shape, out.dtype.newbyteorder("="))
        result.download(contiguous_out)
        if contiguous_out is not out:
            out[...] = contiguous_out

    def _flush(self) -> None:
        """Add the waiting slice to the sum."""
        if self._slice is None:
            return
        a, b, k = self._slice
        addend = self._total
        if self._total is None:
            self._total = self._buffer(self._m * self._n * self._total_dtype.itemsize)
        beta = 0 if addend is None else 1
        total = self._total_dtype
        self._run(k, a, self._a, b, self._b, self._total, total, 1, beta, addend, total if addend else None)
        self._release(a)
        self._release(b)
        self._slice = None

    def _scale(
        self,
        total: DeviceBuffer,
        result: DeviceBuffer,
        out: DType,
        alpha: Any,
        beta: Any,
        c: Any,
        c_dtype: DType | None,
    ) -> None:
        """Scale the sum, a column of m * n elements, as its product with the 1 x 1 matrix [1]."""
        one = self._uploaded(np.ones((1, 1), self._total_dtype.numpy()))
        rows = self._m * self._n
        dtype = self._total_dtype
        # The sum is not to be rounded as the factors may be.
        ieee = Precision.IEEE
        self._run(1, total, dtype, one, dtype, result, out, alpha, beta, c, c_dtype, rows, 1, ieee)

    def _run(
        self,
        k: int,
        a: DeviceBuffer,
        a_dtype: DType,
        b: DeviceBuffer,
        b_dtype: DType,
        d: DeviceBuffer,
        d_dtype: DType,
        alpha: float | int,
        beta: float | int,
        c: DeviceBuffer | None,
        c_dtype: DType | None,
        m: int | None = None,
        n: int | None = None,
        precision: Precision | None = None,
    ) -> None:
        m, n = self._m if m is None else m, self._n if n is None else n
        executor = self._executor
        problem = GemmProblem(
            m=m,
            n=n,
            k=k,
            batch=(),
            a=contiguous(a_dtype, m, k),
            b=contiguous(b_dtype, k, n),
            c=contiguous(c_dtype, m, n) if c is not None and c_dtype is not None else None,
            d=contiguous(d_dtype, m, n),
            alpha=alpha,
            beta=beta if c is not None else 0,
            precision=precision or executor.precision,
        )
        device = executor.device
        choice = executor.choose(problem, device.arch, multiprocessors=device.multiprocessors, chip=device.name)
        pointers = {"a": a.address, "b": b.address, "d": d.address} | ({"c": c.address} if c is not None else {})
        run_kernel(problem, choice, pointers, executor.device.ordinal, executor.stream)

    def _buffer(self, nbytes: int) -> DeviceBuffer:
        buffer = DeviceBuffer(nbytes, self._executor.device.ordinal, self._executor.stream)
        self._buffers.append(buffer)
        return buffer

    def _uploaded(self, array: Array) -> DeviceBuffer:
        buffer = self._buffer(array.nbytes)
        buffer.upload(np.ascontiguousarray(array, array.dtype.newbyteorder("=")))
        return buffer

    def _release(self, buffer: DeviceBuffer) -> None:
        self._buffers.remove(buffer)
        buffer.free()
