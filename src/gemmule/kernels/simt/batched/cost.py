"""Predicted times of products of many small matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gemmule.core.dataclass import dataclass
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_for_configs
from gemmule.core.problem import GemmProblem

from .config import VECTOR_BYTES, BatchedConfig

#: Microseconds of a launch, of a CTA's first k-tiles from device memory and of later ones, as many as there are stages;
#: and of the exchange of partial sums in a cluster, for itself and for each other CTA.
_LAUNCH, _FIRST, _AGAIN, _EXCHANGE, _PEER = 2.0, 1.0, 0.8, 1.1, 0.04
#: Bytes a microsecond from and to device memory, of an H200.
_MEMORY = 4.45e6
#: Cycles a microsecond; cycles of a scheduler for a warp's read of 16 bytes, copy of 16 bytes and of an element, store,
#: and for a CTA's start and a k-tile's synchronisation.
_CYCLES, _READ, _COPY, _COPY_ELEMENT, _STORE, _START, _BARRIER = 1755.0, 3, 8, 15, 12, 200, 60
#: Likewise for a conversion of an element of a narrower type, by bytes of it: instructions of machine code, those from
#: integers at half the rate (assumed).
_CONVERT = {2: 1.5, 1: 3}
#: Schedulers, CTAs and bytes of shared memory of an SM, and bytes that a CTA takes beyond its stages.
_SCHEDULERS, _MOST_CTAS, _SHARED, _RESERVED = 4, 32, 227 << 10, 1 << 10
#: CTAs of an SM that keep device memory busy, and what its time is multiplied by where there are fewer: by 32 x 32 x 32
#: in float64, where three take 0.986 of the time of two on an H100 (record 20261125T121816), and took 0.957 on an H200,
#: of which no record is committed.
_BUSY, _GAPS = 3, 1.04
#: Limits overlap almost wholly: the time is the norm of this power of theirs.
_POWER = 8
#: Rows or columns up to which clusters were timed; beyond, they take twice the time that is predicted here, or more.
_FEW = 16
#: Factor on predicted times of CTAs in clusters, and microseconds that each such CTA of an SM adds:
#: fitted to 23 products of records 20261124T203245 and 20261124T231252 (an H100).
_CLUSTERED = {4: (0.91, 0.56), 8: (0.87, 0.66), 16: (0.81, 0.97)}
#: Of operands that are narrower than the result, a factor on those times, what is less, and the least share: as 20
#: products of record 20261130T093639 took (an H200). Times of one type are 3 us too long for small products too, but
#: `simt_gemm`'s, which they are compared with, are likewise.
_FACTOR, _LESS, _LEAST = 1.58, 7.2, 0.55
#: FMAs of float64 a scheduler issues every second cycle.
_FMA = {4: 1, 8: 2}


@dataclass(frozen=True)
class BatchedFacts:
    """Facts of a config for every product of a type whose operands are copied and written by so many bytes at once.

    Attributes
    ----------
    issue : float
        Cycles of an SM's schedulers for a k-tile, and for the rest of a CTA.
    ends : float
        Likewise, for a CTA's start and for what it writes.
    warps : float
        Warps of a CTA for each scheduler.
    resident : int
        CTAs of an SM.
    """

    issue: float
    ends: float
    warps: float
    resident: int


@cache_for_configs
def _every_facts(
    configs: Sequence[BatchedConfig], items: tuple[int, int, int], copies: tuple[int, int, int]
) -> list[tuple[BatchedConfig, BatchedFacts]]:
    return [(config, _facts(config, items, copies)) for config in configs]


def _facts(config: BatchedConfig, items: tuple[int, int, int], copies: tuple[int, int, int]) -> BatchedFacts:
    *own, item = items
    reads = (config.thread_m + config.thread_n) * config.tile_k * item // VECTOR_BYTES
    issue: float = config.thread_m * config.thread_n * config.tile_k * _FMA[item] + reads * _READ + _BARRIER
    sides = ((config.tile_m, config.thread_m), (config.tile_n, config.thread_n))
    for (tile, side), size, narrow in zip(sides, copies, own, strict=False):
        count = tile * config.tile_k * config.matrices * narrow // size // config.threads
        issue += count * (_COPY if size == VECTOR_BYTES else _COPY_ELEMENT)
        if narrow < item:
            issue += side * config.tile_k * _CONVERT[narrow]
    stores = config.thread_m * config.thread_n * item // copies[2] // config.writers
    stages = config.stage("a", True, own[0], item), config.stage("b", True, own[1], item)
    shared = config.shared_bytes(stages, item, config.stages * config.tile_k * config.cluster_k)
    resident = min(config.resident(item), _SHARED // (shared + _RESERVED), _MOST_CTAS)
    return BatchedFacts(issue, _START + stores * _STORE, config.threads / 32 / _SCHEDULERS, resident)


def moving_us(problem: GemmProblem, gpu: GpuRates) -> float:
    """Return roughly the least time in microseconds of a kernel that moves a product's bytes once."""
    return _LAUNCH + _FIRST + problem.bytes_min / gpu.memory_rate(_MEMORY)


def costs(
    problem: GemmProblem, configs: Sequence[BatchedConfig], gpu: GpuRates, copies: tuple[int, int, int]
) -> list[float]:
    """Return roughly the times in microseconds; `copies` are bytes at once of A, B and D, of a row-major D."""
    m, n, k, batch = problem.m, problem.n, problem.k, (problem.batch or (1,))[0]
    items = problem.a.dtype.itemsize, problem.b.dtype.itemsize, problem.d.dtype.itemsize
    memory = problem.bytes_min / gpu.memory_rate(_MEMORY)
    found = []
    for config, facts in _every_facts(configs, items, copies):
        peers = config.cluster_k - 1
        if peers and min(m, n) > _FEW:
            found.append(math.inf)
            continue
        ctas = -(-m // config.tile_m) * -(-n // config.tile_n) * -(-batch // config.matrices) * config.cluster_k
        k_tiles = -(-k // (config.tile_k * config.cluster_k))
        each = -(-ctas // gpu.multiprocessors)
        cycles = k_tiles * facts.issue + facts.ends
        # A CTA alone hides nothing of its own latency.
        alone = _FIRST + max(k_tiles / config.stages - 1, 0) * _AGAIN + cycles / _CYCLES
        waves = max(each / facts.resident, 1.0)
        issue = each * cycles * facts.warps / _CYCLES
        moving = memory if facts.resident >= _BUSY else memory * _GAPS
        time = float((moving**_POWER + issue**_POWER + (waves * alone) ** _POWER) ** (1 / _POWER))
        predicted = _LAUNCH + _FIRST + time
        if peers:
            factor, each_us = _CLUSTERED.get(config.cluster_k, _CLUSTERED[max(_CLUSTERED)])
            predicted = factor * (predicted + _EXCHANGE + _PEER * peers) + each_us * ctas / gpu.multiprocessors
            if min(items) < items[2]:
                predicted = max(_FACTOR * predicted - _LESS, _LEAST * predicted)
        found.append(predicted)
    return found
