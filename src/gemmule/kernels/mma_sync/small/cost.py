"""Predicted times of products of few tiles: what a warp does one after another, and its waits for device memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gemmule.core.dataclass import dataclass
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_for_configs
from gemmule.core.problem import GemmProblem

from .config import FRAGMENT, SmallMmaConfig

#: Microseconds on an H200, fitted to record 20261129T023120: a launch and its first wait, an instruction of a warp that
#: waits for its own ones, an element of a tile, a wait for L2, and how much longer it is for device memory.
_LAUNCH, _INSTRUCTION, _OUTPUT, _WAIT, _LONGER = 0.2189, 2.217e-3, 1.041e-4, 0.171, 0.3829
#: Adding partial sums in a cluster, by its CTAs; a further CTA of an SM, a wavefront of it; bytes to and from memory.
_REDUCTION, _PARTIALS, _CTA, _FRONT, _BYTES = 0.8943, 5.433e-3, 0.517, 5.123e-4, 2.72e6
#: Share of its time that a further round of clusters takes, and CTAs of an SM that begin in one, by those of a cluster.
_ROUND, _BEGIN = 0.3975, {2: 2.0, 4: 1.6, 8: 1.6}
#: Bytes of a product that L2 holds between a record's other products; twice as many are read from device memory.
_CACHED = 8.42e4
#: Counted (`gemmule explain`, PTX): instructions of a warp for its start and end, for each k-tile that is loaded with
#: others, each element of D that it writes, each word that it loads by elements and each asynchronous copy, and each
#: step of K; then wavefronts of a CTA's end, and of a warp's element, word, copy, and fragment.
_START, _TOGETHER, _ELEMENT, _WORD, _COPY, _STEP = 163.0, 18.0, 10.0, 11.0, 8.0, 12.0
_END_FRONTS, _ELEMENT_FRONTS, _WORD_FRONTS, _COPY_FRONTS, _FRAGMENT_FRONTS = 100.0, 2.0, 4.6, 3.0, 4.0
#: Steps of a k-tile, and bytes of a word.
_STEPS, _WORD_BYTES = 4, 4


@dataclass(frozen=True)
class _Facts:
    """Times of a config for every product whose operands are copied by so many bytes at once, in microseconds."""

    #: start, k_tile: A CTA's start and end, with a cluster's reduction, and a k-tile.
    start: float
    k_tile: float
    #: more, more_k_tile: A further CTA's start and end on an SM, and a k-tile of it.
    more: float
    more_k_tile: float


@cache_for_configs
def _every_facts(configs: Sequence[SmallMmaConfig], copies: tuple[int, int]) -> list[_Facts]:
    return [_facts(config, copies) for config in configs]


def _facts(config: SmallMmaConfig, copies: tuple[int, int]) -> _Facts:
    warps, steps, parts = config.threads / 32, _STEPS // config.warps_k, config.cluster_k
    fragments = (config.tile_m // config.warps_m + config.tile_n // config.warps_n) // FRAGMENT
    k_tile, fronts = _STEP * steps, _FRAGMENT_FRONTS * steps * fragments
    for side, copied in zip((config.tile_m, config.tile_n), copies, strict=True):
        by_element = copied < _WORD_BYTES
        count = side * config.k_bytes / (max(copied, _WORD_BYTES) * config.threads)
        k_tile += count * (_WORD if by_element else _COPY)
        fronts += count * (_WORD_FRONTS if by_element else _COPY_FRONTS)
    elements = config.tile_elements / (config.threads * parts)
    instructions = _START + _TOGETHER * config.k_tiles + _ELEMENT * elements
    reduction = _REDUCTION + _PARTIALS * parts if parts > 1 else 0.0
    return _Facts(
        instructions * _INSTRUCTION + config.tile_elements * _OUTPUT + reduction,
        k_tile * _INSTRUCTION,
        _CTA + (_END_FRONTS + _ELEMENT_FRONTS * elements * warps) * _FRONT,
        fronts * warps * _FRONT,
    )


def times_us(
    problem: GemmProblem, configs: Sequence[SmallMmaConfig], gpu: GpuRates, copies: tuple[int, int]
) -> list[float]:
    """Return roughly the times in microseconds; `copies` are bytes at once of A and B, of a row-major D."""
    batch, nbytes = (problem.batch or (1,))[0], problem.bytes_min
    wait = _WAIT + _LONGER * min(math.log2(max(nbytes / _CACHED, 1.0)), 1.0)
    moved, found = gpu.moved_us(nbytes, _BYTES), []
    for config, facts in zip(configs, _every_facts(configs, copies), strict=True):
        parts = config.cluster_k
        depth = config.depth(problem.a.dtype)
        if parts > 1 and problem.k <= depth * parts // 2:
            # Half of the CTAs would have no k-tile.
            found.append(math.inf)
            continue
        k_tiles = -(-problem.k // (depth * parts))
        ctas = -(-problem.m // config.tile_m) * -(-problem.n // config.tile_n) * batch * parts
        alone = facts.start + k_tiles * facts.k_tile + max(-(-k_tiles // config.k_tiles), 1) * wait
        computed = alone + (-(-ctas // gpu.multiprocessors) - 1) * (facts.more + k_tiles * facts.more_k_tile)
        if parts > 1:
            computed += (math.ceil(ctas / (gpu.multiprocessors * _BEGIN[parts])) - 1) * _ROUND * alone
        found.append(_LAUNCH * gpu.launch + computed * gpu.load + moved)
    return found
