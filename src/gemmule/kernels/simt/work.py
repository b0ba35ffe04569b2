"""The cost model of the float32 GEMMs: facts and work of configs, and the time that their limits take."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import FLOAT32
from gemmule.core.last_call_cache import cache_for_configs
from gemmule.kernels.parts.clusters_at_once import ClusterPlaces

from .config import LARGEST, LEAST_SIDE, SimtConfig
from .rates import SimtRates, factor_of, unaligned_factor

#: Cycles of an IMAD, of which an SM has 64 a clock cycle, and 128 FMAs (CUDA programming guide, arithmetic throughput),
#: by those of an FMA in `rates`: these pass at 3167 a microsecond, an H200's clock at up to 1980.
_IMAD_CYCLES = 3.0
#: Threads and bytes of shared memory of an SM, and bytes that a CTA takes beyond its stages.
_THREADS, _SHARED, _RESERVED = 2048, 227 << 10, 1 << 10
#: With `wide_copies`, what a k-tile waits for vectors by what others do; and its first k-tiles, whose vectors are all
#: loaded at once, and which do not wait.
_WAITS, _TOGETHER = 2.3, 4
#: Waits for vectors in slots by those for vectors through registers, in small square tiles; others have none.
_SLOTS_WAIT = 0.6


class OperandLayout(NamedTuple):
    """Layout of an operand."""

    k_major: bool
    unaligned: bool


@dataclasses.dataclass(frozen=True, eq=False)
class SimtFacts:
    """Facts of configs for every product of a kind of operands: most an array with a number for each config.

    Attributes
    ----------
    tile_m, tile_n, cluster_k : array
        Fields of the configs.
    depth : array
        k of a k-tile of all CTAs of a cluster.
    places : ClusterPlaces
        Placement of the configs' clusters.
    multiprocessors : int
        SMs of the GPU.
    resident : array
        CTAs of an SM in a full wave.
    warps : array
        Warps of a CTA for each scheduler.
    products, copies, transposed, vectors, reads, tile_elements : array
        A thread's FMAs, copies of 4 bytes of MN-major and of K-major operands, vectors of K-major operands, and reads
        of vectors for a k-tile; and elements of its tile.
    loads, together : array
        Wait of a CTA that is alone for vectors, by that of the rates; and its first k-tiles, which do not.
    factor : array
        Measured time of the config by that of the limits.
    """

    tile_m: Any
    tile_n: Any
    cluster_k: Any
    depth: Any
    places: ClusterPlaces
    multiprocessors: int
    resident: Any
    warps: Any
    products: Any
    copies: Any
    transposed: Any
    vectors: Any
    loads: Any
    together: Any
    reads: Any
    tile_elements: Any
    factor: Any


@dataclass(frozen=True)
class SimtWork:
    """Work of configs for a product: an array with a number for each config, or for each of several products.

    Attributes
    ----------
    facts : SimtFacts
        Work for every product.
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
        issue, latency, loading, wave, ends, once = _known_us(self.facts, rates)
        time = _sixth_power(self.rest * issue)
        later = np.maximum(1 - self.facts.together / np.maximum(self.k_tiles, 1), 0)
        time += _sixth_power(latency + loading * later)
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
    latency = rates.latency / rates.cycles + rates.alone * issue
    loading = rates.loading * of.loads / rates.cycles
    ends = (rates.start + rates.epilogue * of.tile_elements * of.warps) / rates.cycles
    peers = of.cluster_k - 1
    once = rates.launch + np.where(peers > 0, rates.exchange, 0.0) + peers * rates.peer
    return issue, latency, loading, _larger(of.resident * issue, latency + loading), ends, once


def _larger(one: Any, other: Any) -> Any:
    """Return the larger of two limits, or a little more where both count."""
    return (_sixth_power(one) + _sixth_power(other)) ** (1 / 6)


def _sixth_power(number: Any) -> Any:
    # NumPy's power takes ten times as long.
    square = number * number
    return square * square * square


def work_of(facts: SimtFacts, tiles: Any, k: int, moved: Any) -> SimtWork:
    """Return the work of configs for so many tiles each, with `k` products an element."""
    ctas = facts.places.busiest(tiles, facts.multiprocessors)
    waves = np.floor((ctas - 1) / facts.resident)
    return SimtWork(facts, ctas, waves, ctas - waves * facts.resident, np.ceil(k / facts.depth), moved)


@cache_for_configs
def facts_of(
    configs: Sequence[SimtConfig],
    operands: tuple[tuple[OperandLayout, OperandLayout], ...],
    by_element: bool,
    multiprocessors: int,
    takes_vectors: bool = True,
    integers: bool = False,
) -> SimtFacts:
    """Return the facts of configs for every product with such operands, one pair of A and B after another.

    The result is written by element where its rows do not begin at multiples of 16 bytes. A kernel that takes no
    vectors of K-major operands copies all of them by element.
    """
    every = [
        {
            **_facts_of_config(config, (a.k_major, b.k_major), (a.unaligned, b.unaligned), by_element, takes_vectors),
            **(_integer_facts(config) if integers else {}),
        }
        for a, b in operands
        for config in configs
    ]
    # CTAs that wait begin where others end: so many an SM hold as many clusters as if all were resident. With as many
    # an SM as a cluster has, all SMs are full, and the count begins anew.
    places = ClusterPlaces([(config.cluster_k, config.cluster_k) for _ in operands for config in configs])
    arrays = {name: np.array([one[name] for one in every], float) for name in every[0]}
    return SimtFacts(places=places, multiprocessors=multiprocessors, **arrays)


def _integer_facts(config: SimtConfig) -> dict[str, float]:
    """Return what differs of int32: between two IMAD the scheduler issues what else there is."""
    products = config.thread_m * config.thread_n * config.tile_k // config.warps_k
    others = dict.fromkeys(("copies", "transposed", "vectors", "reads"), 0.0)
    return {**others, "products": _IMAD_CYCLES * products, "factor": 1.0}


def _facts_of_config(
    config: SimtConfig, k_major: tuple[bool, bool], unaligned: tuple[bool, bool], by_element: bool, takes_vectors: bool
) -> dict[str, float]:
    # FMAs of a product of elements, and registers of an accumulator.
    parts = config.itemsize // FLOAT32.itemsize
    steps = config.tile_k // config.warps_k
    # These are copied by element.
    aligned = [takes_vectors and along and not few for along, few in zip(k_major, unaligned, strict=True)]
    pair = aligned[0], aligned[1]
    by_slots = config.by_slots(pair)
    by_vectors = tuple(one or slot for one, slot in zip(config.by_vectors(pair), by_slots, strict=True))
    copied = "slots" if any(by_slots) else "vectors" if any(by_vectors) else "elements"
    if config.wide_copies and any(by_vectors):
        copied = "wide" if all(by_vectors) else "wide of one"
    short = [few or (along and not one) for few, along, one in zip(unaligned, k_major, by_vectors, strict=True)]
    copies = [
        tile * config.tile_k // config.threads // (1 if few else config.vector)
        for tile, few in zip((config.tile_m, config.tile_n), short, strict=True)
    ]
    each = list(zip(copies, short, k_major, strict=True))
    loads = float(any(by_vectors) and config.tile_elements < LARGEST)
    if any(by_slots):
        loads = _SLOTS_WAIT * (config.tile_m == config.tile_n <= LEAST_SIDE)
    return {
        "tile_m": config.tile_m,
        "tile_n": config.tile_n,
        "cluster_k": config.cluster_k,
        "depth": config.tile_k * config.cluster_k,
        "resident": min(
            config.resident(sum(copies)),
            _SHARED
            * (config.carve_out or 100)
            // 100
            // (config.shared_bytes(*k_major, slots=any(by_slots)) + _RESERVED),
            _THREADS // config.threads,
        ),
        "warps": config.threads / 128,
        "products": config.thread_m * config.thread_n * steps * parts**2,
        "copies": sum(count for count, few, along in each if few and not along),
        "transposed": sum(count for count, few, along in each if few and along),
        "vectors": sum(count for count, few, along in each if along and not few),
        "loads": loads * (_WAITS if config.wide_copies else 1),
        "together": _TOGETHER * config.wide_copies,
        "reads": (config.thread_m + config.thread_n) // config.vector * steps,
        "tile_elements": config.thread_m * config.thread_n * parts,
        "factor": factor_of(config, k_major, unaligned, copied, by_element)
        * (unaligned_factor(config, k_major, unaligned) if takes_vectors else 1.0),
    }
