"""Predicted times of products of few tiles: what a warp does one after another, and its waits for device memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from gemmule.core.dtype import DType
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_for_configs
from gemmule.core.problem import GemmProblem

from .config import FRAGMENT, TWO_CTAS, SmallMmaConfig


class SmallRates(NamedTuple):
    """Microseconds on an H200, instructions of a warp, and shares.

    Attributes
    ----------
    launch : float
        A launch and its first wait.
    instruction, output : float
        An instruction of a warp that waits for its own ones, and an element of a tile.
    wait, longer : float
        A wait for L2, and how much longer it is for device memory.
    reduction, partials : float
        Adding partial sums in a cluster, and each of its CTAs.
    cta, front : float
        A further CTA of an SM, and a wavefront of it.
    large : float
        Addition for a CTA of more than 256 threads.
    waiting : float
        Share of its time that a further CTA takes, of which an SM holds one alone.
    empty : float
        Share of an operand's wavefronts that a tile has hardly any rows or columns of.
    issued : float
        Factor of many wavefronts, with one CTA an SM.
    round : float
        Share of its time that a further round of clusters takes.
    word, copy, step, rounding : float
        Instructions for a word that is loaded by elements, an asynchronous copy, a step of K, and its fragment of TF32.
    cached : float
        Bytes of a product that L2 holds between a record's other products; twice as many are read from device memory.
    memory : float
        Bytes to and from memory.
    """

    launch: float
    instruction: float
    output: float
    wait: float
    longer: float
    reduction: float
    partials: float
    cta: float
    front: float
    large: float
    waiting: float
    empty: float
    issued: float
    round: float
    word: float
    copy: float
    step: float
    rounding: float
    cached: float
    memory: float


#: By bytes of an element: of 16 bits, fitted to record 20261129T023120, `large`, `waiting` and `empty` to
#: 20261129T172616 and 20261129T180210; of TF32, to 20261129T172616, `large` to both.
RATES = {
    2: SmallRates(
        launch=0.2189,
        instruction=2.217e-3,
        output=1.041e-4,
        wait=0.171,
        longer=0.3829,
        reduction=0.8943,
        partials=5.433e-3,
        cta=0.517,
        front=5.123e-4,
        large=1.0,
        waiting=0.4505,
        empty=0.1206,
        issued=0.5,
        round=0.3975,
        word=11.0,
        copy=8.0,
        step=12.0,
        rounding=0.0,
        cached=8.42e4,
        memory=2.72e6,
    ),
    4: SmallRates(
        launch=0.4918,
        instruction=2.25e-3,
        output=1.475e-4,
        wait=0.04702,
        longer=0.2944,
        reduction=0.9977,
        partials=4.64e-3,
        cta=0.2713,
        front=5.187e-4,
        large=0.2,
        waiting=0.5072,
        empty=0.2081,
        issued=1.075,
        round=0.3741,
        word=0.0,
        copy=2.841,
        step=27.91,
        rounding=2.047,
        cached=9.4e4,
        memory=6.993e6,
    ),
}
#: CTAs of an SM that begin in a round, by those of a cluster.
_BEGIN = {2: 2.0, 4: 1.6, 8: 1.6}
#: Counted (`gemmule explain`, PTX): instructions of a warp for its start and end, for each k-tile that is loaded with
#: others, and each element of D that it writes; then wavefronts of a CTA's end, and of a warp's element, word, copy,
#: and fragment.
_START, _TOGETHER, _ELEMENT = 163.0, 18.0, 10.0
_END_FRONTS, _ELEMENT_FRONTS, _WORD_FRONTS, _COPY_FRONTS, _FRAGMENT_FRONTS = 100.0, 2.0, 4.6, 3.0, 4.0
#: Steps of a k-tile, and bytes of a word.
_STEPS, _WORD_BYTES = 4, 4
#: Shared memory of a CTA that leaves no room for another one, and k-tiles of a round that nobody timed of 16 bits.
_ALONE, _UNTIMED = 115_000, 8


class _Facts(NamedTuple):
    """Numbers of a config for every product whose operands are copied by so many bytes at once: microseconds below."""

    #: tile_m, tile_n, cluster_k, k_tiles: As of the config.
    tile_m: int
    tile_n: int
    cluster_k: int
    k_tiles: int
    depth: int  #: Elements of K in a k-tile of each CTA of a cluster.
    #: more_than, most: The extents of K that are predicted: more than the one, at most the other.
    more_than: int
    most: float
    start: float  #: A CTA's start and end, with a cluster's reduction.
    k_tile: float  #: The instructions of a k-tile.
    #: of_a, of_b, read: Wavefronts of a k-tile of A and of B, and of its fragments.
    of_a: float
    of_b: float
    read: float
    more: float  #: A further CTA's start and end on an SM.
    waiting: float  #: Share of its whole time that a further CTA takes.


@cache_for_configs
def _every_facts(
    configs: Sequence[SmallMmaConfig], dtype: DType, copies: tuple[int, int], rates: SmallRates
) -> list[_Facts]:
    return [_facts(config, dtype, copies, rates) for config in configs]


def _facts(config: SmallMmaConfig, dtype: DType, copies: tuple[int, int], rates: SmallRates) -> _Facts:
    warps, steps, parts = config.threads / 32, _STEPS // config.warps_k, config.cluster_k
    fragments = (config.tile_m // config.warps_m + config.tile_n // config.warps_n) // FRAGMENT
    k_tile = steps * (rates.step + fragments * rates.rounding)
    fronts = []
    for side, copied in zip((config.tile_m, config.tile_n), copies, strict=True):
        by_element = copied < _WORD_BYTES
        count = side * config.k_bytes / (max(copied, _WORD_BYTES) * config.threads)
        k_tile += count * (rates.word if by_element else rates.copy)
        fronts.append(count * warps * (_WORD_FRONTS if by_element else _COPY_FRONTS) * rates.front)
    elements = config.tile_elements / (config.threads * parts)
    instructions = _START + _TOGETHER * config.k_tiles + _ELEMENT * elements
    reduction = rates.reduction + rates.partials * parts if parts > 1 else 0.0
    is_large, depth, most = config.threads > TWO_CTAS, config.depth(dtype), math.inf
    # Nobody timed such rounds of 16 bits; and a CTA that has an SM alone waits for a second round with nothing else to
    # do.
    if dtype.itemsize < _WORD_BYTES and config.k_tiles >= _UNTIMED:
        most = -1
    elif is_large:
        most = depth * config.k_tiles
    return _Facts(
        config.tile_m,
        config.tile_n,
        parts,
        config.k_tiles,
        depth * parts,
        # Else half of the CTAs would have no k-tile.
        depth * parts // 2 if parts > 1 else -1,
        most,
        instructions * rates.instruction + config.tile_elements * rates.output + reduction + is_large * rates.large,
        k_tile * rates.instruction,
        fronts[0],
        fronts[1],
        _FRAGMENT_FRONTS * steps * fragments * warps * rates.front,
        rates.cta + (_END_FRONTS + _ELEMENT_FRONTS * elements * warps) * rates.front,
        rates.waiting if is_large or config.shared_bytes > _ALONE else 0.0,
    )


def times_us(
    problem: GemmProblem,
    configs: Sequence[SmallMmaConfig],
    gpu: GpuRates,
    copies: tuple[int, int],
    rates: SmallRates | None = None,
) -> list[float]:
    """Return roughly the times in microseconds; `copies` are bytes at once of A and B, of a row-major D."""
    m, n, k, batch, nbytes = problem.m, problem.n, problem.k, (problem.batch or (1,))[0], problem.bytes_min
    dtype = problem.a.dtype
    rates = rates or RATES[dtype.itemsize]
    wait = rates.wait + rates.longer * min(math.log2(max(nbytes / rates.cached, 1.0)), 1.0)
    moved, found = gpu.moved_us(nbytes, rates.memory), []
    empty, issued, full = rates.empty, rates.issued, 1 - rates.empty
    launch, load, sms = rates.launch * gpu.launch, gpu.load, gpu.multiprocessors
    for facts in _every_facts(configs, dtype, copies, rates):
        tile_m, tile_n, parts, together, depth, more_than, most, start, each, of_a, of_b, read, more, waiting = facts
        if not more_than < k <= most:
            found.append(math.inf)
            continue
        k_tiles = -(-k // depth)
        ctas = -(-m // tile_m) * -(-n // tile_n) * batch * parts
        # Copies beyond the last row or column are none.
        fronts = of_a * (empty + full * (m / tile_m if m < tile_m else 1.0)) + read
        fronts += of_b * (empty + full * (n / tile_n if n < tile_n else 1.0))
        k_tile = issued * fronts
        if k_tile < each:
            k_tile = each
        alone = start + k_tiles * k_tile + (-(-k_tiles // together) or 1) * wait
        computed = alone + (-(-ctas // sms) - 1) * (more + k_tiles * fronts + waiting * alone)
        if parts > 1:
            computed += (math.ceil(ctas / (sms * _BEGIN[parts])) - 1) * rates.round * alone
        found.append(launch + computed * load + moved)
    return found
