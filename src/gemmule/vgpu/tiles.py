"""Tiles of a large product on the virtual GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemmule.core.arch import Arch
from gemmule.core.dtype import Precision, accumulator, dtype_named
from gemmule.core.problem import GemmProblem, contiguous_gemm
from gemmule.core.spec import Choice
from gemmule.executor.tiles import Array

from .arch import device_name, virtual_arch
from .execute import run_kernel

Chooser = Callable[[GemmProblem, Arch], Choice]

# Bytes of the widest element of a matrix to add.
_WIDEST = 16


class VirtualTileExecutor:
    """Computes tiles on the virtual GPU.

    Parameters
    ----------
    choose : callable
        Chooses the kernel of a problem on an architecture.
    precision : Precision
        Type that float32 operands may be rounded to.
    """

    name = "vgpu"

    def __init__(self, choose: Chooser, precision: Precision = Precision.IEEE) -> None:
        self._choose = choose
        self._precision = precision

    def describe(self) -> str:
        """Name the virtual GPU."""
        return device_name()

    def tile_bytes(
        self, a_dtype: np.dtype[Any], b_dtype: np.dtype[Any], out_dtype: np.dtype[Any], m: int, n: int, k: int
    ) -> int:
        """Bound the memory of a tile: its sum, and a second copy of everything in the virtual GPU's memory."""
        total = accumulator(dtype_named(a_dtype.name), dtype_named(b_dtype.name))
        slices = m * k * a_dtype.itemsize + k * n * b_dtype.itemsize
        return 2 * slices + m * n * (3 * total.itemsize + 2 * out_dtype.itemsize + _WIDEST)

    def tile_sum(
        self,
        m: int,
        n: int,
        a_dtype: np.dtype[Any],
        b_dtype: np.dtype[Any],
        out_dtype: np.dtype[Any],
        into: Array | None = None,
    ) -> VirtualTileSum:
        del out_dtype, into
        total = accumulator(dtype_named(a_dtype.name), dtype_named(b_dtype.name))
        return VirtualTileSum(self, np.zeros((m, n), total.numpy()))

    def multiply(
        self,
        a: Array,
        b: Array,
        d: Array,
        alpha: float | int,
        beta: float | int,
        c: Array | None,
        *,
        exact: bool = False,
    ) -> None:
        """Write ``alpha * a @ b + beta * c`` into `d`, contiguous arrays all of them."""
        (m, k), n = a.shape, b.shape[1]
        types = tuple(one.dtype.name for one in (a, b, d, c) if one is not None)
        precision = Precision.IEEE if exact else self._precision
        problem = contiguous_gemm(m, n, k, types, alpha=alpha, beta=0 if c is None else beta, precision=precision)
        choice = self._choose(problem, virtual_arch())
        run_kernel(problem, choice, {"a": a, "b": b, "d": d} | ({"c": c} if c is not None else {}))


class VirtualTileSum:
    """A sum of products in the accumulator's type."""

    def __init__(self, executor: VirtualTileExecutor, total: Array) -> None:
        self._executor = executor
        self._total = total
        self._begun = False

    def __enter__(self) -> VirtualTileSum:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def add(self, a: Array, b: Array) -> None:
        """Add ``a @ b``, at once: the caller may reuse the memory of a and b."""
        addend = self._total if self._begun else None
        self._executor.multiply(_native(a), _native(b), self._total, 1, 1 if self._begun else 0, addend)
        self._begun = True

    def finish(self, out: Array, alpha: float | int = 1, beta: float | int = 0, c: Array | None = None) -> None:
        """Write ``alpha * sum + beta * c`` into `out`: the sum as a column, multiplied by the 1 x 1 matrix [1]."""
        addend = _native(c).reshape(-1, 1) if c is not None and beta != 0 else None
        result = np.empty((out.size, 1), out.dtype.newbyteorder("="))
        one = np.ones((1, 1), self._total.dtype)
        # The sum is not to be rounded as the operands may be.
        self._executor.multiply(self._total.reshape(-1, 1), one, result, alpha, beta, addend, exact=True)
        out[...] = result.reshape(out.shape)


def _native(array: Array) -> Array:
    return np.ascontiguousarray(array, array.dtype.newbyteorder("="))
