"""The configs of the W8A16 kernel."""

from __future__ import annotations

from gemmule.core.config import Config
from gemmule.core.dataclass import dataclass
from gemmule.core.errors import ArgumentError
from gemmule.kernels.hopper.tile_config import BARRIER_BYTES, CONSUMERS, MAX_SHARED_BYTES
from gemmule.kernels.parts.hopper_facts import WARPGROUP

#: Weights of a block, elements of K of a k-tile, and rows of A of a tile.
BLOCK, TILE_K, TILES_N = 128, 128, (8, 16, 32, 64, 128)
#: Threads of a CTA, which has the consumers, a warpgroup that converts rows of A, and one of which a warp loads; and
#: the warps that convert.
THREADS, UPCAST_WARPS = (CONSUMERS + 2) * WARPGROUP, 4
_UPCAST_BYTES = 2
#: Shared memory of a CTA, by the CTAs of an SM.
_SHARED = {1: MAX_SHARED_BYTES, 2: 113 << 10}
_MOST_CLUSTER = 8
#: Accumulators of a tile for which there is memory of their own.
_MAX_OWN_MEMORY = 64 * 128


@dataclass(frozen=True)
class W8A16Config(Config):
    """Rows of a tile, stages, and CTAs that share K."""

    tile_n: int = 16  #: Rows of A, the columns of the instruction: 8, 16, 32, 64 or 128.
    stages: int = 4  #: Pairs of a k-tile of A and one of B in shared memory, as TMA loads them.
    slots: int = 4  #: K-tiles of A there as 16-bit floats.
    #: CTAs of a cluster that share a tile along K: each accumulates a part of K, and writes a part of D.
    cluster_k: int = 1
    residents: int = 2  #: CTAs of an SM, 1 or 2.
    blocks: int = 1  #: Blocks of 128 weights of a tile, 1 or 2.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tile_n not in TILES_N:
            raise ArgumentError(f"config {self}: tile_n must be one of {', '.join(map(str, TILES_N))}")
        if self.cluster_k > _MOST_CLUSTER or self.residents not in _SHARED or self.blocks > 2:
            raise ArgumentError(f"config {self}: cluster_k must be 1 to {_MOST_CLUSTER}, residents and blocks 1 or 2")
        if not self.teams <= self.slots <= self.stages:
            raise ArgumentError(f"config {self}: slots must be {self.teams} at least, and stages as many as slots")
        if reason := self.why_not_rows(1):
            raise ArgumentError(reason)

    @property
    def tile_elements(self) -> int:
        return self.tile_w * self.tile_n

    @property
    def tile_w(self) -> int:
        """Weights of a tile: columns of D."""
        return self.blocks * BLOCK

    @property
    def teams(self) -> int:
        """Teams of warps that convert rows of A, a k-tile each: of larger k-tiles all have a part."""
        return {8: 4, 16: 4, 32: 2}.get(self.tile_n, 1)

    @property
    def own_memory(self) -> bool:
        """Whether the cluster's accumulators have memory of their own; larger ones are written to stages."""
        return self.cluster_k > 1 and self.tile_elements <= _MAX_OWN_MEMORY

    def shared_bytes(self, itemsize: int) -> int:
        """Return a CTA's shared memory: barriers, stages with elements of A of so many bytes, slots, accumulators."""
        stages = (self.tile_w + self.tile_n * itemsize) * TILE_K * self.stages
        sums = self.cluster_k * -(-self.tile_elements // (4 * self.cluster_k)) * 16 if self.own_memory else 0
        return BARRIER_BYTES + stages + self.slots * self.tile_n * TILE_K * _UPCAST_BYTES + -(-sums // 128) * 128

    def why_not_rows(self, itemsize: int) -> str | None:
        """Say why rows of elements of so many bytes do not fit into shared memory, or None where they do."""
        size, most = self.shared_bytes(itemsize), _SHARED[self.residents]
        return f"config {self}: {size} bytes of shared memory, of at most {most}" if size > most else None
