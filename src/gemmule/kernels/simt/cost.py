"""Predicted times of the float32 GEMMs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import FLOAT32
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_for_configs, cache_last_call
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.core.row_major import row_result
from gemmule.kernels.parts.leading_dimension import LeadingDimension, leading_dimension

from .config import LARGEST, VECTOR, VECTOR_BYTES, CpAsyncConfig, SimtConfig

#: For tiles of so many elements, on an H200: nanoseconds for one more k of each tile of an SM, the least for
#: one tile alone, and the k that prologue and epilogue are worth.
_TIMES = {128 * 256: (180.0, 180.0, 97), 128 * 128: (100.0, 100.0, 78), 64 * 64: (36.3, 75.0, 34)}


def cost_of(ctas: int, k: int, config: CpAsyncConfig, gpu: GpuRates) -> float:
    """Return roughly the time in nanoseconds of so many CTAs, of a tile with `k` products each."""
    each, alone, ends = _TIMES.get(config.tile_elements, (config.tile_elements / 160, config.tile_elements / 160, 97))
    tiles = -(-ctas // gpu.multiprocessors)
    return max(each * tiles, alone) * (k + ends)


class SimtRates(NamedTuple):
    """Rates of the predicted times of `simt_gemm`, fitted by benchmarks/experiments/fit_simt_cost.py.

    Attributes
    ----------
    launch, exchange, peer : float
        Microseconds of a launch, and of the exchange of partial sums in a cluster: for itself and for each other CTA.
    cycles : float
        Cycles a microsecond; others are in cycles of a scheduler.
    copy, transposing, read, k_tile : float
        Of a copy of 4 bytes by a warp, of an MN-major operand and of a K-major one, of its read of 16 bytes a lane from
        shared memory, and of a k-tile's synchronisation.
    latency, alone : float
        The least of a k-tile, and the part of a CTA's own that it cannot hide alone.
    start, epilogue : float
        Of a CTA, and of an element of a thread tile.
    memory : float
        Bytes a microsecond.
    vector : float
        Of a vector of a K-major operand, which a warp loads and stores transposed.
    loading : float
        What the least of a k-tile is longer where vectors are loaded, by no largest tile.
    """

    launch: float
    exchange: float
    peer: float
    cycles: float
    copy: float
    transposing: float
    read: float
    k_tile: float
    latency: float
    alone: float
    start: float
    epilogue: float
    memory: float
    vector: float = 0.0
    loading: float = 0.0


class _Layout(NamedTuple):
    """How an operand lies."""

    k_major: bool
    unaligned: bool


#: How MN-major copies in workspaces lie.
_COPY = _Layout(k_major=False, unaligned=False)


@dataclasses.dataclass(frozen=True, eq=False)
class SimtFacts:
    """Facts of configs for every product of a kind of operands: an array with a number for each config.

    Attributes
    ----------
    tile_m, tile_n, cluster_k : array
        Fields of the configs.
    depth : array
        k of a k-tile of all CTAs of a cluster.
    share, slack, fits, more : array
        CTAs of a tile for each SM that clusters can fill; CTAs an SM that are too many and fit; and CTAs an SM beyond
        which a small whole number no longer fits, with a little more than that number.
    resident : array
        CTAs of an SM in a full wave.
    warps : array
        Warps of a CTA for each scheduler.
    products, copies, transposed, vectors, reads, tile_elements : array
        Of a thread: FMAs, copies of 4 bytes of MN-major and of K-major operands, vectors of K-major operands, and reads
        of vectors for a k-tile; and elements of its tile.
    loads : array
        1 where a CTA that is alone waits for vectors, or else 0.
    factor : array
        Measured time of the config by that of the limits.
    """

    tile_m: Any
    tile_n: Any
    cluster_k: Any
    depth: Any
    share: Any
    slack: Any
    fits: Any
    more: Any
    resident: Any
    warps: Any
    products: Any
    copies: Any
    transposed: Any
    vectors: Any
    loads: Any
    reads: Any
    tile_elements: Any
    factor: Any


@dataclass(frozen=True)
class SimtWork:
    """Work of configs for a product: an array with a number for each config, or for each of several products.

    Attributes
    ----------
    facts : SimtFacts
        What it does for every product.
    ctas : array
        CTAs of the busiest SM.
    waves, rest : array
        Its full waves before the last one, and the CTAs of that.
    k_tiles : array
        k-tiles of a CTA.
    moved : float or array
        Bytes of operands and result.
    """

    facts: SimtFacts
    ctas: Any
    waves: Any
    rest: Any
    k_tiles: Any
    moved: Any

    def predicted_us(self, rates: SimtRates) -> Any:
        """Return roughly the time in microseconds, by the limits alone."""
        issue, latency, wave, ends, once = _known_us(self.facts, rates)
        time = _sixth_power(self.rest * issue)
        time += latency
        time **= 1 / 6
        time += self.waves * wave
        time *= self.k_tiles
        time += self.ctas * ends
        time = _larger(time, self.moved / rates.memory)
        time += once
        return time


@functools.lru_cache(maxsize=64)
def _known_us(of: SimtFacts, rates: SimtRates) -> tuple[Any, ...]:
    """Return the terms that do not depend on the product, in microseconds.

    The time to issue a CTA's k-tile, the sixth power of the least of a k-tile, a full wave's k-tile, a CTA's start and
    epilogue, and a launch with its exchange.
    """
    copies = rates.copy * of.copies + rates.transposing * of.transposed + rates.vector * of.vectors
    issue = (of.products + copies + rates.read * of.reads + rates.k_tile) * of.warps / rates.cycles
    latency = (rates.latency + rates.loading * of.loads) / rates.cycles + rates.alone * issue
    ends = (rates.start + rates.epilogue * of.tile_elements * of.warps) / rates.cycles
    peers = of.cluster_k - 1
    once = rates.launch + np.where(peers > 0, rates.exchange, 0.0) + peers * rates.peer
    return issue, _sixth_power(latency), _larger(of.resident * issue, latency), ends, once


def _larger(one: Any, other: Any) -> Any:
    """Return the larger of two limits, or a little more where both count."""
    return (_sixth_power(one) + _sixth_power(other)) ** (1 / 6)


def _sixth_power(number: Any) -> Any:
    # NumPy's power takes ten times as long.
    square = number * number
    return square * square * square


#: By `benchmarks/experiments/fit_simt_cost.py`, of 524 products on an H100 and an H200: records 20261124T022030,
#: 20261125T031731, 20261125T121740, 20261125T131340 and 20261125T141418, and of 20261128T142551 odd products and those
#: of MN-major operands.
RATES = SimtRates(
    launch=2.15,
    exchange=1.321,
    peer=0.04497,
    cycles=3167.0,
    copy=9.659,
    transposing=18.76,
    read=9.007,
    k_tile=300.8,
    latency=318.1,
    alone=0.8152,
    start=559.5,
    epilogue=57.78,
    memory=3.5e6,
    vector=25.0,
    loading=400.0,
)
#: Measured times by predicted ones, of aligned operands and of others: by rows, columns, k-tile, groups of warps and
#: CTAs of a cluster. Fitted like the rates, then by `benchmarks/experiments/fit_simt_choices.py`, so that choices lose
#: least. Those of 32 x 64, and of 32 x 32 in clusters of two to four, are 4 to 6 % above what was measured (notebook).
FACTORS = {
    (64, 64, 16, 1, 1): (0.907, 0.933),
    (64, 64, 16, 1, 2): (0.922, 0.936),
    (64, 64, 16, 1, 3): (1.000, 0.920),
    (64, 64, 16, 1, 4): (0.912, 0.926),
    (64, 64, 16, 1, 8): (0.908, 0.909),
    (64, 128, 16, 1, 1): (0.994, 1.094),
    (64, 128, 16, 1, 2): (1.021, 1.078),
    (64, 128, 16, 1, 3): (1.020, 1.023),
    (64, 128, 16, 1, 4): (1.017, 1.048),
    (64, 128, 16, 1, 8): (1.016, 1.035),
    (128, 64, 8, 1, 1): (0.907, 1.011),
    (128, 64, 16, 1, 1): (1.031, 1.105),
    (128, 64, 16, 1, 2): (1.012, 1.065),
    (128, 64, 16, 1, 3): (1.029, 1.021),
    (128, 64, 16, 1, 4): (1.013, 1.033),
    (128, 64, 16, 1, 6): (1.037, 1.030),
    (128, 256, 8, 1, 1): (1.015, 1.146),
    (128, 256, 16, 1, 1): (1.108, 1.169),
    (128, 128, 16, 1, 1): (1.080, 1.167),
    (32, 32, 16, 1, 1): (0.999, 1.035),
    (32, 32, 16, 1, 4): (0.955, 0.993),
    (32, 32, 16, 1, 8): (0.970, 0.996),
    (32, 32, 16, 1, 16): (1.049, 1.068),
    (64, 32, 16, 1, 6): (0.983, 1.058),
    (128, 32, 16, 1, 1): (0.950, 0.995),
    (128, 32, 16, 1, 8): (0.923, 0.971),
    (32, 128, 16, 1, 1): (0.952, 0.989),
    (32, 128, 16, 1, 8): (0.932, 0.989),
    (32, 32, 32, 4, 1): (0.870, 0.906),
    (32, 32, 32, 4, 2): (0.837, 0.890),
    (32, 32, 32, 4, 3): (0.834, 0.890),
    (32, 32, 32, 4, 4): (0.853, 0.905),
    (32, 32, 32, 4, 6): (1.000, 0.881),
    (32, 32, 64, 4, 1): (1.033, 1.059),
    (32, 32, 64, 4, 8): (1.066, 1.035),
    (32, 64, 32, 4, 1): (0.952, 1.010),
    (32, 64, 32, 4, 2): (0.930, 0.990),
    (64, 32, 32, 2, 1): (0.979, 1.033),
    (64, 64, 32, 2, 1): (1.028, 1.036),
    (64, 64, 32, 2, 2): (1.019, 1.013),
    (64, 64, 32, 2, 3): (1.004, 1.012),
    (64, 64, 32, 2, 4): (0.987, 1.008),
    (64, 64, 32, 2, 8): (1.012, 1.039),
}
#: Further factors of the largest tiles, one CTA an SM, where operands are aligned and the result is written by element:
#: 4095 cubed with prepared operands.
_BY_ELEMENT = {128 * 256: 1.08}


class _InGroups(NamedTuple):
    """Further factors of tiles in groups of warps, with operands of a kind; 1 with others."""

    mn_major: float = 1.0
    mn_major_by_element: float = 1.0  #: As the one before, where the result is written by element.


#: By the elements of a tile; in the notebook are the products that they were fitted to, and those that judged them.
_IN_GROUPS = {
    64 * 64: _InGroups(mn_major_by_element=1.06),
    32 * 32: _InGroups(mn_major=0.985),
}
#: Further factors where K-major operands are aligned: by rows, columns, k-tile, groups of warps, and whether vectors
#: are loaded.
_K_MAJOR = {
    (64, 128, 16, 1, True): 1.075,
    (128, 64, 16, 1, True): 1.05,
    (128, 256, 16, 1, True): 1.013,
    (128, 64, 8, 1, False): 0.96,
    (64, 64, 32, 2, False): 0.97,
}
#: Of 132 SMs those that clusters can fill: a cluster's CTAs share a GPC. With two CTAs an SM 79 clusters of three fit,
#: 62 of four, 39 of six, 30 of eight and 14 of sixteen; with one more the kernel took the time of three CTAs an SM.
#: More CTAs an SM fill more SMs: 120 clusters of three fit with three, 162 with four, and 162 of six with eight.
_SMS, _FILLED = 132, {3: 122.3, 4: 123.5, 6: 122.5, 8: 120, 16: 112}
#: CTAs an SM that are too many and fit: 62 clusters of four with two; with three 92 fit and not 93. Below 0, that do
#: not fit though they are not too many: of 40 clusters of three with one, and of 40 of six with two.
_SLACK = {3: -0.0225, 4: 0.01, 6: -0.045}
#: The same of others, so that a whole number of CTAs an SM stays one.
_ROUNDING = 1e-9
#: CTAs an SM beyond which a whole number no longer fits, and that number: 79 clusters of three fit with two, 30 of
#: four, 17 of six and 6 of sixteen with one.
_FITS = {3: (1.97, 2), 4: (0.97, 1), 6: (0.9, 1), 16: (0.86, 1)}
#: A little more than a whole number of CTAs an SM.
_MORE = 1 + 1e-6
#: Threads and bytes of shared memory of an SM, and bytes that a CTA takes beyond its stages.
_THREADS, _SHARED, _RESERVED = 2048, 227 << 10, 1 << 10


def limits(problem: GemmProblem, configs: Sequence[SimtConfig], gpu: GpuRates) -> SimtWork:
    """Return the work of configs for a product."""
    return _limits(problem, (operand_layouts(problem),), configs, gpu)


def _limits(
    problem: GemmProblem, operands: tuple[tuple[_Layout, _Layout], ...], configs: Sequence[SimtConfig], gpu: GpuRates
) -> SimtWork:
    """Return the work of configs for a product with each of several pairs of operands, one after another."""
    one, _, _ = row_result(problem)
    m, n, k, batch = one.m, one.n, one.k, (one.batch or (1,))[0]
    facts = _facts(configs, operands, n % VECTOR > 0, gpu.multiprocessors)
    moved = gpu.moved_us(((m + n) * k + m * n) * batch * one.a.dtype.itemsize, 1.0)
    tiles = np.ceil(float(m) / facts.tile_m)
    tiles *= np.ceil(float(n) / facts.tile_n)
    if batch != 1:
        tiles *= batch
    return _work(facts, tiles, k, moved)


def _work(facts: SimtFacts, tiles: Any, k: int, moved: Any) -> SimtWork:
    """Return the work of configs for so many tiles each, with `k` products an element."""
    each = tiles * facts.share
    each -= facts.slack
    # One more than a whole one, where no more CTAs fit with so few an SM.
    ctas = np.ceil(np.maximum(each, (each > facts.fits) * facts.more))
    waves = np.floor((ctas - 1) / facts.resident)
    return SimtWork(facts, ctas, waves, ctas - waves * facts.resident, np.ceil(k / facts.depth), moved)


@cache_for_configs
def _facts(
    configs: Sequence[SimtConfig],
    operands: tuple[tuple[_Layout, _Layout], ...],
    by_element: bool,
    multiprocessors: int,
    takes_vectors: bool = True,
) -> SimtFacts:
    """Return the facts of configs for every product with such operands, one pair of A and B after another.

    The result is written by element where its rows do not begin at multiples of 16 bytes. A kernel that takes no
    vectors of K-major operands copies all of them by element.
    """
    every = [
        {
            **_facts_of(config, (a.k_major, b.k_major), (a.unaligned, b.unaligned), by_element, takes_vectors),
            "share": config.cluster_k * _SMS / (multiprocessors * _FILLED.get(config.cluster_k, _SMS)),
            "slack": _SLACK.get(config.cluster_k, _ROUNDING),
            "fits": _FITS.get(config.cluster_k, (1.0, 1))[0],
            "more": _FITS.get(config.cluster_k, (1.0, 1))[1] * _MORE,
        }
        for a, b in operands
        for config in configs
    ]
    return SimtFacts(**{name: np.array([one[name] for one in every], float) for name in every[0]})


def _facts_of(
    config: SimtConfig, k_major: tuple[bool, bool], unaligned: tuple[bool, bool], by_element: bool, takes_vectors: bool
) -> dict[str, float]:
    # FMAs of a product of elements, and registers of an accumulator.
    parts = config.itemsize // FLOAT32.itemsize
    factors, steps = FACTORS if parts == 1 else {}, config.tile_k // config.warps_k
    # These are copied by element.
    aligned = [takes_vectors and along and not few for along, few in zip(k_major, unaligned, strict=True)]
    by_vectors = config.by_vectors((aligned[0], aligned[1]))
    short = [few or (along and not one) for few, along, one in zip(unaligned, k_major, by_vectors, strict=True)]
    copies = [
        tile * config.tile_k // config.threads // (1 if few else config.vector)
        for tile, few in zip((config.tile_m, config.tile_n), short, strict=True)
    ]
    each = list(zip(copies, short, k_major, strict=True))
    factor = factors.get((config.tile_m, config.tile_n, config.tile_k, config.warps_k, config.cluster_k), (1.0, 1.0))
    written = _BY_ELEMENT.get(config.tile_elements, 1.0) if by_element and not any(unaligned) else 1.0
    if parts == 1:
        written *= 1.0 if any(k_major) and any(unaligned) else _further(config, k_major, any(by_vectors), by_element)
    return {
        "tile_m": config.tile_m,
        "tile_n": config.tile_n,
        "cluster_k": config.cluster_k,
        "depth": config.tile_k * config.cluster_k,
        "resident": min(
            config.resident(sum(copies)),
            _SHARED * (config.carve_out or 100) // 100 // (config.shared_bytes(*k_major) + _RESERVED),
            _THREADS // config.threads,
        ),
        "warps": config.threads / 128,
        "products": config.thread_m * config.thread_n * steps * parts**2,
        "copies": sum(count for count, few, along in each if few and not along),
        "transposed": sum(count for count, few, along in each if few and along),
        "vectors": sum(count for count, few, along in each if along and not few),
        "loads": any(by_vectors) and config.tile_elements < LARGEST,
        "reads": (config.thread_m + config.thread_n) // config.vector * steps,
        "tile_elements": config.thread_m * config.thread_n * parts,
        "factor": factor[any(unaligned)] * written,
    }


def _further(config: SimtConfig, k_major: tuple[bool, bool], by_vectors: bool, by_element: bool) -> float:
    """Return the further factor of a config with aligned K-major operands, or in groups of warps."""
    if any(k_major):
        return _K_MAJOR.get((config.tile_m, config.tile_n, config.tile_k, config.warps_k, by_vectors), 1.0)
    further = _IN_GROUPS.get(config.tile_elements, _InGroups()) if config.warps_k > 1 else _InGroups()
    return further.mn_major_by_element if by_element else further.mn_major


@cache_last_call
def operand_layouts(problem: GemmProblem) -> tuple[_Layout, _Layout]:
    """Return how A and B of the row-major result lie."""
    oriented, _, _ = row_result(problem)
    a, b = oriented.a, oriented.b
    k_bytes = oriented.k * a.dtype.itemsize
    return _layout_of(a, a.is_row_major, k_bytes), _layout_of(b, not b.is_row_major, k_bytes)


def _layout_of(matrix: StridedMatrix, k_major: bool, k_bytes: int) -> _Layout:
    # Of a padded K-major operand a vector may be half outside.
    outside = k_major and k_bytes % VECTOR_BYTES > 0
    return _Layout(k_major, outside or operand_copies(matrix).copy_bytes < VECTOR_BYTES)


def operand_copies(matrix: StridedMatrix) -> LeadingDimension:
    """Return the leading dimension of an operand, and the widest copies that it allows."""
    # The hardware reads only the part of a copy that is inside, but compute-sanitizer reports all of it as read.
    return leading_dimension(matrix, (VECTOR_BYTES, matrix.dtype.itemsize), ends=True)


def costs(problem: GemmProblem, configs: Sequence[SimtConfig], gpu: GpuRates) -> Any:
    """Return roughly the times in microseconds of `simt_gemm`."""
    return _predicted(_limits(problem, (operand_layouts(problem),), configs, gpu))


def costs_with_copies(
    problem: GemmProblem, copied: Collection[str], configs: Sequence[Any], gpu: GpuRates
) -> tuple[Any, Any]:
    """Return `costs` of a product, and with MN-major copies of some operands: faster than one after the other."""
    _, *names = row_result(problem)
    layouts = operand_layouts(problem)
    first, second = (_COPY if name in copied else one for name, one in zip(names, layouts, strict=True))
    own, others = _predicted(_limits(problem, (layouts, (first, second)), configs, gpu)).reshape(2, -1)
    return own, others


def _predicted(work: SimtWork) -> Any:
    found = work.predicted_us(RATES)
    found *= work.facts.factor
    return found


def costs_of_tiles(
    problem: GemmProblem, tiles: Sequence[float], moved: float, configs: Sequence[SimtConfig], gpu: GpuRates
) -> list[float]:
    """Return roughly the times in microseconds of `simt_grouped` with the operands and the K of a problem.

    Parameters
    ----------
    tiles : sequence of float
        Tiles of each config.
    moved : float
        Bytes of operands and result.
    """
    layouts = (operand_layouts(problem),)
    facts = _facts(configs, layouts, problem.n % VECTOR > 0, gpu.multiprocessors, takes_vectors=False)
    work = _work(facts, np.array(tiles, float), problem.k, gpu.moved_us(moved, 1.0))
    found: list[float] = _predicted(work).tolist()
    return found
