"""Predicted times of the float32 GEMMs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from gemmule.core.dtype import FLOAT32
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.core.row_major import row_result
from gemmule.kernels.parts.leading_dimension import LeadingDimension, leading_dimension

from .config import VECTOR, CpAsyncConfig, SimtConfig

#: For tiles of so many elements, on an H200: nanoseconds for one more k of each tile of a multiprocessor, the least for
#: one tile alone, and the k that prologue and epilogue are worth.
_TIMES = {128 * 256: (180.0, 180.0, 97), 128 * 128: (100.0, 100.0, 78), 64 * 64: (36.3, 75.0, 34)}


def cost_of(ctas: int, k: int, config: CpAsyncConfig, gpu: GpuRates) -> float:
    """Return roughly the time in nanoseconds of so many CTAs, of a tile with `k` products each."""
    each, alone, ends = _TIMES.get(config.outputs, (config.outputs / 160, config.outputs / 160, 97))
    tiles = -(-ctas // gpu.multiprocessors)
    return max(each * tiles, alone) * (k + ends)


@dataclasses.dataclass(frozen=True)
class SimtRates:
    """What the predicted times of `simt_gemm` were fitted to: benchmarks/experiments/fit_simt_cost.py.

    Attributes
    ----------
    launch, exchange : float
        Microseconds of a launch, and of the exchange of partial sums in a cluster.
    cycles : float
        Cycles a microsecond; others are in cycles of a scheduler.
    copy, k_tile : float
        Of a copy of 4 bytes by a warp, and of a k-tile's synchronisation.
    latency, alone : float
        The least of a k-tile, and the part of a CTA's own that it cannot hide alone.
    epilogue : float
        Of an element of a thread tile.
    memory : float
        Bytes a microsecond.
    """

    launch: float
    exchange: float
    cycles: float
    copy: float
    k_tile: float
    latency: float
    alone: float
    epilogue: float
    memory: float


@dataclasses.dataclass(frozen=True)
class SimtFacts:
    """What a config does for every product, of a kind of operands; numbers, or arrays of them.

    Attributes
    ----------
    resident : float
        CTAs of an SM in a full wave.
    warps : float
        Warps of a CTA for each scheduler.
    products, copies, outputs : float
        Of a thread: FMAs and copies of 4 bytes for a k-tile, and elements of its tile.
    shared : float
        1 where the CTAs of a cluster share a tile, else 0.
    factor : float
        Measured time of the config by that of the limits.
    """

    resident: Any
    warps: Any
    products: Any
    copies: Any
    outputs: Any
    shared: Any
    factor: Any


@dataclasses.dataclass(frozen=True)
class SimtWork:
    """What a config does for a product; numbers, or arrays of them.

    Attributes
    ----------
    facts : SimtFacts
        What it does for every product.
    waves, rest : float
        Full waves of CTAs, and the CTAs of the busiest SM after them.
    k_tiles : float
        k-tiles of a CTA.
    moved : float
        Bytes of operands and result.
    """

    facts: SimtFacts
    waves: Any
    rest: Any
    k_tiles: Any
    moved: Any

    def predicted_us(self, rates: SimtRates) -> Any:
        """Return roughly the time in microseconds, by the limits alone."""
        of = self.facts
        issue = (of.products + rates.copy * of.copies + rates.k_tile) * of.warps
        latency, epilogue = rates.latency + rates.alone * issue, rates.epilogue * of.outputs * of.warps
        wave = _larger(of.resident * issue, latency) * self.k_tiles + epilogue * of.resident
        rest = _larger(self.rest * issue, latency) * self.k_tiles + epilogue * self.rest
        time = (self.waves * wave + (self.rest > 0) * rest) / rates.cycles
        return rates.launch + _larger(time, self.moved / rates.memory) + of.shared * rates.exchange


def _larger(one: Any, other: Any) -> Any:
    """Return the larger of two limits, or a little more where both count."""
    return (one**6 + other**6) ** (1 / 6)


#: By `benchmarks/experiments/fit_simt_cost.py`, of times on an H100.
RATES = SimtRates(
    launch=2.321,
    exchange=1.178,
    cycles=1844.0,
    copy=14.27,
    k_tile=179.3,
    latency=262.1,
    alone=0.8817,
    epilogue=32.21,
    memory=1.019e6,
)
#: Measured times by predicted ones: by rows, columns, k-tile and CTAs of a cluster.
FACTORS = {
    (64, 64, 16, 1): 0.953,
    (64, 64, 16, 2): 0.964,
    (64, 64, 16, 4): 0.955,
    (64, 64, 16, 8): 0.953,
    (64, 128, 8, 1): 0.906,
    (64, 128, 16, 2): 1.051,
    (64, 128, 16, 4): 1.045,
    (64, 128, 16, 8): 1.043,
    (128, 64, 16, 1): 1.044,
    (128, 64, 16, 2): 1.060,
    (128, 64, 16, 4): 1.049,
    (128, 256, 8, 1): 0.897,
    (256, 128, 8, 1): 0.898,
    (32, 32, 16, 1): 1.105,
    (32, 32, 16, 4): 1.102,
}
#: Bytes that a copy may move at once.
COPIES = (16, 4)

#: Of 132 SMs those that clusters can fill: a cluster's CTAs share a GPC.
_SMS, _FILLED = 132, {4: 124, 8: 120}
#: Threads and bytes of shared memory of an SM, and bytes that a CTA takes beyond its stages.
_THREADS, _SHARED, _RESERVED = 2048, 227 << 10, 1 << 10


def limits(problem: GemmProblem, configs: Sequence[SimtConfig], gpu: GpuRates) -> list[SimtWork]:
    """Return what configs do for a product."""
    oriented, _, _ = row_result(problem)
    k_major = oriented.a.is_row_major, not oriented.b.is_row_major
    short = tuple(
        k or operand_copies(x).copy_bytes < max(COPIES) for k, x in zip(k_major, (oriented.a, oriented.b), strict=True)
    )
    m, n, k, batch = oriented.m, oriented.n, oriented.k, (oriented.batch or (1,))[0]
    moved = gpu.moved_us(((m + n) * k + m * n) * batch * FLOAT32.itemsize, 1.0)
    found = []
    for config in configs:
        facts, cluster_k = _facts(config, k_major, short), config.cluster_k
        ctas = -(-m // config.tile_m) * -(-n // config.tile_n) * cluster_k * batch
        each = ctas * _SMS / (gpu.multiprocessors * _FILLED.get(cluster_k, _SMS))
        waves = each // facts.resident
        rest = -((waves * facts.resident - each) // 1)
        found.append(SimtWork(facts, waves, rest, -(-k // (config.tile_k * cluster_k)), moved))
    return found


@functools.lru_cache(maxsize=1024)
def _facts(config: SimtConfig, k_major: tuple[bool, bool], short: tuple[bool, bool]) -> SimtFacts:
    """Return what a config does for every product, of operands that are K-major, or copied by 4 bytes, or not."""
    copies = [
        tile * config.tile_k // config.threads // (1 if few else VECTOR)
        for tile, few in zip((config.tile_m, config.tile_n), short, strict=True)
    ]
    return SimtFacts(
        resident=min(
            config.resident(sum(copies)),
            _SHARED // (config.shared_bytes(*k_major) + _RESERVED),
            _THREADS // config.threads,
        ),
        warps=config.threads / 128,
        products=config.thread_m * config.thread_n * config.tile_k,
        copies=sum(count for count, few in zip(copies, short, strict=True) if few),
        outputs=config.thread_m * config.thread_n,
        shared=config.cluster_k > 1,
        factor=FACTORS.get((config.tile_m, config.tile_n, config.tile_k, config.cluster_k), 1.0),
    )


def operand_copies(matrix: StridedMatrix) -> LeadingDimension:
    """Return the leading dimension of an operand, and the widest copies that it allows."""
    # The hardware reads only the part of a copy that is inside, but compute-sanitizer reports all of it as read.
    return leading_dimension(matrix, COPIES, ends=True)


def costs(problem: GemmProblem, configs: Sequence[SimtConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds of `simt_gemm`."""
    return [one.predicted_us(RATES) * one.facts.factor for one in limits(problem, configs, gpu)]
