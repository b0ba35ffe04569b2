"""Tiles of products of many small matrices, and their stages in shared memory."""

from __future__ import annotations

from typing import Any

from gemmule.core.config import LARGEST_CLUSTER, Config
from gemmule.core.dataclass import dataclass
from gemmule.core.errors import ArgumentError

#: Bytes of a vector, and vectors of all banks of shared memory.
VECTOR_BYTES, BANK_VECTORS = 16, 8
_BANK_BYTES = VECTOR_BYTES * BANK_VECTORS
#: Rows and columns of a thread tile are multiples of it.
_THREAD = 4
#: k of a k-tile are a multiple of it.
_DEPTH = 8
#: Bytes of accumulators of the largest thread tile.
_MOST_BYTES = 256
#: 32-bit registers of an SM, and those of a thread besides accumulators and fragments, by the bytes of an element.
_REGISTERS, _OTHERS = 65536, {4: 48, 8: 72}
_PARTITIONS = 4


@dataclass(frozen=True)
class BatchedConfig(Config):
    """Tile of each matrix of the result, and the matrices of a CTA.

    Attributes
    ----------
    tile_m, tile_n, tile_k : int
        Elements; powers of two, tile_k at least 8.
    thread_m, thread_n : int
        Elements of a thread tile, powers of two from 4 on.
    matrices : int
        Matrices of the batch of which a CTA computes a tile each; a power of two.
    stages : int
        k-tiles in flight.
    cluster_k : int
        CTAs of a cluster that share the tiles: each takes a part of K, and the first `writers` write a part of the
        rows. 1, or from sm_90 on up to 16.
    """

    tile_m: int = 16
    tile_n: int = 16
    tile_k: int = 16
    thread_m: int = 4
    thread_n: int = 4
    matrices: int = 8
    stages: int = 2
    cluster_k: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        powers = {name: value for name, value in vars(self).items() if name != "stages"}
        if any(value & (value - 1) for value in powers.values()):
            raise ArgumentError(f"config {self}: all but stages must be powers of two")
        if self.tile_m % self.thread_m or self.tile_n % self.thread_n or min(self.thread_m, self.thread_n) < _THREAD:
            raise ArgumentError(
                f"config {self}: a thread tile must divide the tile, and be {_THREAD} x {_THREAD} or more"
            )
        if self.tile_k < _DEPTH:
            raise ArgumentError(f"config {self}: tile_k must be {_DEPTH} or more")
        vectors = self.matrices * self.tile_k * min(self.tile_m, self.tile_n) // _THREAD
        if self.threads % 32 or vectors % self.threads:
            raise ArgumentError(
                f"config {self}: a CTA must have whole warps, and no more threads ({self.threads}) than vectors of a "
                f"k-tile ({vectors})"
            )
        if self.cluster_k > LARGEST_CLUSTER:
            raise ArgumentError(f"config {self}: cluster_k must be at most {LARGEST_CLUSTER}")

    @property
    def tile_elements(self) -> int:
        return self.tile_m * self.tile_n * self.matrices

    @property
    def lanes_m(self) -> int:
        """Threads of a matrix along M."""
        return self.tile_m // self.thread_m

    @property
    def lanes_n(self) -> int:
        """Threads of a matrix along N."""
        return self.tile_n // self.thread_n

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.lanes_m * self.lanes_n * self.matrices

    @property
    def writers(self) -> int:
        """CTAs of the cluster that write: no more than a thread has rows."""
        return min(self.cluster_k, self.thread_m)

    def takes(self, itemsize: int) -> bool:
        """Whether a thread has registers for its accumulators."""
        return self.thread_m * self.thread_n * itemsize <= _MOST_BYTES

    def resident(self, itemsize: int) -> int:
        """Return the CTAs of an SM that the compiler leaves registers for."""
        vector = VECTOR_BYTES // itemsize
        elements = self.thread_m * self.thread_n + (self.thread_m + self.thread_n) * vector
        ctas = max(_REGISTERS // ((elements * itemsize // 4 + _OTHERS[itemsize]) * self.threads), 1)
        # An SM's four partitions have their registers each: warps that fill no partition cost as many.
        few = max(_PARTITIONS * 32 // self.threads, 1)
        return ctas // few * few or ctas

    def stage(self, operand: str, k_major: bool, itemsize: int, wide: int | None = None) -> BatchedStage:
        """Return the stage of ``a`` or of ``b``, with elements of `itemsize` bytes, accumulators of `wide` if more."""
        extent, lanes = (self.tile_m, self.lanes_m) if operand == "a" else (self.tile_n, self.lanes_n)
        return BatchedStage(extent, self.tile_k, k_major, itemsize, lanes, VECTOR_BYTES // (wide or itemsize))

    def why_not_narrow(self, stage: BatchedStage) -> str | None:
        """Say why threads cannot copy and read k-tiles of a type narrower than the accumulators', or None."""
        copies, rest = divmod(stage.length * stage.itemsize, VECTOR_BYTES)
        short = stage.k_major and stage.read_bytes * stage.length % _BANK_BYTES
        if rest or short or self.matrices * stage.lines * copies % self.threads:
            return f"config {self}: its k-tiles of elements of {stage.itemsize} bytes are too small for its copies"
        return None

    def shared_bytes(self, operands: tuple[BatchedStage, BatchedStage], itemsize: int, k: int) -> int:
        """Return the shared memory of a CTA: no more stages than a CTA has k-tiles; `itemsize` is of accumulators."""
        a, b = operands
        stages = min(self.stages, max(-(-k // (self.tile_k * self.cluster_k)), 1))
        partials = self.tile_elements * itemsize if self.cluster_k > 1 else 0
        return max((a.matrix_bytes + b.matrix_bytes) * self.matrices * stages, partials)


@dataclass(frozen=True)
class BatchedStage:
    """A k-tile of one matrix in shared memory, in the order of device memory: vectors of 16 bytes along its lines.

    Lines are rows of a K-major operand, and k of an MN-major one. A thread reads ``vector`` consecutive rows, and
    so do its neighbours: vectors of a K-major operand are swizzled within 128 bytes, so that the lanes of a matrix read
    consecutive ones, and matrices are padded so that those of a warp do not read the same banks. Of elements narrower
    than the accumulators it reads parts of vectors.

    Attributes
    ----------
    extent, depth : int
        Rows (of A, or columns of B) and k.
    k_major : bool
        Whether lines are rows.
    itemsize : int
        Bytes of an element.
    lanes : int
        Threads along the rows.
    vector : int
        Elements that a thread reads at once.
    """

    extent: int
    depth: int
    k_major: bool
    itemsize: int
    lanes: int
    vector: int

    @property
    def read_bytes(self) -> int:
        """Bytes that a thread reads at once."""
        return self.vector * self.itemsize

    @property
    def lines(self) -> int:
        """Lines of the k-tile."""
        return self.extent if self.k_major else self.depth

    @property
    def length(self) -> int:
        """Elements of a line."""
        return self.depth if self.k_major else self.extent

    @property
    def matrix_bytes(self) -> int:
        """Bytes from one matrix to the next."""
        padding = self.lanes if self.lanes < BANK_VECTORS else 0
        return self.extent * self.depth * self.itemsize + padding * VECTOR_BYTES

    def offset(self, line: Any, element: Any) -> Any:
        """Return the offset of an element of a line in bytes."""
        byte = (line * self.length + element) * self.itemsize
        return byte ^ (line // self.vector % BANK_VECTORS * VECTOR_BYTES) if self.k_major else byte

    def row_offset(self, lane: Any) -> tuple[Any, Any]:
        """Return the offset of a lane's first row in bytes, and its swizzle of the low bits of `piece_offset`."""
        if self.k_major:
            return lane * (self.read_bytes * self.length), lane % BANK_VECTORS * VECTOR_BYTES
        return lane * self.read_bytes, 0

    def piece_offset(self, row: int, k: int) -> tuple[int, int]:
        """Return the offset of (row, k) from lane 0's first row, in whole lines of the banks and below.

        The swizzle of `row_offset` is an exclusive or of the latter. `row` counts the rows of a thread.
        """
        group = row // self.vector * self.lanes
        row = group * self.vector + row % self.vector
        line, element = (row, k) if self.k_major else (k, row)
        byte = (line * self.length + element) * self.itemsize
        if not self.k_major:
            return byte, 0
        low = byte % _BANK_BYTES
        return byte - low, low ^ (group % BANK_VECTORS * VECTOR_BYTES)
