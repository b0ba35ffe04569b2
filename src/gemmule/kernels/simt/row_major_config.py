"""Tiles of the kernels for row-major matrices of one type."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from typing import ClassVar

from gemmule.core.errors import ArgumentError
from gemmule.core.spec import Config

#: Threads that a CTA may have.
MAX_THREADS = 1024
#: Bytes of shared memory that a CTA may have on any architecture.
MAX_SHARED_BYTES = 227 << 10


class RowMajorConfig(Config):
    """Base of the configs: tile, threads, shared memory and grid."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threads > MAX_THREADS:
            raise ArgumentError(f"config {self}: {self.threads} threads are more than the {MAX_THREADS} of a CTA")
        if self.shared_bytes > MAX_SHARED_BYTES:
            raise ArgumentError(
                f"config {self}: {self.shared_bytes} bytes of shared memory, of at most {MAX_SHARED_BYTES}"
            )

    @property
    @abstractmethod
    def tile(self) -> tuple[int, int, int]:
        """Rows and columns of C that a CTA computes, and the depth of its k-tiles."""

    @property
    @abstractmethod
    def threads(self) -> int:
        """Threads of a CTA."""

    @property
    def outputs(self) -> int:
        return self.tile[0] * self.tile[1]

    @property
    def divides(self) -> tuple[int, int, int]:
        """Extents that must divide M, N and K for the kernel without predicates: the tile."""
        return self.tile

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA."""
        return 0

    def grid(self, m: int, n: int) -> tuple[int, int, int]:
        """Return the CTAs for an (m, n) result, consecutive ones along a row of C."""
        tile_m, tile_n, _ = self.tile
        return (-(-n // tile_n), -(-m // tile_m), 1)


@dataclasses.dataclass(frozen=True)
class ThreadBlockConfig(RowMajorConfig):
    """Threads of a CTA, one for each element of its block of C.

    Attributes
    ----------
    block_m, block_n : int
        Rows and columns of the block.
    """

    block_m: int = 32
    block_n: int = 32

    @property
    def tile(self) -> tuple[int, int, int]:
        return (self.block_m, self.block_n, 1)

    @property
    def threads(self) -> int:
        return self.block_m * self.block_n


@dataclasses.dataclass(frozen=True)
class ThreadTileConfig(RowMajorConfig):
    """Tile of C that a CTA computes, and the thread tile.

    Attributes
    ----------
    tile_m, tile_n, tile_k : int
        Elements.
    thread_m, thread_n : int
        Rows and columns of C that a thread computes.
    """

    tile_m: int = 128
    tile_n: int = 128
    tile_k: int = 8
    thread_m: int = 8
    thread_n: int = 8

    #: Elements of the vectors that a thread copies or writes, and the fields that are multiples of it.
    vector: ClassVar[int] = 1
    in_vectors: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tile_m % self.thread_m or self.tile_n % self.thread_n:
            raise ArgumentError(f"config {self}: thread_m must divide tile_m, and thread_n tile_n")
        for name in self.in_vectors:
            if getattr(self, name) % self.vector:
                raise ArgumentError(
                    f"config {self}: {name} must be a multiple of {self.vector}, the elements of a vector"
                )
        copied = self.vector * self.threads
        if any(side * self.tile_k % copied for side in self.copied_sides):
            raise ArgumentError(
                f"config {self}: a k-tile must be a multiple of {copied} elements, {self.vector} a thread"
            )

    @property
    def tile(self) -> tuple[int, int, int]:
        return (self.tile_m, self.tile_n, self.tile_k)

    @property
    def threads(self) -> int:
        return (self.tile_m // self.thread_m) * (self.tile_n // self.thread_n)

    @property
    def copied_sides(self) -> tuple[int, ...]:
        """Rows of the k-tiles that all threads copy together, each the same number of vectors."""
        return (self.tile_m, self.tile_n)

    @property
    def k_tile_elements(self) -> int:
        """Elements of a k-tile of A and one of B."""
        return (self.tile_m + self.tile_n) * self.tile_k
