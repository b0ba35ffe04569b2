"""The report of a streamed product."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmule.core.dataclass import dataclass

from ...core.quantities import flop_rate

if TYPE_CHECKING:
    from ..verify.freivalds import Verdict


@dataclass(frozen=True)
class Report:
    """Time, rate and traffic of a streamed product.

    Attributes
    ----------
    executor, device : str
        Executor, and its description.
    m, n, k : int
        Extents of the product.
    tiles : int
        Tiles of the result.
    tiles_computed : int
        Tiles that this call computed; the others were finished before.
    tile_m, tile_n, tile_k : int
        Size of a tile of C, and of a k-tile along K.
    memory_bytes : int
        Bytes of all buffers.
    seconds : float
        Seconds from the start until everything was stored.
    gflops : float
        Rate over that time.
    bytes_read, bytes_written : int
        Bytes read from and written to files and arrays.
    verified : Verdict or None
        Result of the check, if requested.
    """

    executor: str
    device: str
    m: int
    n: int
    k: int
    tiles: int
    tiles_computed: int
    tile_m: int
    tile_n: int
    tile_k: int
    memory_bytes: int
    seconds: float
    gflops: float
    bytes_read: int
    bytes_written: int
    verified: Verdict | None

    def __str__(self) -> str:
        """Say in a line what was done and how fast."""
        old = self.tiles - self.tiles_computed
        done = f"{self.tiles_computed} of {self.tiles} tiles computed" + (f", {old} there already" if old else "")
        rate = flop_rate(self.gflops * 1e9)
        checked = ""
        if self.verified is not None:
            checked = "; verified" + (f" but for {self.verified.unproved:,} elements" if self.verified.unproved else "")
            if self.verified.not_finite:
                checked += f", {self.verified.not_finite:,} of {self.m * self.n:,} elements are NaN or infinite"
        return (
            f"{self.m} x {self.n} x {self.k} on {self.device}: {self.seconds:.2f} s, {rate}; {done}; "
            f"{self.bytes_read / 1e9:.4g} GB read and {self.bytes_written / 1e9:.4g} GB written{checked}"
        )
