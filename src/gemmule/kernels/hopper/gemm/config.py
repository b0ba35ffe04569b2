"""Configs of hopper_gemm: their shared memory and limits, and those of a search."""

from __future__ import annotations

import functools
import itertools
import math
from typing import ClassVar

from gemmule.core.dataclass import dataclass
from gemmule.core.errors import ArgumentError
from gemmule.kernels.hopper.tile_config import (
    CONSUMERS,
    EPI_TILE_M,
    K_BYTES,
    MAX_ACC_COLUMNS_OF_THREE,
    MAX_SHARED_BYTES,
    MMA_M,
    REGISTERS_OF,
    WRITTEN_BARRIERS,
    Registers,
    WarpScheduleConfig,
    max_active_clusters,
)
from gemmule.kernels.parts.hopper_facts import SMS, WARPGROUP

#: Search space: wgmma tiles of 64 rows of a CTA tile and whether it is ping-pong, tile_n, and cluster shapes.
_MMA_TILES_M = ((1, 1), (2, 1), (3, 1), (4, 1), (2, 0), (4, 0))
_TILES_N = tuple(range(8, 257, 8))
_CLUSTER_SHAPES = ((1, 1, 1), (2, 1, 1), (1, 2, 1), *((1, 1, k) for k in (2, 3, 4, 5, 6, 7, 8)))
_LEAST_STAGES, _MOST_STAGES = 3, 16
#: Columns from which epilogue tiles of half of them pay instead of narrow ones.
_WIDE = 96
#: Columns of epilogue tiles up to which they are written in batches: of wider ones that took as long or longer.
_NARROW = 16
#: Most epilogue tiles of a batch with a function, which are computed without waiting in between.
_FUSED_BATCH = 4
#: Bytes that rows of epilogue tiles are a multiple of.
_CHUNK_BYTES = 16
#: Most stages of C, whose phases are bits of a number.
_MOST_STAGES_OF_C = 31
#: Bytes of elements of tiles with warpgroups side by side.
SIDE_BY_SIDE_BYTES = 2


@dataclass(frozen=True)
class HopperGemmConfig(WarpScheduleConfig):
    """Tile of D, stages, cluster and schedule of the consumer warpgroups."""

    #: tile_m, tile_n: Elements: tile_m a multiple of 64, tile_n of 8, and at most 256.
    tile_m: int = 128
    tile_n: int = 256
    #: stages, pingpong: As of `WarpScheduleConfig`.
    stages: int = 4
    pingpong: int = 0
    #: cluster_m, cluster_n: CTAs of a cluster along M and N, to which TMA multicasts k-tiles: each loads a slice for
    #: all. A slice of B may begin within the swizzle's pattern of 8 rows, as TMA swizzles by shared memory addresses.
    cluster_m: int = 2
    cluster_n: int = 1
    #: CTAs of a cluster that share a tile along K: each accumulates a part of K, and writes a part of the columns.
    cluster_k: int = 1
    #: 1: the kernel computes the transpose of D, B.T @ A.T; tile_m counts columns of D then, tile_n rows.
    swap_ab: int = 0
    group: int = 8  #: Clusters' tiles that the raster goes down before it goes to the right (CUTLASS: swizzle size).
    ctas: int = SMS  #: CTAs that share all tiles: the SMs of the chip.
    split_k: int = 0  #: 1: so many clusters share a tile along K as all tiles leave, see `schedulers.split_k`.
    #: 1: warpgroups that share a tile are side by side, each with all of its rows and half of its columns; else each
    #: has every other 64 rows and all columns.
    side_by_side: int = 0
    #: Consumer warpgroups of a CTA: 3 share a tile, each with every third 64 rows.
    consumers: int = CONSUMERS

    switches: ClassVar[frozenset[str]] = frozenset({"pingpong", "swap_ab", "split_k", "side_by_side"})

    #: Whether narrow epilogue tiles of plain results are written in batches.
    batched: ClassVar[bool] = True

    def _why_not_tile(self) -> str | None:
        if self.side_by_side and (self.pingpong or self.cluster_k > 1 or self.split_k):
            return (
                "warpgroups are side by side in a tile that they share, whose K is not split: with pingpong=0, "
                "cluster_k=1 and split_k=0"
            )
        if self.consumers not in REGISTERS_OF:
            return f"consumers must be one of {', '.join(map(str, REGISTERS_OF))}"
        if self.consumers > CONSUMERS:
            if self.pingpong or self.side_by_side or self.cluster_k > 1:
                return "three consumers share a tile's rows: with pingpong=0, side_by_side=0 and cluster_k=1"
            if self.mma_tiles_m * self.mma_n > MAX_ACC_COLUMNS_OF_THREE:
                return f"registers of three consumers hold {MAX_ACC_COLUMNS_OF_THREE} columns of 64 rows each"
        return WarpScheduleConfig._why_not_tile(self)

    def _why_not_cluster(self) -> str | None:
        if self.cluster_m not in (1, 2, 4) or self.cluster_n not in (1, 2, 4):
            return "cluster_m and cluster_n must be 1, 2 or 4"
        if self.cluster_size > (most := min(8, self.ctas)):
            return f"cluster_m * cluster_n * cluster_k is {self.cluster_size}, of at most {most} (8, or fewer ctas)"
        if self.tile_n % (8 * self.cluster_k):
            return f"tile_n must be a multiple of 8 * cluster_k = {8 * self.cluster_k}: each CTA writes whole 8 columns"
        if self.split_k and self.cluster_k > 1:
            return "a tile is shared along K by a cluster (cluster_k) or by split_k, not by both"
        return None

    @property
    def warpgroups_per_tile(self) -> int:
        return 1 if self.pingpong else self.consumers

    @property
    def threads(self) -> int:
        """Threads of a CTA with one producer warpgroup."""
        return (1 + self.consumers) * WARPGROUP

    @property
    def registers(self) -> Registers:
        """Registers of a thread."""
        return REGISTERS_OF[self.consumers]

    @property
    def tile_n_multiple(self) -> int:
        return 8 * self.warpgroups_n

    @property
    def warpgroups_n(self) -> int:
        """Warpgroups side by side in a tile."""
        return CONSUMERS if self.side_by_side else 1

    @property
    def cluster_size(self) -> int:
        return self.cluster_m * self.cluster_n * self.cluster_k

    @property
    def tma_box_rows_a(self) -> int:
        return self.tile_m // self.cluster_n

    @property
    def precomputes_divisors(self) -> bool:
        """Whether CTAs with 8-bit floats compute the raster's fast divisors before they wait for the predecessor grid.

        Divisions would delay the first loads of up to 128 rows there; with other types small tiles do so.
        """
        return (self.tile_m, self.tile_n) == (128, 128) and not (self.pingpong or self.swap_ab)

    @property
    def max_active_clusters(self) -> int:
        """Most clusters that are resident at once."""
        return max_active_clusters(self.ctas, self.cluster_size)

    def epi_tile_n(self, itemsize: int, num_b: int = 1) -> int:
        """Return the columns of the epilogue tiles in which a CTA writes its part of a tile, of `num_b` products.

        They are at most 128 bytes, the longest rows of a swizzle, or half of the tile's without a swizzle, where these
        are an odd multiple of 16 and shared memory suffices for two stages.
        """
        columns = self.tile_n // (self.cluster_k * self.warpgroups_n * (1 if self.swap_ab else num_b))
        alone = self.cluster_size == 1 and not (self.pingpong or self.swap_ab)
        if alone and itemsize == 2 and columns > _WIDE and columns % 32 == 16:
            stages_bytes = self.consumers * 2 * EPI_TILE_M * columns // 2 * itemsize
            if self.bytes_without_epi_tiles + stages_bytes <= MAX_SHARED_BYTES:
                return columns // 2
        widths = (64, 48, 32, 16, 56, 40, 24, 8) if self.swap_ab else (64, 32, 16, 8)
        found = next(n for n in widths if columns % n == 0 and n * itemsize <= K_BYTES)
        if self.swap_ab or not self.batched or found * itemsize > _CHUNK_BYTES:
            return found
        return self._without_swizzle(columns, itemsize) or found

    def _without_swizzle(self, columns: int, itemsize: int) -> int | None:
        """Return the widest epilogue tile of an odd number of 16 bytes that shared memory holds, or None.

        Rows of 16 bytes are half a sector of memory: TMA takes 7 % of a large product's time longer with them.
        """
        unit = _CHUNK_BYTES // itemsize
        for width in range(columns, unit, -unit):
            if columns % width or width // unit % 2 == 0:
                continue
            nbytes = self.consumers * _stages_of(self.mma_tiles_m * columns // width) * EPI_TILE_M * width * itemsize
            if self.bytes_without_epi_tiles + nbytes <= MAX_SHARED_BYTES:
                return width
        return None

    def epi_stages(self, itemsize: int, num_b: int = 1) -> int:
        """Return how many epilogue tiles a warpgroup has in shared memory: they divide those of a CTA tile."""
        count = self.mma_tiles_m * self.tile_n // self.warpgroups_n
        width = self.epi_tile_n(itemsize, num_b)
        stages = _stages_of(count // (self.cluster_k * num_b * width))
        # Stages of k-tiles come first: results of 32 bits, or three consumers, may leave too little shared memory.
        nbytes = self.consumers * stages * EPI_TILE_M * width * itemsize
        lacking = self.consumers > CONSUMERS and self.bytes_without_epi_tiles + nbytes > MAX_SHARED_BYTES
        return 1 if lacking or (self.side_by_side and itemsize > SIDE_BY_SIDE_BYTES) else stages

    def epi_batches(
        self, itemsize: int, num_b: int = 1, *, reads_c: bool = False, fused: bool = False
    ) -> tuple[int, int]:
        """Return the stages of a warpgroup's epilogue tiles, and how many batches these tiles are.

        Those of a batch are written, then stored at once. Each batch waits for what is stored before it. Narrow ones
        are many: as many as other shared memory holds are one batch, in two buffers if there are several; of others
        with a function of 16-bit operands (`fused`), up to a number. C is loaded into as many stages as there is shared
        memory for.
        """
        width, stages = self.epi_tile_n(itemsize, num_b), self.epi_stages(itemsize, num_b)
        count = self.mma_tiles_m * self.mma_n // (self.cluster_k * num_b * width)
        if not self.batched:
            return stages, count
        able = (MAX_SHARED_BYTES - self.bytes_without_epi_tiles) // (self.consumers * EPI_TILE_M * width * itemsize)
        narrow = width <= _NARROW and itemsize == 2 and num_b == 1
        if reads_c:
            stages = min(count, max(able, stages), _MOST_STAGES_OF_C)
            of_batch = 1 if not narrow else stages if stages == count else max(stages // 2, 1)
            return stages, -(-count // of_batch)
        if not narrow and not (fused and itemsize == 2 and num_b == 1):
            return stages, count
        if able >= count:
            return count, 1 if narrow else min(count, WRITTEN_BARRIERS // self.consumers)
        most = able if narrow else min(able, 2 * _FUSED_BATCH)
        batches = next((n for n in range(2, count, 2) if 2 * -(-count // n) <= most), count)
        return (2 * -(-count // batches), batches) if batches < count else (stages, count)

    def shared_bytes_of(self, itemsize: int, num_b: int = 1, *, reads_c: bool = False, fused: bool = False) -> int:
        """Return the shared memory of a CTA for results of such elements; parameters as of `epi_batches`."""
        stage_bytes = EPI_TILE_M * self.epi_tile_n(itemsize, num_b) * itemsize
        stages = self.consumers * self.epi_batches(itemsize, num_b, reads_c=reads_c, fused=fused)[0]
        return max(self.shared_bytes, self.bytes_without_epi_tiles + stages * stage_bytes)

    def why_not_gated(self, itemsize: int, mn_major: bool) -> str | None:
        """Say why a tile cannot hold the columns of two B side by side, or None where it can.

        Parameters
        ----------
        itemsize : int
            Bytes of an element of B.
        mn_major : bool
            Whether B is MN-major, in rows of up to 128 bytes of columns.
        """
        half = self.tile_n // 2
        if (
            self.side_by_side
            or self.consumers > CONSUMERS
            or (self.swap_ab and (self.mma_tiles_m % 2 or itemsize != 2))
        ):
            return (
                f"config {self}: a gated epilogue needs both products in one thread: side_by_side=0, consumers=2, and "
                "with swap_ab=1 an even number of 64 rows of a warpgroup, of 16 bits"
            )
        if self.swap_ab:
            return None
        # MN-major: TMA loads whole 128-byte rows of each B. K-major: nvidia-cutlass-dsl 4.8.1 lays out columns 16 at a
        # time where there are more than 8, and 32-bit ones 32 at a time where there are more than 32; PTX takes any 8.
        unit = K_BYTES // itemsize if mn_major else 32 if itemsize == 4 and half > 32 else 16 if half > 8 else 8
        unit = math.lcm(unit, 8 * self.cluster_m, 8 * self.cluster_k)
        if half % unit:
            return f"config {self}: {half} columns of each of two B must be a multiple of {unit}"
        if self._epi_tiles_bytes(2) > self._epi_tiles_bytes(1):
            return f"config {self}: there is no shared memory for epilogue tiles of {half} columns"
        return None

    def _epi_tiles_bytes(self, num_b: int) -> int:
        """Return the bytes of a warpgroup's epilogue tiles."""
        return _epi_tiles_bytes(self, num_b)

    @property
    def shared_bytes(self) -> int:
        return self.bytes_without_epi_tiles + self.consumers * self._epi_tiles_bytes(1)

    @property
    def bytes_without_epi_tiles(self) -> int:
        """Shared memory of a CTA for barriers, stages and the cluster's partial sums: all but epilogue tiles."""
        return self.stages_bytes + self.partial_sums_bytes(self.cluster_k)


def _stages_of(count: int) -> int:
    """Return the fewest stages, but for one, that divide so many epilogue tiles, or 1."""
    return next((stages for stages in (2, 3, 4, 5) if count % stages == 0), 1)


@functools.cache
def _epi_tiles_bytes(config: HopperGemmConfig, num_b: int) -> int:
    return max(config.epi_stages(item, num_b) * EPI_TILE_M * config.epi_tile_n(item, num_b) * item for item in (2, 4))


def search_space() -> tuple[HopperGemmConfig, ...]:
    """Return every tile, cluster shape and schedule that fits, with as many stages as shared memory holds."""
    found = []
    for (mma_tiles, pingpong), tile_n, cluster, swap_ab in itertools.product(
        _MMA_TILES_M, _TILES_N, _CLUSTER_SHAPES, (0, 1)
    ):
        cluster_m, cluster_n, cluster_k = cluster
        for stages in range(_MOST_STAGES, _LEAST_STAGES - 1, -1):
            try:
                one = HopperGemmConfig(
                    tile_m=mma_tiles * MMA_M, tile_n=tile_n, stages=stages, pingpong=pingpong, cluster_m=cluster_m,
                    cluster_n=cluster_n, cluster_k=cluster_k, swap_ab=swap_ab,
                )  # fmt: skip
            except ArgumentError:
                continue
            found.append(one)
            break
    return tuple(found)
