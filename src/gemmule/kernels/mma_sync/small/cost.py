"""Predicted times of products of few tiles: what a warp does one after another, and its waits for device memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from gemmule.core.dtype import DType
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_for_configs
from gemmule.core.problem import GemmProblem
from gemmule.kernels.parts.clusters_at_once import clusters_at_once
from gemmule.kernels.parts.hopper_facts import SMS

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
        A wait for L2, and how much longer it is with each doubling of a product's bytes beyond `cached`.
    later : float
        Share of it that a later round waits, whose loads are in flight while the one before is multiplied.
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
    outside : float
        Share of an element's time that one outside the matrix takes less.
    addend : float
        Reading C.
    cached : float
        Bytes of a product that L2 holds between a record's other products.
    farthest : float
        Doublings of them from which on a wait is no longer.
    memory : float
        Bytes to and from memory.
    """

    launch: float
    instruction: float
    output: float
    wait: float
    longer: float
    later: float
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
    outside: float
    addend: float
    cached: float
    farthest: float
    memory: float


#: Of elements of 2 and of 4 bytes, fitted to records 20261129T023120, 20261129T180210 and 20261129T182414, and to 625
#: products with few rows, epilogues, C, a shared matrix, short and long K (interleaved, not recorded). TF32 has
#: `addend` of 16 bits.
_RATES = {
    "launch": (0.3, 0.5042),
    "instruction": (6.981e-4, 1.487e-3),
    "output": (1.692e-4, 1.931e-4),
    "wait": (0.4136, 0.07534),
    "longer": (0.2306, 0.2177),
    "later": (0.3325, 0.274),
    "reduction": (0.9132, 0.9059),
    "partials": (3.996e-3, 4.576e-3),
    "cta": (0.332, 0.1522),
    "front": (4.802e-4, 6.499e-4),
    "large": (0.2508, 0.1595),
    "waiting": (0.3731, 0.4499),
    "empty": (0.07857, 0.5032),
    "issued": (0.5, 0.7889),
    "round": (0.5439, 0.2059),
    "word": (24.78, 0.0),
    "copy": (18.17, 5.924),
    "step": (96.95, 45.51),
    "rounding": (0.0, 1.76),
    "outside": (0.5474, 0.221),
    "addend": (0.5275, 0.52),
    "cached": (8.843e4, 7.664e4),
    "farthest": (4.642, 4.454),
    "memory": (5.992e6, 5.723e6),
}
RATES = {
    itemsize: SmallRates(**{name: by_type[number] for name, by_type in _RATES.items()})
    for number, itemsize in enumerate((2, 4))
}
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
    #: first, resident: Clusters of which no SM has more than one CTA, and two, on a whole GPU.
    first: int
    resident: int
    start: float  #: A CTA's start and end, with a cluster's reduction.
    written: float  #: Writing the tile.
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
        clusters_at_once(parts, 1),
        clusters_at_once(parts, 2),
        instructions * rates.instruction + reduction + is_large * rates.large,
        config.tile_elements * rates.output,
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
    first_wait = rates.wait + rates.longer * min(math.log2(max(nbytes / rates.cached, 1.0)), rates.farthest)
    wait, outside, empty, issued = rates.later * first_wait, rates.outside, rates.empty, rates.issued
    launch, load, sms, full = rates.launch * gpu.launch, gpu.load, gpu.multiprocessors, 1 - empty
    once = first_wait - wait + (rates.addend if problem.c is not None else 0.0)
    moved, found = gpu.moved_us(nbytes, rates.memory), []
    for one in _every_facts(configs, dtype, copies, rates):
        tile_m, tile_n, parts, together, depth, more_than, most, first, resident, *times = one
        if not more_than < k <= most:
            found.append(math.inf)
            continue
        start, written, each, of_a, of_b, read, more, waiting = times
        k_tiles, clusters = -(-k // depth), -(-m // tile_m) * -(-n // tile_n) * batch * SMS
        # Copies beyond the last row or column are none.
        rows, cols = m / tile_m if m < tile_m else 1.0, n / tile_n if n < tile_n else 1.0
        fronts = of_a * (empty + full * rows) + read + of_b * (empty + full * cols)
        k_tile = issued * fronts
        if k_tile < each:
            k_tile = each
        alone = start + written * (1 - outside * (1 - rows * cols)) + k_tiles * k_tile
        alone += (-(-k_tiles // together) or 1) * wait + once
        computed = alone
        if clusters > first * sms:
            computed += (-(-clusters // (first * sms)) - 1) * (more + k_tiles * fronts + waiting * alone)
            if parts > 1:
                computed += (-(-clusters // (resident * sms)) - 1) * rates.round * alone
        found.append(launch + math.hypot(computed * load, moved))
    return found
