"""The protocol of what computes the tiles of a large product."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


class TileSum(Protocol):
    """The sum of products that makes one tile of the result.

    It is used as a context manager: leaving the block gives its memory back.
    """

    def __enter__(self) -> TileSum: ...

    def __exit__(self, *exc: object) -> None: ...

    def add(self, a: Array, b: Array) -> None:
        """Add ``a @ b`` to the sum. `a` is (m, k) and `b` is (k, n), any strides."""

    def finish(self, out: Array, alpha: float | int = 1, beta: float | int = 0, c: Array | None = None) -> None:
        """Write ``alpha * sum + beta * c`` into `out`, (m, n), rounded once into its dtype."""


class TileExecutor(Protocol):
    """Computes tiles of a product from NumPy arrays, wherever it computes."""

    @property
    def name(self) -> str:
        """``host``, ``gpu`` or ``vgpu``."""

    def describe(self) -> str:
        """Say in a few words what computes, e.g. the GPU's or the BLAS library's name."""

    def tile_bytes(
        self, a_dtype: np.dtype[Any], b_dtype: np.dtype[Any], out_dtype: np.dtype[Any], m: int, n: int, k: int
    ) -> int:
        """Host memory in bytes that a sum over an (m, k) and a (k, n) slice takes beyond the slices and the output.

        The output is given when the sum is started.
        """

    def tile_sum(
        self,
        m: int,
        n: int,
        a_dtype: np.dtype[Any],
        b_dtype: np.dtype[Any],
        out_dtype: np.dtype[Any],
        into: Array | None = None,
    ) -> TileSum:
        """Start a sum of products for an (m, n) tile that ends in an output of `out_dtype`.

        `into` is the array that will be given to `finish`, where it is there already: the sum may be built in it.
        """
