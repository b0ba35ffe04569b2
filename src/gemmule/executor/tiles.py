"""The protocol of executors that compute tiles of a large product."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


class TileSum(Protocol):
    """The sum of products of one tile of the result; a context manager that frees its memory."""

    def __enter__(self) -> TileSum: ...

    def __exit__(self, *exc: object) -> None: ...

    def add(self, a: Array, b: Array) -> None:
        """Add ``a @ b`` to the sum. `a` is (m, k) and `b` is (k, n), any strides."""

    def finish(self, out: Array, alpha: float | int = 1, beta: float | int = 0, c: Array | None = None) -> None:
        """Write ``alpha * sum + beta * c`` into `out`, (m, n), with one rounding."""


class TileExecutor(Protocol):
    """Computes tiles of a product from NumPy arrays, on any device."""

    @property
    def name(self) -> str:
        """``cpu``, ``gpu`` or ``vgpu``."""

    def describe(self) -> str:
        """Return the name of the GPU or of the BLAS library."""

    def tile_bytes(
        self, a_dtype: np.dtype[Any], b_dtype: np.dtype[Any], out_dtype: np.dtype[Any], m: int, n: int, k: int
    ) -> int:
        """Return the host memory in bytes of a sum of (m, k) by (k, n) products, without these and without `into`."""

    def tile_sum(
        self,
        m: int,
        n: int,
        a_dtype: np.dtype[Any],
        b_dtype: np.dtype[Any],
        out_dtype: np.dtype[Any],
        into: Array | None = None,
    ) -> TileSum:
        """Start a sum of products for an (m, n) tile of `out_dtype`.

        `into` is the later `out` of `finish`, if it exists already; the sum may be accumulated in it.
        """
