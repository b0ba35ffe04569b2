"""Tiles of the float64 kernels."""

from __future__ import annotations

from typing import ClassVar

from gemmule.core.arch import Arch
from gemmule.core.config import LARGEST_CLUSTER, why_not_cluster
from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import FLOAT64
from gemmule.core.errors import ArgumentError
from gemmule.kernels.hopper.tile_config import CONSUMERS
from gemmule.kernels.parts.hopper_facts import SMS, WARPGROUP
from gemmule.kernels.parts.warp_tile_config import WarpTileConfig

#: Bytes that a copy may move at once: two elements, or one.
COPIES = (16, 8)
#: Rows of a block of a warp tile, and columns of a product.
BLOCK, COLUMNS = 16, 8
#: Rows and elements of K of the products that tensor cores know: Ampere's, and those of Hopper.
SHAPES = ((8, 4), (16, 4), (16, 8), (16, 16))
#: Bytes of the lines that TMA loads, and bytes before the stages for their barriers.
TMA_BYTES, BARRIER_BYTES = 128, 1 << 10
#: The architecture that the kernel by TMA is for.
HOPPER = Arch(9, 0, True)
#: Most accumulators of a thread: 192 of its 255 registers.
_MAX_ACCUMULATORS = 96
#: K-tiles that each CTA has at least where more than one cluster shares a tile.
LEAST_K_TILES = 8
#: CTAs of clusters that reach every SM, and the share of those that run at once with larger ones: on an H200 0.91 to
#: 0.94, by the driver's occupancy calculator. Where there are more, the last ones take as long as all others.
_PAIR, _REACHED = 2, 0.9
#: Shared memory of an SM of Hopper, what each CTA takes of it besides its own, and registers.
_SHARED_BYTES, _RESERVED_BYTES, _REGISTERS = 228 << 10, 1 << 10, 65536


@dataclass(frozen=True)
class DmmaConfig(WarpTileConfig):
    """Tile of C that a CTA computes, the warps that share it, and the k-tiles in flight."""

    #: tile_m, tile_n: Elements.
    tile_m: int = 64
    tile_n: int = 64
    tile_k: int = 16  #: Depth of a k-tile, 16 or 32 elements.
    #: warps_m, warps_n: Warps along M and N. A warp tile is a multiple of 16 x 16.
    warps_m: int = 2
    warps_n: int = 2
    stages: int = 4  #: Stages in shared memory, at least 2.
    #: mma_m, mma_k: Rows and elements of K of an mma.sync: 8 and 4, which Ampere has; or 16, and 4, 8 or 16.
    mma_m: int = 16
    mma_k: int = 16
    group: int = 8  #: Tiles that CTAs take downwards before they go to the right.
    #: CTAs of a cluster that share a tile: each takes a part of K, and the first `writers` write a part of the columns.
    #: 1, or on sm_90 up to 16, on newer ones up to 8.
    cluster_k: int = 1
    #: Bytes of an element, depths of a k-tile, and registers of a thread besides its accumulators.
    itemsize: ClassVar[int] = FLOAT64.itemsize
    depths: ClassVar[tuple[int, int]] = (16, 32)
    others: ClassVar[int] = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        unit_m, unit_n = BLOCK * self.warps_m, 2 * COLUMNS * self.warps_n
        if self.tile_m % unit_m or self.tile_n % unit_n or self.tile_k not in self.depths or self.stages < 2:
            raise ArgumentError(
                f"config {self}: tile_m must be a multiple of {unit_m}, tile_n of {unit_n}, tile_k "
                f"{self.depths[0]} or {self.depths[1]}, and stages 2 or more"
            )
        if (self.mma_m, self.mma_k) not in SHAPES:
            known = ", ".join(f"{rows} x {COLUMNS} x {k}" for rows, k in SHAPES)
            raise ArgumentError(f"config {self}: mma_m and mma_k must be those of a product among {known}")
        length = max(COPIES) // self.itemsize
        copied = length * self.threads
        if self.tile_m * self.tile_k % copied or self.tile_n * self.tile_k % copied:
            raise ArgumentError(f"config {self}: a k-tile must be a multiple of {copied} elements, {length} a thread")
        if (count := self.tile_elements * self.itemsize // FLOAT64.itemsize // self.threads) > _MAX_ACCUMULATORS:
            raise ArgumentError(
                f"config {self}: {count} accumulators a thread are more than {_MAX_ACCUMULATORS}; add warps"
            )
        if self.cluster_k > 1 and (
            self.cluster_k > LARGEST_CLUSTER or self.tile_elements * self.itemsize > self.shared_bytes
        ):
            raise ArgumentError(
                f"config {self}: cluster_k must be at most {LARGEST_CLUSTER}, and the partial sums fit into the stages"
            )

    def why_not_on(self, arch: Arch) -> str | None:
        """Say why an architecture has not what the config needs, or None where it has."""
        if arch.major < 9 and (self.mma_m, self.mma_k) != SHAPES[0]:
            return f"config {self}: {arch} has float64 products of 8 x 8 x 4 only; larger ones need sm_90 or newer"
        if reason := why_not_cluster(self, self.cluster_k, arch):
            return reason
        if self.shared_bytes > (most := arch.shared_bytes_per_block):
            return f"config {self} needs {self.shared_bytes} bytes of shared memory, more than the {most} of {arch}"
        return None

    @property
    def writers(self) -> int:
        """CTAs of the cluster that write: as many as divide a warp's columns by 8."""
        columns = self.tile_n // self.warps_n // COLUMNS
        return max(count for count in range(1, self.cluster_k + 1) if columns % count == 0)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA."""
        return (self.tile_m + self.tile_n) * self.tile_k * self.stages * self.itemsize

    @property
    def resident(self) -> int:
        """Resident CTAs of an SM of Hopper: while some wait, others multiply."""
        accumulators = self.tile_elements * self.itemsize // 4
        by_registers = _REGISTERS // (accumulators + self.others * self.threads)
        return max(min(_SHARED_BYTES // (self.shared_bytes + _RESERVED_BYTES), by_registers), 1)


@dataclass(frozen=True)
class SharedTilesConfig(DmmaConfig):
    """A tile that CTAs may share through a workspace; fields as of `DmmaConfig`, and two more."""

    #: 1: tiles that do not fill a wave are shared k-tile by k-tile among persistent CTAs; with clusters, each tile is
    #: shared evenly among as many of them as run at once.
    stream_k: int = 0
    ctas: int = SMS  #: SMs of the chip: with `stream_k` each has as many CTAs as run at once.
    switches: ClassVar[frozenset[str]] = frozenset({"stream_k"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stream_k and self.threads % WARPGROUP:
            raise ArgumentError(f"config {self}: stream_k=1 takes whole warpgroups, of {WARPGROUP} threads")

    @property
    def split_k(self) -> bool:
        """Whether clusters share a tile through a workspace."""
        return self.stream_k == 1 and self.cluster_k > 1

    @property
    def running(self) -> int:
        """CTAs that run at once on the whole GPU, where clusters leave some SMs of a GPC free."""
        return int(self.ctas * self.resident * (1.0 if self.cluster_k <= _PAIR else _REACHED))

    @property
    def whole_from(self) -> float:
        """Share of a wave from which on tiles are not shared: CTAs without a tile lose less than the fix-up takes."""
        return 1.0

    def persistent(self, tiles: int, k_tiles: int) -> int:
        """Return the CTAs that share so many tiles with `stream_k`: of a k-tile each at least."""
        most = self.ctas * self.resident
        return tiles if self.whole_from * most <= tiles <= most else min(tiles * k_tiles, most)

    def splits(self, tiles: int, k_tiles: int) -> int:
        """Return how many clusters share each of so many tiles with `split_k`."""
        by_running, by_k = self.running // (tiles * self.cluster_k), k_tiles // (self.cluster_k * LEAST_K_TILES)
        # The kernel multiplies k-tiles by parts in 32 bits.
        return max(min(by_running, by_k, (2**31 - 1) // ((k_tiles + 1) * self.cluster_k)), 1)


@dataclass(frozen=True)
class TmaTilesConfig(SharedTilesConfig):
    """A tile whose k-tiles TMA may load; fields as of `SharedTilesConfig`, and another one."""

    #: 1: TMA loads k-tiles of 128 bytes a line, with stream-K by persistent CTAs, which have a warpgroup more for that.
    tma: int = 0
    switches: ClassVar[frozenset[str]] = SharedTilesConfig.switches | {"tma"}

    def __post_init__(self) -> None:
        super().__post_init__()
        depth = TMA_BYTES // self.itemsize
        if self.tma and (not self.stream_k or self.cluster_k > 1 or (self.mma_m, self.tile_k) != (BLOCK, depth)):
            raise ArgumentError(f"config {self}: tma=1 takes stream_k=1, cluster_k=1, mma_m={BLOCK} and tile_k={depth}")
        # Of others an SM has not the registers that warps ask for, or more at the launch already.
        if self.tma and self.threads != CONSUMERS * WARPGROUP:
            raise ArgumentError(f"config {self}: tma=1 takes {CONSUMERS * WARPGROUP} threads that multiply")

    def why_not_on(self, arch: Arch) -> str | None:
        if self.tma and arch != HOPPER:
            return f"config {self}: tma=1 is for {HOPPER}"
        return super().why_not_on(arch)

    @property
    def resident(self) -> int:
        # With a producer warpgroup, warps have all registers of an SM.
        return 1 if self.tma else super().resident

    @property
    def block_threads(self) -> int:
        """Threads of a CTA: those that multiply, and those that issue copies by TMA."""
        return self.threads + WARPGROUP * self.tma

    @property
    def shared_bytes(self) -> int:
        return super().shared_bytes + BARRIER_BYTES * self.tma


@dataclass(frozen=True)
class Float64Config(TmaTilesConfig):
    """A tile of float64; fields as of `TmaTilesConfig`."""
