"""Tiles of a large product on a GPU: slices go up, sums stay there, the finished tile comes down."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import numpy as np

from gemmule.core.arch import Arch
from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import DType, Precision, accumulator, dtype_named
from gemmule.core.problem import Problem, contiguous_gemm
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
_WIDEST = 16


class GpuTileExecutor:
    """Computes tiles on a GPU.

    Parameters
    ----------
    choose : callable
        Chooses the kernel of a problem for an architecture and a number of SMs.
    precision : Precision
        Type that float32 operands may be rounded to.
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
        del out_dtype, into
        return GpuTileSum(self, m, n, dtype_named(a_dtype.name), dtype_named(b_dtype.name))


@dataclass(frozen=True)
class _Operand:
    """A contiguous matrix in device memory."""

    buffer: DeviceBuffer
    dtype: DType
    rows: int
    cols: int

    def column(self) -> _Operand:
        """Return its elements as one column."""
        return dataclasses.replace(self, rows=self.rows * self.cols, cols=1)


class GpuTileSum:
    """A sum of products in device memory. The last slice waits, so that a tile of one slice needs no sum at all."""

    def __init__(self, executor: GpuTileExecutor, m: int, n: int, a: DType, b: DType) -> None:
        self._executor = executor
        self._m, self._n = m, n
        self._a, self._b = a, b
        self._total_dtype = accumulator(a, b)
        self._total: _Operand | None = None
        self._slice: tuple[_Operand, _Operand] | None = None
        self._buffers: list[DeviceBuffer] = []

    def __enter__(self) -> GpuTileSum:
        return self

    def __exit__(self, *exc: object) -> None:
        for buffer in self._buffers:
            buffer.free()

    def add(self, a: Array, b: Array) -> None:
        self._flush()
        self._slice = self._uploaded(a), self._uploaded(b)

    def finish(self, out: Array, alpha: float | int = 1, beta: float | int = 0, c: Array | None = None) -> None:
        addend = self._uploaded(c) if c is not None and beta != 0 else None
        result = self._new(dtype_named(out.dtype.name))
        if self._total is None and self._slice is not None:
            self._run(*self._slice, result, alpha, beta, addend)
        elif self._total is not None:
            self._flush()
            self._scale(self._total, result, alpha, beta, addend)
        else:
            empty = _Operand(result.buffer, self._a, self._m, 0), _Operand(result.buffer, self._b, 0, self._n)
            self._run(*empty, result, 0, beta, addend)
        direct = out.flags.c_contiguous and out.dtype.isnative
        contiguous_out = out if direct else np.empty(out.shape, out.dtype.newbyteorder("="))
        result.buffer.download(contiguous_out)
        if contiguous_out is not out:
            out[...] = contiguous_out

    def _flush(self) -> None:
        """Add the waiting slice to the sum."""
        if self._slice is None:
            return
        addend = self._total
        if self._total is None:
            self._total = self._new(self._total_dtype)
        self._run(*self._slice, self._total, 1, 0 if addend is None else 1, addend)
        for operand in self._slice:
            self._buffers.remove(operand.buffer)
            operand.buffer.free()
        self._slice = None

    def _scale(self, total: _Operand, result: _Operand, alpha: Any, beta: Any, c: _Operand | None) -> None:
        """Scale the sum, a column of m * n elements, as its product with the 1 x 1 matrix [1]."""
        one = self._uploaded(np.ones((1, 1), self._total_dtype.numpy()))
        # The sum is not to be rounded as the factors may be.
        self._run(total.column(), one, result.column(), alpha, beta, c and c.column(), Precision.IEEE)

    def _run(
        self,
        a: _Operand,
        b: _Operand,
        d: _Operand,
        alpha: float | int,
        beta: float | int,
        c: _Operand | None,
        precision: Precision | None = None,
    ) -> None:
        executor = self._executor
        operands = {"a": a, "b": b, "d": d} | ({"c": c} if c is not None else {})
        types = tuple(operand.dtype.name for operand in operands.values())
        problem = contiguous_gemm(
            d.rows, d.cols, a.cols, types, alpha=alpha, beta=0 if c is None else beta,
            precision=precision or executor.precision,
        )  # fmt: skip
        device = executor.device
        choice = executor.choose(problem, device.arch, multiprocessors=device.multiprocessors, chip=device.name)
        pointers = {name: operand.buffer.address for name, operand in operands.items()}
        run_kernel(problem, choice, pointers, executor.device.ordinal, executor.stream)

    def _new(self, dtype: DType) -> _Operand:
        """Return a tile in new memory."""
        return _Operand(self._buffer(self._m * self._n * dtype.itemsize), dtype, self._m, self._n)

    def _buffer(self, nbytes: int) -> DeviceBuffer:
        buffer = DeviceBuffer(nbytes, self._executor.device.ordinal, self._executor.stream)
        self._buffers.append(buffer)
        return buffer

    def _uploaded(self, array: Array) -> _Operand:
        buffer = self._buffer(array.nbytes)
        buffer.upload(np.ascontiguousarray(array, array.dtype.newbyteorder("=")))
        rows, cols = array.shape
        return _Operand(buffer, dtype_named(array.dtype.name), rows, cols)
