"""A batch: the CTAs that run at once, their lanes, registers and memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from gemmule.compiler.host_functions.shared_tiles import SharedTile
from gemmule.vgpu.memory import GlobalMemory
from gemmule.vgpu.ptx.module import Instruction, Kernel
from gemmule.vgpu.report import FaultError, Finding
from gemmule.vgpu.tensor_map import TensorMap
from gemmule.vgpu.types import Array

from .binder import Binder
from .lanes import WARP, Lanes
from .registers import RegisterFile

#: Content of unwritten shared memory.
_POISON = 0xFF


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Shape of a launch: CTAs, threads of a CTA, CTAs of a cluster, each along x, y and z."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] = (1, 1, 1)

    @property
    def ctas(self) -> int:
        """CTAs of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def warps(self) -> int:
        """Warps of a CTA."""
        return -(-self.threads // WARP)

    @property
    def cluster_ctas(self) -> int:
        """CTAs of a cluster."""
        return self.cluster[0] * self.cluster[1] * self.cluster[2]

    def cta_at(self, position: int) -> int:
        """Return the number of the CTA at a position, where those of a cluster follow each other by their ranks."""
        cluster, rank = divmod(position, self.cluster_ctas)
        number, step = 0, 1
        for extent, side in zip(self.grid, self.cluster, strict=True):
            cluster, place = divmod(cluster, -(-extent // side))
            rank, within = divmod(rank, side)
            number += (place * side + within) * step
            step *= extent
        return number

    def coordinates(self, cta: int) -> tuple[int, int, int]:
        """Return the coordinates of a CTA in the grid."""
        x, y, _ = self.grid
        return cta % x, cta // x % y, cta // (x * y)


@dataclasses.dataclass(frozen=True)
class LaunchState:
    """State that all batches of a launch share.

    Attributes
    ----------
    kernel : Kernel
        The kernel.
    binder : Binder
        Its slots, rows and addresses.
    geometry : Geometry
        Shape of the launch.
    params : bytes
        The kernel's parameters.
    memory : GlobalMemory
        The arrays.
    shared_bytes : int
        Dynamic shared memory of a CTA.
    schedule : str
        When asynchronous operations complete and in which order warps run: ``late``, ``eager`` or ``random``.
    seed : int
        Seed of the random schedule.
    mma : str
        Rounding of the tensor core's sums: ``exact`` or ``hopper``.
    maps : mapping of int to TensorMap
        Tensor maps by the place of their parameter.
    tiles : tuple of SharedTile
        Named parts of shared memory, by their addresses.
    """

    kernel: Kernel
    binder: Binder
    geometry: Geometry
    params: bytes
    memory: GlobalMemory
    shared_bytes: int
    schedule: str = "late"
    seed: int = 0
    mma: Literal["exact", "hopper"] = "exact"
    maps: Mapping[int, TensorMap] = dataclasses.field(default_factory=dict)
    tiles: tuple[SharedTile, ...] = ()


class Batch:
    """The state of CTAs that run at once.

    Lanes are numbered CTA by CTA and warp by warp; where a CTA's threads do not fill its last warp, that warp has lanes
    that never run.

    Parameters
    ----------
    launch_state : LaunchState
        State shared by all batches.
    ctas : sequence of int
        Positions of the CTAs in the grid, cluster by cluster: whole clusters.

    Attributes
    ----------
    cta_of_lane, warp_of_lane : array of int
        For each lane, its CTA within the batch and its warp within the batch.
    shared : array of uint8
        Shared memory, one CTA after the other, each `shared_stride` bytes from address 0 on.
    units : dict
        Units of the running batch by their classes, which look themselves up: ``Barriers.of(batch)``.
    """

    def __init__(self, launch_state: LaunchState, ctas: Sequence[int]) -> None:
        self.launch_state = launch_state
        self.kernel = launch_state.kernel
        self.binder = binder = launch_state.binder
        self.geometry = launch_state.geometry
        self.cluster_ctas = self.geometry.cluster_ctas
        self.memory = launch_state.memory
        self.params = launch_state.params
        self.ctas = [self.geometry.cta_at(position) for position in ctas]
        self.clock = 0
        geometry = self.geometry
        self.cta_lanes = geometry.warps * WARP
        self.lane_count = len(self.ctas) * self.cta_lanes
        lane = np.arange(self.lane_count)
        self.cta_of_lane = lane // self.cta_lanes
        self.warp_of_lane = lane // WARP
        self.thread_of_lane = lane % self.cta_lanes
        self.alive = self.thread_of_lane < geometry.threads
        self.shared_end = binder.static_shared_end + launch_state.shared_bytes
        # An odd multiple of 128, so that equal places of many CTAs are not in one set of the host's caches.
        self.shared_stride = (-(-self.shared_end // 128) | 1) * 128
        self.shared = np.full(len(self.ctas) * self.shared_stride, _POISON, np.uint8)
        self.shared_words = {size: self.shared.view(f"u{size}") for size in (1, 2, 4, 8)}
        # As rows of 16 bytes, which TMA and wgmma move.
        self.shared_rows = self.shared_words[8].reshape(-1, 2)
        self.shared_base = self.cta_of_lane * self.shared_stride
        self.local_stride = binder.local_bytes
        self.local = np.full(self.lane_count * self.local_stride, _POISON, np.uint8)
        self.local_base = lane * self.local_stride
        self.param_data = np.frombuffer(self.params.ljust(-(-len(self.params) // 16) * 16, b"\0"), np.uint8)
        self.register_file = RegisterFile(binder.counts, binder.template, self.lane_count)
        self.random = np.random.default_rng((launch_state.seed, *self.ctas))
        self.units: dict[type[Any], Any] = {}

    def tile_at(self, address: int) -> SharedTile | None:
        """Return the named part of shared memory that contains an address."""
        tiles = self.launch_state.tiles
        return next((tile for tile in tiles if tile.start <= address < tile.start + tile.size), None)

    def shared_place(self, address: int) -> str:
        """Describe an address of shared memory, by the named part that contains it, if any."""
        address %= self.shared_stride
        tile = self.tile_at(address)
        if tile is None:
            return f"{address:#x} of shared memory"
        return f"byte {address - tile.start} of {tile.name} ({address:#x} of shared memory)"

    def fault(
        self, kind: str, message: str, instruction: Instruction, lanes: Lanes, bad: Array, **where: Any
    ) -> FaultError:
        """Return the error for those lanes, among `lanes`, for which `bad` is true."""
        return FaultError([self.finding(kind, message, instruction, lanes.index[bad], **where)])

    def finding(self, kind: str, message: str, instruction: Instruction | None, index: Array, **where: Any) -> Finding:
        """Return a finding about lanes of the batch: that of the first of them, and its warp's others."""
        first = int(index[0])
        warp = first // WARP
        same_warp = np.unique(index[index // WARP == warp])
        return Finding(
            kind,
            message,
            self.kernel.name,
            instruction,
            self.geometry.coordinates(self.ctas[int(self.cta_of_lane[first])]),
            int(self.thread_of_lane[first]) // WARP,
            tuple(int(lane) % WARP for lane in same_warp),
            **where,
        )
