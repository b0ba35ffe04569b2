"""Predicted times of hopper_gemm_unaligned_a: as of hopper_gemm_unaligned, with loads of A of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_for_configs
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.kernels.hopper.gemm_line_classes.config import TILE_K
from gemmule.kernels.hopper.tile_config import MMA_M
from gemmule.kernels.hopper.tma_tiles import why_not_tma

from .config import UnalignedAConfig

#: Microseconds on an H200, fitted to 240 times of 30 odd products (bfloat16, interleaved, not recorded): a launch;
#: multiplying 128 x 128 of a k-tile, and columns that each wgmma costs more.
_LAUNCH, _MULTIPLY, _MORE_COLUMNS = 2.257, 0.219, 3.58
#: Loading 128 rows of a k-tile of A, K-major and MN-major; 256 columns of B; the share that each further CTA of a
#: multicast costs.
_LOAD_A, _LOAD_B, _MULTICAST = (0.304, 0.277), 0.297, 0.901
#: The next tile; writing 128 x 128 of it, by one warpgroup, and the share of it that two take.
_NEXT, _WRITE, _SHARED = 0.56, 1.682, 0.831
#: Reading C, a share of what writing D takes.
_READ_C = 4.0
#: Bytes of a result that are written in one.
_BYTES = 1.95e6
#: Powers by which the longer of two times outweighs the other.
_OVERLAP, _BOUND = 4, 6


class SplitRates(NamedTuple):
    """Times in microseconds on an H200 where clusters split K, fitted to 104 times of 41 odd products (bfloat16)."""

    launch: float = 1.86  #: A launch, and the first loads.
    load_a: float = 0.208  #: Loading 128 rows of a k-tile as they lie.
    load_b: float = 0.199  #: Loading 256 columns of the copy.
    narrow: float = 2.68  #: Factor on MN-major columns that are no multiple of 64.
    multiply: float = 0.335  #: 128 x 128 of a k-tile.
    latency: float = 0.734  #: From the load of a stage to the next one of the same stage but one.
    end: float = 2.7  #: The end of a tile.
    exchange: float = 0.959  #: Exchanging 64 x 64 partial sums.
    write: float = 2.76  #: Writing 128 x 128.
    l2: float = 8.24e6  #: Bytes of the copy from L2 in one.
    unaligned: float = 1.4  #: Factor on those of lines as they lie.


_SPLIT = SplitRates()


class _Split(NamedTuple):
    """Times of a config that splits K for every product, in microseconds."""

    clusters: int  #: Clusters that are resident at once.
    k_tiles: tuple[float, float]  #: A k-tile, of a copy whose rows in shared memory are whole, and of others.
    end: float  #: The end of a tile, without writing it.
    write: float  #: Writing a tile.


class _Orientation(NamedTuple):
    """A product as the kernel has it, with swap_ab or without."""

    kept: StridedMatrix  #: The operand that is loaded as it is.
    copy: StridedMatrix  #: The other one.
    kept_bytes: int
    k_tiles: int
    k_major: bool  #: Whether lines of what is loaded as it is are along K.


@cache_for_configs
def _terms(configs: Sequence[UnalignedAConfig], gpu: GpuRates) -> list[list[tuple[int, UnalignedAConfig, Any]]]:
    """Return the configs without swap_ab and those with it, by their numbers, with what their times have of numbers."""
    found: list[list[tuple[int, UnalignedAConfig, Any]]] = [[], []]
    for number, one in enumerate(configs):
        found[one.swap_ab].append((number, one, _split(one, gpu) if one.cluster_k > 1 else _whole(one, gpu)))
    return found


def _split(one: UnalignedAConfig, gpu: GpuRates) -> _Split:
    rates, share, k = _SPLIT, one.tile_n / 128, one.cluster_k
    multiply = gpu.multiply * rates.multiply * (one.tile_n + _MORE_COLUMNS) / 128
    latency = gpu.load * rates.latency / (one.stages - 1)
    loads = [gpu.load * (rates.load_a + rates.load_b * one.tile_n / 256 * factor) for factor in (1, rates.narrow)]
    whole, others = ((x**_OVERLAP + multiply**_OVERLAP + latency**_OVERLAP) ** (1 / _OVERLAP) for x in loads)
    return _Split(
        clusters=max(min(gpu.multiprocessors // one.cluster_size, one.max_active_clusters), 1),
        k_tiles=(whole, others if one.tile_n % MMA_M else whole),
        end=gpu.load * (rates.end + rates.exchange * 4 * share * (1 - 1 / k)),
        write=gpu.load * rates.write * share / k,
    )


def _split_us(given: _Orientation, one: UnalignedAConfig, split: _Split, gpu: GpuRates, reads_c: bool) -> float:
    """Return roughly the microseconds of a product of which clusters split K: tiles, or what they read from L2."""
    columns = -(-given.copy.rows // one.tile_n)
    # Of a K-major operand a part of K has one k-tile more, for what is carried.
    k_tiles = -(-given.k_tiles // one.cluster_k) + given.k_major
    tiles = -(-given.kept.rows // one.tile_m) * columns
    k_tile = split.k_tiles[not given.copy.has_contiguous_rows]
    body = -(-tiles // split.clusters) * (k_tiles * k_tile + split.end + split.write * (2 if reads_c else 1))
    nbytes = given.kept_bytes * columns * (_SPLIT.unaligned + min(one.tile_n, given.copy.rows) / 128)
    read = gpu.l2 * nbytes / _SPLIT.l2
    us: float = gpu.launch * _SPLIT.launch + (body**_OVERLAP + read**_OVERLAP) ** (1 / _OVERLAP)
    return us


def _orientation(problem: GemmProblem, swap_ab: int) -> _Orientation | None:
    """Return the product as configs have it, or None where these refuse it, since TMA cannot load the other operand."""
    operands = problem.a, problem.b.transposed()
    kept, copy = operands[::-1] if problem.d.is_row_major == swap_ab else operands
    if why_not_tma("b", copy, ()) is not None:
        return None
    k_major = kept.has_contiguous_rows
    return _Orientation(kept, copy, kept.distinct_bytes(()), -(-(problem.k + 7 * k_major) // TILE_K), k_major)


class _Whole(NamedTuple):
    """Times of a config that splits no K for every product, in microseconds."""

    rows: int  #: Rows of a cluster's tiles, of the operand that is loaded as it is.
    cols: int  #: Columns, of the other one.
    clusters: int  #: Clusters that are resident at once.
    pingpong: int
    k_tiles: tuple[float, float]  #: A k-tile of K-major lines, and of others.
    write: float  #: Writing a tile.
    write_adding: float  #: Reading C and writing a tile.


def _whole(one: UnalignedAConfig, gpu: GpuRates) -> _Whole:
    load_b = _LOAD_B * one.tile_n / 256 * _shared(one.cluster_m)
    multiply = gpu.multiply * _MULTIPLY * one.tile_m * (one.tile_n + _MORE_COLUMNS) / 2**14
    loads = [gpu.load * (load_a * one.tile_m / 128 * _shared(one.cluster_n) + load_b) for load_a in _LOAD_A]
    k_major, others = ((multiply**_OVERLAP + load**_OVERLAP) ** (1 / _OVERLAP) for load in loads)
    share = one.tile_elements / 2**14
    return _Whole(
        rows=one.tile_m * one.cluster_m,
        cols=one.tile_n * one.cluster_n,
        clusters=max(min(gpu.multiprocessors // one.cluster_size, one.max_active_clusters), 1),
        pingpong=one.pingpong,
        k_tiles=(k_major, others),
        write=gpu.load * share * _WRITE,
        write_adding=gpu.load * share * (_WRITE + _READ_C),
    )


def costs(problem: GemmProblem, configs: Sequence[UnalignedAConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds: tiles that an SM computes one after another, and their cost."""
    launched, reads_c, following = gpu.launch * _LAUNCH, problem.c is not None, gpu.load * _NEXT
    least = (launched + gpu.moved_us(problem.m * problem.n * problem.d.dtype.itemsize, _BYTES)) ** _BOUND
    found = [math.inf] * len(configs)
    for swap_ab, numbered in enumerate(_terms(configs, gpu)):
        given = _orientation(problem, swap_ab)
        if given is None:
            continue
        kept, copied, k_tiles, others = given.kept.rows, given.copy.rows, given.k_tiles, not given.k_major
        for number, one, terms in numbered:
            if isinstance(terms, _Split):
                total = _split_us(given, one, terms, gpu, reads_c)
            else:
                waves = -(-(-(-kept // terms.rows) * -(-copied // terms.cols)) // terms.clusters)
                products = terms.k_tiles[others] * k_tiles
                write = terms.write_adding if reads_c else terms.write
                if terms.pingpong:
                    tile = (products**_OVERLAP + ((products + write + following) / 2) ** _OVERLAP) ** (1 / _OVERLAP)
                    total = launched + waves * (tile + following) + write
                else:
                    total = launched + waves * (products + write * _SHARED + following)
            found[number] = (total**_BOUND + least) ** (1 / _BOUND)
    return found


def _shared(ctas: int) -> float:
    """Return how long a load takes that so many CTAs share, as a share of each one's own."""
    return (1 + _MULTICAST * (ctas - 1)) / ctas
