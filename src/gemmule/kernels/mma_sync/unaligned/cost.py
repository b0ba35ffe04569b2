"""Predicted times of products of few tiles: what a warp does one after another, and its waits for device memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gemmule.core.dataclass import dataclass
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_for_configs
from gemmule.core.problem import GemmProblem

from .config import FRAGMENT, UnalignedMmaConfig

#: Microseconds on an H200, none of them fitted to times of this kernel: a launch, a wait for device memory, and an
#: instruction of a warp that waits for its own ones. With these, counted instructions and waits of mma_sync_gemm take
#: what it took for such products in the records of draws. Then adding partial sums in a cluster, and bytes to and from
#: memory: those of mma_sync_gemm.
_LAUNCH, _WAIT, _INSTRUCTION, _REDUCTION, _PARTIALS, _BYTES = 2.0, 0.45, 1.2e-3, 1.5, 0.2, 2.72e6
#: Instructions that a scheduler issues, and wavefronts that L1 and shared memory take, in a microsecond.
_CYCLES = 1755.0
#: Counted (`gemmule explain`, PTX): instructions of a warp for its start and end, for each k-tile that is loaded with
#: others, each element of D that it writes, each word that it loads by elements and each asynchronous copy, and each
#: step of K; then wavefronts of a CTA's end, and of a warp's element, word, copy, and fragment.
_START, _TOGETHER, _ELEMENT, _WORD, _COPY, _STEP = 163.0, 18.0, 10.0, 11.0, 8.0, 12.0
_END_FRONTS, _ELEMENT_FRONTS, _WORD_FRONTS, _COPY_FRONTS, _FRAGMENT_FRONTS = 100.0, 2.0, 4.6, 3.0, 4.0
#: Steps of a k-tile, bytes of a word, schedulers and registers of an SM, and registers of a thread: 97 to 152.
_STEPS, _WORD_BYTES, _SCHEDULERS, _REGISTERS, _EACH = 4, 4, 4, 65536, 128


@dataclass(frozen=True)
class _Facts:
    """What a config does for every product whose operands are copied by so many bytes at once."""

    #: start, k_tile: Instructions of a warp for its start and end, and for a k-tile.
    start: float
    k_tile: float
    #: end_fronts, fronts: Wavefronts of a CTA for its end, and for a k-tile.
    end_fronts: float
    fronts: float
    resident: int  #: CTAs of an SM.


@cache_for_configs
def _every_facts(configs: Sequence[UnalignedMmaConfig], copies: tuple[int, int]) -> list[_Facts]:
    return [_facts(config, copies) for config in configs]


def _facts(config: UnalignedMmaConfig, copies: tuple[int, int]) -> _Facts:
    warps, steps = config.threads / 32, _STEPS // config.warps_k
    fragments = (config.tile_m // config.warps_m + config.tile_n // config.warps_n) // FRAGMENT
    k_tile, fronts = _STEP * steps, _FRAGMENT_FRONTS * steps * fragments
    for side, copied in zip((config.tile_m, config.tile_n), copies, strict=True):
        by_element = copied < _WORD_BYTES
        count = side * config.k_bytes / (max(copied, _WORD_BYTES) * config.threads)
        k_tile += count * (_WORD if by_element else _COPY)
        fronts += count * (_WORD_FRONTS if by_element else _COPY_FRONTS)
    elements = config.outputs / (config.threads * config.cluster_k)
    return _Facts(
        _START + _TOGETHER * config.k_tiles + _ELEMENT * elements,
        k_tile,
        _END_FRONTS + _ELEMENT_FRONTS * elements * warps,
        fronts * warps,
        max(_REGISTERS // (_EACH * config.threads), 1),
    )


def times_us(
    problem: GemmProblem, configs: Sequence[UnalignedMmaConfig], gpu: GpuRates, copies: tuple[int, int]
) -> list[float]:
    """Return roughly the times in microseconds; `copies` are bytes at once of A and B, of a row-major D."""
    batch, found = (problem.batch or (1,))[0], []
    moved = gpu.moved_us(problem.bytes_min, _BYTES)
    for config, facts in zip(configs, _every_facts(configs, copies), strict=True):
        parts = config.cluster_k
        if parts > 1 and problem.k <= config.depth * parts // 2:
            # Half of the CTAs would have no k-tile.
            found.append(math.inf)
            continue
        k_tiles = -(-problem.k // (config.depth * parts))
        ctas = -(-problem.m // config.tile_m) * -(-problem.n // config.tile_n) * batch * parts
        each = -(-ctas // gpu.multiprocessors)
        instructions = facts.start + k_tiles * facts.k_tile
        alone = instructions * _INSTRUCTION + max(-(-k_tiles // config.k_tiles), 1) * _WAIT
        issued = each * instructions * config.threads / 32 / _SCHEDULERS / _CYCLES
        fronts = each * (k_tiles * facts.fronts + facts.end_fronts) / _CYCLES
        computed = max(-(-each // facts.resident) * alone, _WAIT + issued, _WAIT + fronts)
        if parts > 1:
            computed += _REDUCTION + _PARTIALS * parts
        found.append(_LAUNCH * gpu.launch + computed * gpu.load + moved)
    return found
