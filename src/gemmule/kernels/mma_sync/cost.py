"""Predicted times of products by mma.sync; those of TF32 are in `tf32_cost`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gemmule.core.dtype import FLOAT32
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_for_configs, cache_last_call
from gemmule.core.launch import MAP_ALIGNMENT
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.kernels.parts.clusters_at_once import clusters_at_once
from gemmule.kernels.parts.hopper_facts import SMS

from .config import PARTS_OF_K, TILE, MmaSyncConfig
from .config_lists import CONFIGS, FOR_TF32, FOR_UNALIGNED_TF32
from .launch_geometry import WORD, copied_bytes, ctas, launch_problem, vector_of
from .tf32_cost import Lines, Numbers, Tf32Rates, rates_of, times_us
from .tf32_cost import least_us as tf32_least_us

#: K-tiles are of 128 bytes of K; microseconds are those of an H200.
_K_BYTES = 128
#: A and B K-major or of 16 bits: a launch; writing 64 x 64 of 16 bits, aligned and with unaligned rows of D.
#: The cost of C or an epilogue is not measured: it is assumed to be that of `hopper_gemm`.
_LAUNCH, _WRITE, _WRITE_UNALIGNED, _FINISH = 2.31, 0.14, 1.41, 5.0 / 8
#: A k-tile of 64 rows or columns, by the bytes of a copy that an operand's lines permit, and the share of that where a
#: tile has hardly any of its lines; the factor of tiles of later, concurrent waves; bytes to and from memory
#: in a microsecond.
_READ, _READ_EMPTY, _LATER, _BYTES = {8: 0.169, 4: 0.249, 1: 0.601}, 0.57, 0.623, 2.72e6
#: Elements of 8 bits, MN-major: a launch; a k-tile of tiles of so many rows and columns, as long as SMs have
#: one each, and its factor with copies of single bytes; the factor where SMs have more tiles; writing
#: 64 x 64 of 32 bits, with aligned and unaligned D; bytes to and from memory in a microsecond. Fitted to products
#: of records 20261122T190626 and 20261122T190657 and of the draws 20261123T050414 (an H100) and 20261123T051914.
_INT8_LAUNCH, _INT8_TILES, _INT8_BYTEWISE, _INT8_MORE = 1.88, ((128, 0.846), (64, 0.398)), 5.33, 0.713
_INT8_WRITE, _INT8_UNALIGNED, _INT8_BYTES = 0.407, 1.53, 1.82e6
#: With clusters: adding the partial sums of 64 x 64, and more for each CTA; the factor of each round after the first,
#: by the CTAs of a cluster; and the factor of K-major k-tiles. Fitted to records
#: 20261124T201921 to 20261124T202103, 20261124T231318 and 20261124T231501.
_REDUCTION, _PARTIALS = 1.5, 0.2
_MORE_ROUNDS, _SPLIT = {2: 0.91, 4: 0.9, 8: 1.11}, 0.82
#: Lower bound of a k-tile of 64 x 64 of MN-major elements of 8 bits in any config, with many on every SM.
_LEAST = 0.14
#: Share added for each further config that differs in tiles alone, to break ties.
_NEXT = 1e-4


def costs(problem: GemmProblem, configs: Sequence[MmaSyncConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds.

    Of other elements than float32 those without clusters have one time: in the order of what they compute beyond the
    edges, if there is a CTA for each SM, of equals with the largest tiles; where there are fewer CTAs, in the order of
    their number.
    """
    if problem.a.dtype == FLOAT32:
        return _every_tf32_us(problem, gpu) if configs is CONFIGS else tf32_us(problem, configs, gpu).tolist()

    def order(number: int) -> tuple[int, int, int]:
        count = ctas(problem, configs[number])
        if count >= gpu.multiprocessors:
            return 0, count * configs[number].tile_elements, count
        return 1, -count, -number

    alone, split = _plain(configs)
    times, found = dict(zip(PARTS_OF_K, _times(problem, gpu), strict=True)), [math.inf] * len(configs)
    for x in split:
        found[x] = times.get(configs[x].cluster_k, math.inf)
    for place, x in enumerate(sorted(alone, key=order)):
        found[x] = times[1] * (1 + _NEXT * place)
    return found


@cache_for_configs
def _plain(configs: Sequence[MmaSyncConfig]) -> tuple[list[int], list[int]]:
    """Return the configs that are not for TF32 alone, by their numbers: those without clusters, and others."""
    plain = [x for x, one in enumerate(configs) if one not in FOR_TF32 and one not in FOR_UNALIGNED_TF32]
    return [x for x in plain if configs[x].cluster_k == 1], [x for x in plain if configs[x].cluster_k > 1]


def predicted_us(problem: GemmProblem, gpu: GpuRates) -> float:
    """Return roughly the time in microseconds, in the config that suits the problem best."""
    return min(_able_us(problem, gpu, 1))


def is_faster(problem: GemmProblem, cost: float, gpu: GpuRates, *, split: bool = False) -> bool:
    """Return whether less than `cost` microseconds are predicted; with `split`, of clusters that share each tile."""
    if _least_us(problem, gpu) >= cost:
        return False
    return min(_able_us(problem, gpu, 2 if split else 1)) < cost


def _able_us(problem: GemmProblem, gpu: GpuRates, least: int) -> list[float]:
    """Return the times by the CTAs of a tile, `least` or more; of float32 of the configs that take the problem."""
    if problem.a.dtype != FLOAT32:
        return _times(problem, gpu)[least - 1 :]
    # Copies of its words are asynchronous: clusters have the registers (`has_registers`).
    times = _every_tf32_us(problem, gpu)
    return times if least == 1 else [times[number] for number in _clusters(CONFIGS)]


@cache_for_configs
def _clusters(configs: Sequence[MmaSyncConfig]) -> list[int]:
    """Return the numbers of the configs with clusters."""
    return [number for number, one in enumerate(configs) if one.cluster_k > 1]


@cache_last_call
def _every_tf32_us(problem: GemmProblem, gpu: GpuRates) -> list[float]:
    found: list[float] = tf32_us(problem, CONFIGS, gpu).tolist()
    return found


def tf32_us(
    problem: GemmProblem, configs: Sequence[MmaSyncConfig], gpu: GpuRates, rates: Tf32Rates | None = None
) -> Numbers:
    """Return roughly the times of a product in TF32, in microseconds."""
    oriented = launch_problem(problem)
    lines = Lines(min(copied_bytes(oriented)), vector_of(oriented))
    found = times_us(oriented, configs, gpu, lines, rates or rates_of(lines.copied))
    if lines.copied > WORD:
        # Nobody timed these.
        found[_for_unaligned(configs)] = math.inf
    return found


@cache_for_configs
def _for_unaligned(configs: Sequence[MmaSyncConfig]) -> list[bool]:
    """Return whether each config is for lines that begin at any word."""
    return [one in FOR_UNALIGNED_TF32 for one in configs]


def _least_us(problem: GemmProblem, gpu: GpuRates) -> float:
    """Return a time that no predicted one is less than; it costs a fraction of these."""
    if problem.a.dtype == FLOAT32:
        copied = min(copied_bytes(launch_problem(problem)))
        return tf32_least_us(problem, CONFIGS, gpu, rates_of(copied))
    k_tiles = problem.k * problem.a.dtype.itemsize / _K_BYTES
    tiles = problem.m * problem.n / TILE**2 * (problem.batch or (1,))[0]
    # As if all tiles were of later waves, and SMs had tiles all the time: those of clusters take longer.
    k_tile = _LEAST if _is_mn_major_int8(problem) else _LATER * _both_read_us(problem)
    return gpu.load * k_tile * k_tiles * tiles / gpu.multiprocessors


@cache_last_call
def _times(problem: GemmProblem, gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds of other elements than float32, by the CTAs of a tile (`PARTS_OF_K`)."""
    item = problem.a.dtype.itemsize
    found = _k_major_us(problem, gpu)
    if _is_mn_major_int8(problem):
        mn_major = _int8_us(problem, gpu)
        # Results of 8 bits take as long in either layout (record 20261129T210838).
        found = list(map(max, mn_major, found)) if problem.d.dtype.itemsize == 1 else mn_major
    for number, parts in enumerate(PARTS_OF_K):
        if parts > 1:
            enough = problem.k * item >= parts * _K_BYTES
            found[number] += gpu.load * (_REDUCTION + _PARTIALS * parts) if enough else math.inf
    return found


def _is_mn_major_int8(problem: GemmProblem) -> bool:
    return problem.a.dtype.itemsize == 1 and not (problem.a.is_row_major and problem.b.is_col_major)


def _k_major_us(problem: GemmProblem, gpu: GpuRates) -> list[float]:
    """Return the times of 16-bit elements, and of others that are K-major, without reductions."""
    tiles = _tiles(problem, TILE)
    read = _both_read_us(problem)
    wide = max(problem.d.dtype.itemsize / 2, 1.0)
    written = _WRITE * wide if _lines_begin(problem.d) % MAP_ALIGNMENT == 0 else _WRITE_UNALIGNED
    written += _FINISH * ((problem.c is not None) + (problem.epilogue is not None))
    k_bytes, once = problem.k * problem.a.dtype.itemsize, _LAUNCH * gpu.launch
    moved = gpu.moved_us(problem.bytes_min, _BYTES)
    found = []
    for parts in PARTS_OF_K:
        multiplied = k_bytes / _K_BYTES / parts * read
        if parts == 1:
            found.append((multiplied + written) * (1 + _LATER * max(tiles / gpu.multiprocessors - 1, 0.0)))
        else:
            found.append((_SPLIT * multiplied + written) * _rounds(tiles, parts, gpu))
    return [once + one * gpu.load + moved for one in found]


def _int8_us(problem: GemmProblem, gpu: GpuRates) -> list[float]:
    """Return the times of 8-bit elements that are MN-major, without reductions."""
    oriented, filled = launch_problem(problem), _both_filled(problem)
    slower = _INT8_BYTEWISE if min(copied_bytes(oriented)) < WORD else 1.0
    written = _INT8_UNALIGNED if vector_of(oriented) == 1 else _INT8_WRITE * problem.d.dtype.itemsize / 4
    memory, once = problem.bytes_min / min(_INT8_BYTES, gpu.memory), _INT8_LAUNCH * gpu.launch
    found = []
    for parts in PARTS_OF_K:
        k_tiles, computed = -(-problem.k // (_K_BYTES * parts)), math.inf
        for side, k_tile_us in _INT8_TILES if parts == 1 else _INT8_TILES[-1:]:
            tiles = _tiles(problem, side)
            rounds = max(1.0, tiles / gpu.multiprocessors * _INT8_MORE) if parts == 1 else _rounds(tiles, parts, gpu)
            each = k_tiles * k_tile_us * slower * filled + written * (side / TILE) ** 2
            computed = min(computed, each * rounds * gpu.load)
        found.append(once + math.hypot(computed, memory))
    return found


def _tiles(problem: GemmProblem, side: int) -> int:
    return -(-problem.m // side) * -(-problem.n // side) * (problem.batch or (1,))[0]


def _both_filled(problem: GemmProblem) -> float:
    return (_filled(problem.m) + _filled(problem.n)) / 2


def _rounds(tiles: int, parts: int, gpu: GpuRates) -> float:
    """Return how many tiles an SM computes one after another, of clusters of so many CTAs."""
    rounds = math.ceil(tiles * SMS / (clusters_at_once(parts, 1) * gpu.multiprocessors))
    return 1 + (rounds - 1) * _MORE_ROUNDS[parts]


@cache_last_call
def _both_read_us(problem: GemmProblem) -> float:
    """Return the time of a k-tile of both operands."""
    return _read_us(problem.a, problem.m) + _read_us(problem.b, problem.n)


def _read_us(matrix: StridedMatrix, lines: int) -> float:
    """Return the time of a k-tile of an operand with so many rows or columns."""
    begin = _lines_begin(matrix)
    found = _READ[8 if begin % 8 == 0 else 4 if begin % 4 == 0 else 1]
    return found * _filled(lines)


def _filled(lines: int) -> float:
    """Return the share of a k-tile's time that an operand with so many rows or columns takes."""
    return _READ_EMPTY + (1 - _READ_EMPTY) * min(lines / TILE, 1.0)


def _lines_begin(matrix: StridedMatrix) -> int:
    """Return the bytes that all lines begin at multiples of."""
    stride = matrix.row_stride if matrix.col_stride == 1 else matrix.col_stride
    return math.gcd(stride * matrix.dtype.itemsize, matrix.alignment)
