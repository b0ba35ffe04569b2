"""Base of the configs of Hopper's GEMM kernels: a tile of D, its stages, and the limits that a CTA sets to both."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from gemmule.core.config import Config
from gemmule.core.dataclass import dataclass
from gemmule.core.errors import ArgumentError
from gemmule.kernels.parts.hopper_facts import WARPGROUP

#: Consumer warpgroups, rows of a wgmma, and threads of a CTA with one producer warpgroup.
CONSUMERS, MMA_M = 2, 64
THREADS = (1 + CONSUMERS) * WARPGROUP
#: Bytes of K of a k-tile, which are the longest rows of TMA's swizzle.
K_BYTES = 128
#: Rows, and 16-bit columns at most, of an epilogue tile, in which TMA loads C and stores D.
EPI_TILE_M, EPI_TILE_N = 64, 64
#: Named barriers of all warpgroups for batches of epilogue tiles.
WRITTEN_BARRIERS = 8
#: Longest side of a TMA box, in elements.
MAX_TMA_BOX = 256
#: Shared memory of a CTA in bytes: the most there is, and the part that barriers get.
MAX_SHARED_BYTES, BARRIER_BYTES = 227 << 10, 1024
#: Limit of mma_tiles_m * tile_n for a warpgroup: 192 float32 accumulators a thread.
MAX_ACC_COLUMNS = 384
#: The same of three consumer warpgroups: ptxas has 128 registers a thread for them, whatever setmaxnreg says.
MAX_ACC_COLUMNS_OF_THREE = 200
#: Columns of a tile for which a warpgroup has registers with promoted accumulators and those of wgmma. Wider tiles are
#: multiplied and promoted in halves, of a multiple of 16 columns.
MAX_PROMOTED_N, HALVED_N = 208, 32
#: The same where one half is promoted while the other is multiplied.
MAX_OVERLAPPED_N = 192
#: The same with a scale for each column of a k-tile.
MAX_SCALED_N = 160
#: Columns of cooperative tiles that are offered with a scale for each column only.
COLUMN_SCALED_N = 144
#: Limit of mma_tiles_m * tile_n of cooperative tiles of more than 128 rows, which are promoted by 64 rows.
MAX_TALL_COLUMNS = 224
#: Clusters that an H100 or H200 SXM runs at once with a CTA on each SM, by CTAs of a cluster.
CLUSTERS = {1: 132, 2: 66, 3: 39, 4: 30, 5: 22, 6: 17, 7: 15, 8: 15}


class Registers(NamedTuple):
    """Registers of a thread (setmaxnreg): the producer warpgroup gives up what the consumers need."""

    producer: int = 40
    consumer: int = 232


REGISTERS = Registers()
#: The same by the consumer warpgroups of a CTA.
REGISTERS_OF = {CONSUMERS: REGISTERS, 3: Registers(32, 160)}


def promoted_in_halves(tile_n: int, *, overlapped: bool = False) -> bool:
    """Return whether the halves of a tile's columns are promoted one after the other, where it is 8-bit floats.

    Parameters
    ----------
    tile_n : int
        Columns of the tile.
    overlapped : bool
        Whether one half is to be promoted while the other is multiplied, where they are wide enough.
    """
    return tile_n > MAX_PROMOTED_N or (overlapped and tile_n > MAX_OVERLAPPED_N // 3 * 2 and tile_n % HALVED_N == 0)


@dataclass(frozen=True)
class HopperConfig(Config):
    """A tile of D and its stages.

    State: `min_stages` and `max_n`, the fewest stages and the most columns that the kernel takes.
    """

    #: tile_m, tile_n: Elements: tile_m a multiple of 64 for each of `warpgroups_per_tile`, tile_n of `tile_n_multiple`.
    tile_m: int = 128
    tile_n: int = 128
    stages: int = 4  #: Pairs of a k-tile of A and one of B in shared memory.

    min_stages: ClassVar[int] = 2
    max_n: ClassVar[int] = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if reason := self._why_not_tile() or self._why_not_cluster():
            raise ArgumentError(f"config {self}: {reason}")
        if self.shared_bytes > MAX_SHARED_BYTES:
            raise ArgumentError(
                f"config {self}: {self.shared_bytes} bytes of shared memory, of at most {MAX_SHARED_BYTES}"
            )

    def _why_not_tile(self) -> str | None:
        """Say what is wrong with the tile and its stages, or None."""
        rows = self.warpgroups_m * MMA_M
        if self.tile_m % rows or self.tile_n % self.tile_n_multiple or self.tile_n > self.max_n:
            return f"tile_m must be a multiple of {rows}, tile_n of {self.tile_n_multiple} up to {self.max_n}"
        if self.tma_box_rows_a > MAX_TMA_BOX:
            return f"a CTA loads {self.tma_box_rows_a} rows of A for a k-tile; a TMA box has {MAX_TMA_BOX} at most"
        if self.mma_tiles_m * self.mma_n > MAX_ACC_COLUMNS:
            return f"mma_tiles_m * tile_n must be at most {MAX_ACC_COLUMNS}, the accumulators that fit into registers"
        if self.stages < self.min_stages:
            return f"stages must be {self.min_stages} or more"
        return None

    def _why_not_cluster(self) -> str | None:
        """Say what is wrong with the cluster, or None: for kernels with clusters."""
        return None

    @property
    def tile_elements(self) -> int:
        return self.tile_m * self.tile_n

    @property
    def tile_n_multiple(self) -> int:
        """The number that tile_n must be a multiple of."""
        return MMA_M

    @property
    def warpgroups_per_tile(self) -> int:
        """Consumer warpgroups that share a tile."""
        return CONSUMERS

    @property
    def warpgroups_n(self) -> int:
        """Warpgroups that share a tile's columns: each has a part of them, and all rows."""
        return 1

    @property
    def warpgroups_m(self) -> int:
        """Warpgroups that share a tile's rows."""
        return self.warpgroups_per_tile // self.warpgroups_n

    @property
    def mma_tiles_m(self) -> int:
        """Tiles of wgmma, 64 rows each, that a warpgroup computes of a CTA tile."""
        return self.tile_m // (self.warpgroups_m * MMA_M)

    @property
    def mma_n(self) -> int:
        """Columns of a tile that a warpgroup computes."""
        return self.tile_n // self.warpgroups_n

    @property
    def tma_box_rows_a(self) -> int:
        """Rows of the TMA box of K-major A: with multicast this CTA's slice of them."""
        return self.tile_m

    @property
    def stages_bytes(self) -> int:
        """Shared memory of a CTA for barriers and stages."""
        return BARRIER_BYTES + (self.tile_m + self.tile_n) * K_BYTES * self.stages

    def partial_sums_bytes(self, cluster_k: int) -> int:
        """Return the shared memory of a CTA for partial sums, where so many CTAs of a cluster split a tile's K."""
        return CONSUMERS * self.mma_tiles_m * MMA_M * self.tile_n * 4 if cluster_k > 1 else 0

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA."""
        return self.stages_bytes


@dataclass(frozen=True)
class WarpScheduleConfig(HopperConfig):
    """A tile of D, its stages, and whether consumer warpgroups are cooperative or ping-pong."""

    #: 1: each consumer warpgroup has tiles of its own, and one writes while the other multiplies; 0: they share one.
    pingpong: int = 0

    switches: ClassVar[frozenset[str]] = frozenset({"pingpong"})

    @property
    def warpgroups_per_tile(self) -> int:
        return 1 if self.pingpong else CONSUMERS


def max_active_clusters(ctas: int, cluster_size: int) -> int:
    """Return the most clusters of so many CTAs that are resident at once on as many SMs as `ctas`."""
    return min(ctas // cluster_size, CLUSTERS[cluster_size])


def why_not_promoted(config: HopperConfig) -> str | None:
    """Say why a warpgroup has no registers for promoted accumulators and those of wgmma, or None where it has."""
    shared = config.warpgroups_per_tile == CONSUMERS
    if config.mma_tiles_m > 1 and not (shared and config.mma_tiles_m * config.tile_n <= MAX_TALL_COLUMNS):
        return (
            f"config {config}: a warpgroup has registers for promoted accumulators of {MMA_M} rows, or, if it shares "
            f"the tile, for mma_tiles_m * tile_n of at most {MAX_TALL_COLUMNS}"
        )
    if config.tile_n > MAX_PROMOTED_N and config.tile_n % HALVED_N:
        return (
            f"config {config}: tiles of more than {MAX_PROMOTED_N} columns are promoted in halves, of a multiple of 16"
        )
    return None
