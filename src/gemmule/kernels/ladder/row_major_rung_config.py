"""Configs of the ladder's kernels for row-major matrices."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from gemmule.core.config import Config
from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import FLOAT32, FLOAT64
from gemmule.core.errors import ArgumentError

#: Elements of a sector, the least that a cache loads from device memory.
SECTOR = 32 // FLOAT64.itemsize
WARP = 32
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
    def tile_elements(self) -> int:
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


@dataclass(frozen=True)
class ThreadBlockConfig(RowMajorConfig):
    """Threads of a CTA, one for each element of its block of C."""

    #: block_m, block_n: Rows and columns of the block.
    block_m: int = 32
    block_n: int = 32

    @property
    def tile(self) -> tuple[int, int, int]:
        return (self.block_m, self.block_n, 1)

    @property
    def threads(self) -> int:
        return self.block_m * self.block_n


@dataclass(frozen=True)
class ThreadTileConfig(RowMajorConfig):
    """Tile of C that a CTA computes, and the thread tile."""

    #: tile_m, tile_n, tile_k: Elements.
    tile_m: int = 128
    tile_n: int = 128
    tile_k: int = 8
    #: thread_m, thread_n: Rows and columns of C that a thread computes.
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


@dataclass(frozen=True)
class NaiveUncoalescedConfig(ThreadBlockConfig):
    """Threads of a CTA, whose blocks go down the columns of C."""

    def grid(self, m: int, n: int) -> tuple[int, int, int]:
        """Return the CTAs for an (m, n) result: like the threads, consecutive ones along a column of C."""
        return (-(-m // self.block_m), -(-n // self.block_n), 1)


@dataclass(frozen=True)
class SharedTileConfig(RowMajorConfig):
    """Side of the square tiles."""

    side: int = 32  #: Rows, columns and depth: a CTA has side * side threads.

    @property
    def tile(self) -> tuple[int, int, int]:
        return (self.side, self.side, self.side)

    @property
    def threads(self) -> int:
        return self.side * self.side

    @property
    def shared_bytes(self) -> int:
        """One tile of A and one of B."""
        return 2 * self.side * self.side * FLOAT32.itemsize


@dataclass(frozen=True)
class VectorTileConfig(ThreadTileConfig):
    """Tiles of a CTA and a thread of g04, whose float32 elements are copied in vectors of 4.

    State: `stages`, the k-tiles of A and B in shared memory.
    """

    vector: ClassVar[int] = 4
    in_vectors: ClassVar[tuple[str, ...]] = ("tile_k", "thread_n")
    stages: ClassVar[int] = 1

    @property
    def shared_bytes(self) -> int:
        return self.stages * self.k_tile_elements * FLOAT32.itemsize


@dataclass(frozen=True)
class ConflictFreeConfig(VectorTileConfig):
    """As `VectorTileConfig`; a thread's rows are vectors too."""

    in_vectors: ClassVar[tuple[str, ...]] = ("tile_k", "thread_m", "thread_n")


@dataclass(frozen=True)
class DoubleBufferConfig(ConflictFreeConfig):
    """As `ConflictFreeConfig`, with two stages."""

    stages: ClassVar[int] = 2


@dataclass(frozen=True)
class SharedABConfig(ThreadTileConfig):
    """Tiles of a CTA and a thread of d01; the defaults are the paper's."""

    tile_m: int = 32
    tile_n: int = 64
    tile_k: int = 16
    thread_m: int = 4
    thread_n: int = 1

    @property
    def shared_bytes(self) -> int:
        """One k-tile of A and one of B."""
        return self.k_tile_elements * FLOAT64.itemsize


@dataclass(frozen=True)
class BInRegistersConfig(ThreadTileConfig):
    """Tile of C that a CTA computes, and the thread tile."""

    #: tile_m, tile_n, tile_k: Elements.
    tile_m: int = 16
    tile_n: int = 64
    tile_k: int = 16
    #: thread_m, thread_n: Rows and columns of C that a thread computes; the columns are pairs of contiguous ones, or
    #: one.
    thread_m: int = 16
    thread_n: int = 1
    lanes_n: int = 32  #: Lanes of a warp along N; the others are along M.
    ahead: int = 8  #: Rows of B that are loaded into registers ahead; divides tile_k.
    group: int = 64  #: Tiles that CTAs take downwards before they go to the right.

    def __post_init__(self) -> None:
        super().__post_init__()
        if WARP % self.lanes_n or (self.thread_n > 1 and self.thread_n % 2) or self.tile_k % self.ahead:
            raise ArgumentError(
                f"config {self}: lanes_n must divide {WARP}, ahead tile_k, and thread_n must be 1 or a multiple of 2"
            )
        warp_m, warp_n = WARP // self.lanes_n * self.thread_m, self.lanes_n * self.thread_n
        if self.tile_m % warp_m or self.tile_n % warp_n:
            raise ArgumentError(f"config {self}: tile_m must be a multiple of {warp_m}, and tile_n of {warp_n}")
        if self.prefetched and (self.tile_n % SECTOR or self.prefetched % self.threads):
            raise ArgumentError(
                f"config {self}: a k-tile of B must have a multiple of {self.threads} sectors, an equal number for "
                "each thread to prefetch"
            )

    def grid(self, m: int, n: int) -> tuple[int, int, int]:
        """Return the CTAs for an (m, n) result; the kernel orders them itself."""
        return (-(-m // self.tile_m) * -(-n // self.tile_n), 1, 1)

    @property
    def copied_sides(self) -> tuple[int, ...]:
        """A only."""
        return (self.tile_m,)

    @property
    def divides(self) -> tuple[int, int, int]:
        """Rows are always checked: there are few checks, and M need not be a multiple of tile_m."""
        return (1, self.tile_n, self.tile_k)

    @property
    def leading_dimension(self) -> int:
        """Elements from one k to the next in shared memory: a padding of 16 bytes, against bank conflicts."""
        return self.tile_m + 2

    @property
    def prefetched(self) -> int:
        """Sectors of B that a k-tile prefetches into the L1 cache, where several warps read them."""
        shared = self.tile_m > self.thread_m * (WARP // self.lanes_n)
        return self.tile_k * self.tile_n // SECTOR if shared else 0

    @property
    def shared_bytes(self) -> int:
        """Two k-tiles of A, and a place for an element of each prefetched sector of B."""
        return (2 * self.leading_dimension * self.tile_k + self.prefetched) * FLOAT64.itemsize
