"""Tiles of a large product, computed on the host's BLAS."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.errors import ArgumentError, ShapeError
from ..executor.tiles import Array
from . import blas
from .arithmetic import Arithmetic, choose_arithmetic
from .block_product import SMALL_PRODUCT, add_in_blocks
from .product import add_product, scratch_bytes
from .rounding import Scalar, scale_dtype, write, write_bytes

#: Bytes for Python's own objects and the buffers through which NumPy converts.
_SMALL_THINGS = 2**16


class HostTileSum:
    """A sum of products on the host. Made by `HostTileExecutor.tile_sum`; a `TileSum`.

    Parameters
    ----------
    m, n : int
        Shape of the tile.
    arithmetic : Arithmetic
        Arithmetic of the product.
    into : numpy.ndarray, optional
        What `finish` will be given; the sum is built in it if it has the sum's type and contiguous rows.
    """

    def __init__(self, m: int, n: int, arithmetic: Arithmetic, into: Array | None = None) -> None:
        self._shape = (m, n)
        self._arithmetic = arithmetic
        self._empty = self._small = True
        in_place = into is not None and into.dtype == arithmetic.total and into.flags.carray
        self._total = into if in_place else np.empty((m, n), arithmetic.total)

    def __enter__(self) -> HostTileSum:
        return self

    def __exit__(self, *exc: object) -> None:
        self._total = None

    def add(self, a: Array, b: Array) -> None:
        """Add ``a @ b`` to the sum.

        Parameters
        ----------
        a, b : numpy.ndarray, shapes (m, k) and (k, n)
            Factors of the dtypes that the sum was started for, any strides; not needed after the call.

        Raises
        ------
        ShapeError
            If the product does not have the tile's shape.
        ArgumentError
            If the sum was closed.
        """
        total = self._open()
        if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0] or (a.shape[0], b.shape[1]) != self._shape:
            raise ShapeError(f"a is {a.shape} and b is {b.shape}; a tile of {self._shape} needs (m, k) and (k, n)")
        with np.errstate(all="ignore"):
            add_product(total, a, b, self._arithmetic, fresh=self._empty, multiply=add_in_blocks)
        self._small &= total.size * a.shape[1] <= SMALL_PRODUCT
        self._empty = False

    def finish(self, out: Array, alpha: Scalar = 1, beta: Scalar = 0, c: Array | None = None) -> None:
        """Write ``alpha * sum + beta * c`` into `out`, rounded once into its dtype.

        Parameters
        ----------
        out : numpy.ndarray, shape (m, n)
            Output of any dtype of at least the kind of the inputs.
        alpha, beta : int, float or complex
            Scalars; the sum is not read if `alpha` is 0, nor `c` if `beta` is 0.
        c : numpy.ndarray, shape (m, n), optional
            Matrix to add; it may be `out` itself, but overlap it in no other way.

        Raises
        ------
        ShapeError
            If `out` or `c` does not have the tile's shape.
        DTypeError
            If `out` is of a lesser kind than what goes into it.
        ArgumentError
            If the sum was closed, `c` is missing, or a scalar does not suit `out`.
        """
        total = self._open()
        addend = c if beta != 0 else None
        if beta != 0 and c is None:
            raise ArgumentError(f"beta={beta} needs a matrix c to scale; pass c, or beta=0")
        for name, array in (("out", out), ("c", addend)):
            if array is not None and array.shape != self._shape:
                raise ShapeError(f"{name} is {array.shape} but the tile is {self._shape}; pass an array of that shape")
        scale = scale_dtype(total.dtype, out.dtype, alpha, beta, None if addend is None else addend.dtype)
        nothing = alpha == 0 or self._empty
        if out is total and alpha == 1 and addend is None and not nothing:
            return
        write(out, None if nothing else total, alpha, beta, addend, scale, small=self._small)

    def _open(self) -> Array:
        if self._total is None:
            raise ArgumentError("the tile's sum was closed; use it inside its with block")
        return self._total


class HostTileExecutor:
    """Computes tiles of a product with the BLAS that NumPy has; a `TileExecutor`.

    Parameters
    ----------
    tiny : bool
        Tiles for a tiny memory budget, for which `tile_bytes` is a closer bound.
    """

    def __init__(self, *, tiny: bool = False) -> None:
        self._tiny = tiny

    @property
    def name(self) -> str:
        return "cpu"

    def describe(self) -> str:
        """Say which BLAS computes, with kernels for which CPU."""
        return blas.describe()

    def tile_bytes(
        self, a_dtype: np.dtype[Any], b_dtype: np.dtype[Any], out_dtype: np.dtype[Any], m: int, n: int, k: int
    ) -> int:
        """Return an upper bound of the memory that a sum takes beyond the slices and the output.

        The slices of small tiles for a tiny budget are contiguous, in C or Fortran order.

        Parameters
        ----------
        a_dtype, b_dtype, out_dtype : numpy.dtype
            Types of the slices and of the output.
        m, n : int
            Shape of the tile.
        k : int
            Longest slice.

        Returns
        -------
        int
            Bytes: the accumulator where it has another type than the output, and the larger of the scratch of `add` and
            the scratch of `finish`.

        Raises
        ------
        DTypeError
            If a type cannot be multiplied.
        """
        arithmetic = choose_arithmetic(np.dtype(a_dtype), np.dtype(b_dtype), np.dtype(out_dtype))
        small = self._tiny and m * n * k <= SMALL_PRODUCT
        if small and a_dtype == b_dtype == arithmetic.compute == arithmetic.total:
            # Nothing is converted or copied.
            adding = m * n * arithmetic.total.itemsize
        else:
            lookup = not small or any(dtype.name.startswith("float8") for dtype in (a_dtype, b_dtype))
            adding = scratch_bytes(arithmetic, m, n, k, lookup=lookup)
        scratch = max(adding, write_bytes(arithmetic.total, m * n, small=small))
        own = 0 if arithmetic.total == out_dtype else m * n * arithmetic.total.itemsize
        return own + scratch + _SMALL_THINGS

    def tile_sum(
        self,
        m: int,
        n: int,
        a_dtype: np.dtype[Any],
        b_dtype: np.dtype[Any],
        out_dtype: np.dtype[Any],
        into: Array | None = None,
    ) -> HostTileSum:
        """Start a sum of products.

        Parameters
        ----------
        m, n : int
            Shape of the tile.
        a_dtype, b_dtype, out_dtype : numpy.dtype
            Types of the slices that will be added, and of the output that the sum will go into.
        into : numpy.ndarray, shape (m, n), optional
            The existing output, if any; the sum may be built in it.

        Returns
        -------
        HostTileSum
            The sum, for use in a ``with`` block.

        Raises
        ------
        DTypeError
            If a type cannot be multiplied.
        """
        arithmetic = choose_arithmetic(np.dtype(a_dtype), np.dtype(b_dtype), np.dtype(out_dtype))
        return HostTileSum(m, n, arithmetic, into)
