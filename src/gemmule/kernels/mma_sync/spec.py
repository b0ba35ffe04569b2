"""Spec of the GEMM on tensor cores by mma.sync."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import (
    BFLOAT16,
    FLOAT8_E4M3,
    FLOAT8_E5M2,
    FLOAT16,
    FLOAT32,
    INT8,
    INT32,
    DType,
    Precision,
)
from gemmule.core.epilogue import SECOND
from gemmule.core.epilogue_inputs import (
    aligned_with_second,
    epilogue_params,
    epilogue_signature,
    num_b_of,
    why_not_inputs,
    why_not_second,
)
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_for_configs, cache_last_call
from gemmule.core.launch import FEW_BYTES, MAP_ALIGNMENT, Launch
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, OperandTypes, inner_problem
from gemmule.core.row_major import row_result, why_not_extents, why_not_grid, why_not_strides
from gemmule.core.spec import KernelSpec, Signature, why_not_cluster
from gemmule.kernels.mma_sync.small.spec import SPEC as MMA_SYNC_SMALL
from gemmule.kernels.mma_sync.small.spec import is_faster as is_faster_small
from gemmule.kernels.parts.batched_launch import (
    batched_params,
    copies_signature,
    tile_grid,
    tiles_divide,
    tiles_signature,
    types_signature,
)
from gemmule.kernels.parts.leading_dimension import leading_dimension, result_vector

from .config import COPIES, FRAGMENT_BYTES, SUBTILE_N, MmaSyncConfig
from .tf32_cost import RATES as TF32_RATES
from .tf32_cost import Lines, Numbers, Tf32Rates, times_us
from .tf32_cost import least_us as tf32_least_us

#: Types that C and D may have for each type of A and B.
OUTPUTS: dict[DType, tuple[DType, ...]] = {
    FLOAT16: (FLOAT16, FLOAT32, FLOAT8_E4M3, FLOAT8_E5M2),
    BFLOAT16: (BFLOAT16, FLOAT32, FLOAT8_E4M3, FLOAT8_E5M2),
    FLOAT32: (FLOAT32,),
    INT8: (INT8, INT32),
}
#: Most elements of D that a thread writes at once.
_MAX_VECTOR = 8
#: Bytes of a register, and most registers of a thread for accumulators, fragments and elements that are copied.
_WORD, _MAX_WORDS = 4, 192


def _vector(problem: GemmProblem) -> int:
    """Return how many elements of D, and of C, are moved at once: 16 bytes of them, or one."""
    return result_vector(problem, _widest(problem.d.dtype))


def _widest(dtype: DType) -> int:
    return min(max(COPIES) // dtype.itemsize, _MAX_VECTOR)


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where one may."""
    del arch
    inner = inner_problem(problem, SPEC.batch_dims)
    return why_not_inputs(problem) or why_not_second(problem) or why_not_strides(inner) or why_not_extents(problem)


def why_not(problem: GemmProblem, arch: Arch, config: MmaSyncConfig) -> str | None:
    """Say why the kernel cannot take `problem` with `config`, or None where it can."""
    if config.sum_bits == 16 and (element := problem.a.dtype) != FLOAT16:
        return f"config {config} accumulates in float16; from {element} this kernel makes accumulators of 32 bits"
    if not config.takes(problem.a.dtype):
        return f"config {config}: tiles of {problem.a.dtype} must be multiples of 64, so that lines are of 64 bytes"
    if reason := why_not_cluster(config, config.cluster_k, arch):
        return reason
    if config.shared_bytes > (most := arch.shared_bytes_per_block):
        return f"config {config} needs {config.shared_bytes} bytes of shared memory, more than the {most} of {arch}"
    if reason := _why_not_halves(problem, config):
        return reason
    oriented = _oriented(problem)
    if config.cluster_k > 1 and not _has_registers(config, oriented):
        return (
            f"config {config} has no registers for partial sums and copies of {_WORD} bytes or fewer: rows of A and B "
            "must begin at multiples of 8 bytes"
        )
    if (words := _words(oriented, config)) > _MAX_WORDS:
        return (
            f"rows of A or B that begin anywhere are copied element by element, and config {config} has no registers "
            f"for that: {words} words in each thread are more than {_MAX_WORDS}"
        )
    return why_not_grid(_grid(oriented, config))


def _has_registers(config: MmaSyncConfig, problem: GemmProblem) -> bool:
    """Return whether a thread of a cluster has registers for its copies and its partial sums."""
    copied = min(_copied(problem))
    if copied < _WORD:
        return config.tile_elements <= _TILE**2
    if problem.a.has_contiguous_rows and problem.b.has_contiguous_cols:
        # One distance leads from each line to the next, of both operands.
        return True
    copies = (config.tile_m + config.tile_n) * config.k_bytes // (copied * config.threads)
    return copied > _WORD or config.tile_elements // config.threads + copies <= _MAX_WORDS // 2


@cache_last_call
def _oriented(problem: GemmProblem) -> GemmProblem:
    """Return a launch's problem, its result in rows."""
    inner = inner_problem(problem, SPEC.batch_dims)
    return row_result(aligned_with_second(inner))[0]


def _why_not_halves(problem: GemmProblem, config: MmaSyncConfig) -> str | None:
    """Say why a tile cannot hold two B, or None where it can or need not."""
    half = _columns(problem, config)
    if half == config.tile_n:
        return None
    if half % (SUBTILE_N * config.warps_n) or half * config.k_bytes % (max(COPIES) * config.threads):
        return f"config {config}: {half} columns of each of two B are too few for its warps"
    return None


def _columns(problem: GemmProblem, config: MmaSyncConfig) -> int:
    """Return the columns of the result that a tile has."""
    return config.tile_n // num_b_of(problem.epilogue)


def _words(problem: GemmProblem, config: MmaSyncConfig) -> int:
    """Return the words of accumulators, fragments, and elements that are copied one by one, of a thread."""
    warp_m, warp_n = config.tile_m // config.warps_m, config.tile_n // config.warps_n
    words = warp_m * warp_n // 32 + (warp_m + warp_n) // 2
    parts = config.k_bytes // FRAGMENT_BYTES - 1
    for copied, side in zip(_copied(problem), (config.tile_m, config.tile_n), strict=True):
        if copied < _WORD:
            words += side * config.depth(problem.a.dtype) // (parts * config.threads)
    return words


@cache_last_call
def _copied(problem: GemmProblem) -> tuple[int, int]:
    """Return the bytes that copies of A and of B move at once."""
    return leading_dimension(problem.a, COPIES).copy_bytes, leading_dimension(problem.b, COPIES).copy_bytes


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    del arch
    a, b, c, d, precision = types
    if a != b or a not in OUTPUTS:
        known = ", ".join(map(str, OUTPUTS))
        return f"A is {a} and B is {b}; this kernel takes both of one type among {known}"
    if a == FLOAT32 and precision is not Precision.TF32:
        return "A and B are float32; this kernel rounds them to TF32, for precision='tf32'"
    if d not in OUTPUTS[a]:
        return f"the output is {d}; from {a} this kernel makes {' and '.join(map(str, OUTPUTS[a]))}"
    if c is not None and c != d:
        return f"C is {c} and the output {d}; this kernel takes both of one type"
    return None


def ctas(problem: GemmProblem, config: MmaSyncConfig) -> int:
    """Return the CTAs of a launch: one for each tile of C and matrix of the batch."""
    return math.prod(_grid(_oriented(problem), config))


def _grid(problem: GemmProblem, config: MmaSyncConfig) -> tuple[int, int, int]:
    return tile_grid(problem, config.tile_m, _columns(problem, config), config.cluster_k)


def signature(problem: GemmProblem, config: MmaSyncConfig) -> Signature:
    """Specialise for types, the major modes of A and B, the widths of copies, and whole tiles."""
    oriented, _, _ = row_result(aligned_with_second(problem))
    a, b, vector = leading_dimension(oriented.a, COPIES), leading_dimension(oriented.b, COPIES), _vector(oriented)
    whole = tiles_divide(oriented, (config.tile_m, _columns(problem, config), config.depth(problem.a.dtype)))
    whole = whole and a.copy_bytes == b.copy_bytes == max(COPIES)
    major_a, major_b = ("k" if a.row_major else "m", a.copy_bytes), ("n" if b.row_major else "k", b.copy_bytes)
    plain = _signature(problem.a.dtype, problem.d.dtype, major_a, major_b, vector, whole)
    return (*plain, *epilogue_signature(oriented.epilogue))


def _signature(
    element: DType, out: DType, a: tuple[str, int], b: tuple[str, int], vector: int, whole: bool
) -> Signature:
    acc = INT32 if element == INT8 else FLOAT32
    return (*types_signature(element, out, acc), *copies_signature(a, b, vector), *tiles_signature(whole))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return each type with whole tiles, those of other sizes in two layouts that have all; then narrower copies."""
    del arch
    whole = [(FLOAT16, FLOAT16, "k", "n"), (BFLOAT16, FLOAT32, "k", "n")]
    whole += [
        (FLOAT32, FLOAT32, "k", "n"),
        (FLOAT32, FLOAT32, "m", "k"),
        (INT8, INT32, "k", "n"),
        (INT8, INT8, "m", "k"),
    ]
    whole += [(BFLOAT16, BFLOAT16, a, b) for a in "km" for b in "nk"]
    ragged = [(BFLOAT16, BFLOAT16, 16), (BFLOAT16, BFLOAT16, 2), (FLOAT32, FLOAT32, 4), (INT8, INT32, 1)]
    return (
        *(_signature(element, out, (a, 16), (b, 16), _widest(out), True) for element, out, a, b in whole),
        *(
            _signature(element, out, ("k", size), ("n", size), _widest(out) if size == 16 else 1, False)
            for element, out, size in ragged
        ),
    )


def launch(problem: GemmProblem, config: MmaSyncConfig) -> Launch:
    """Return the launch recipe: one CTA for each tile of C and matrix of the batch."""
    problem, first, second = row_result(aligned_with_second(problem))
    if problem.epilogue is not None and problem.epilogue.expression.names_c:
        # Where beta is 0, C is not read.
        problem = dataclasses.replace(problem, beta=1)
    batch = (problem.batch or (1,))[0]
    lds = tuple(leading_dimension(x, COPIES).stride for x in (problem.a, problem.b))
    # The absolute maximum is cleared before the launch, and by no kernel.
    keeps = problem.epilogue is not None and problem.epilogue.absmax
    return Launch(
        grid=_grid(problem, config),
        block=(config.threads, 1, 1),
        shared_bytes=config.shared_bytes,
        cluster=(config.cluster_k, 1, 1),
        params=(
            *batched_params(problem, first, second, *lds),
            *epilogue_params(problem.epilogue, batch, problem.accumulator),
            # The second B has the layout of B.
            *(batched_params(problem, first, SECOND, *lds)[1] for _ in range(num_b_of(problem.epilogue) - 1)),
        ),
        overlaps=problem.bytes_min <= FEW_BYTES and not keeps,
    )


#: K-tiles are of 128 bytes of K; microseconds are those of an H200.
_K_BYTES = 128
#: Where A and B are K-major or of 16 bits: a launch; writing 64 x 64 of 16 bits, and where rows of D begin anywhere.
#: What C or an epilogue add is not measured: it is assumed to be that of `hopper_gemm`.
_LAUNCH, _WRITE, _WRITE_UNALIGNED, _TILE, _FINISH = 2.31, 0.14, 1.41, 64, 5.0 / 8
#: A k-tile of 64 rows or columns, by the bytes that an operand's lines let a copy have, and the share of that where a
#: tile has hardly any of its lines; what tiles of later waves take, as so many run at once; bytes to and from memory
#: in a microsecond.
_READ, _READ_EMPTY, _LATER, _BYTES = {8: 0.169, 4: 0.249, 1: 0.601}, 0.57, 0.623, 2.72e6
#: Where elements of 8 bits are MN-major: a launch; a k-tile of tiles of so many rows and columns, as long as SMs have
#: one each, and the factor of that where copies are of single bytes; the factor where SMs have more tiles; writing
#: 64 x 64 of 32 bits, and where rows of D begin anywhere; bytes to and from memory in a microsecond. Fitted to products
#: of records 20261122T190626 and 20261122T190657 and of the draws 20261123T050414 (an H100) and 20261123T051914.
_INT8_LAUNCH, _INT8_TILES, _INT8_BYTEWISE, _INT8_MORE = 1.88, ((128, 0.846), (64, 0.398)), 5.33, 0.713
_INT8_WRITE, _INT8_UNALIGNED, _INT8_BYTES = 0.407, 1.53, 1.82e6
#: With clusters: adding the partial sums of 64 x 64, and more for each CTA; SMs that clusters reach; how much longer
#: each round after the first takes, by the CTAs of a cluster; and the factor of K-major k-tiles. Fitted to records
#: 20261124T201921 to 20261124T202103, 20261124T231318 and 20261124T231501.
_REDUCTION, _PARTIALS = 1.5, 0.2
_REACHED, _MORE_ROUNDS, _SPLIT = {2: 1.0, 4: 0.91, 8: 0.91}, {2: 0.91, 4: 0.9, 8: 1.11}, 0.82
#: CTAs of a cluster that share a tile.
_PARTS = (1, 2, 4, 8)
#: Configs for TF32 alone, most of them where K is long and tiles are few: the ones that together come closest to the
#: best of all that were timed (benchmarks/experiments/fit_mma_sync_cost.py --choose).
FOR_TF32 = (
    *(MmaSyncConfig(tile_m=64, tile_n=64, stages=4, cluster_k=parts) for parts in (3, 5, 16)),
    MmaSyncConfig(tile_m=64, stages=4, cluster_k=4),
    *(MmaSyncConfig(tile_m=32, warps_m=1, warps_n=4, stages=4, cluster_k=parts) for parts in (1, 8)),
    *(MmaSyncConfig(tile_n=_TILE, warps_m=4, stages=4, cluster_k=parts) for parts in (1, 2, 4, 8, 16)),
    *(MmaSyncConfig(warps_n=4, stages=4, cluster_k=parts) for parts in (2, 4, 8, 16)),
    MmaSyncConfig(tile_m=256, warps_m=4, stages=4, cluster_k=4),
    MmaSyncConfig(tile_m=64, tile_n=32, warps_n=1, stages=4, cluster_k=8),
)
#: Less than a k-tile of 64 x 64 of MN-major elements of 8 bits takes in any config, where all SMs have many of them.
_LEAST = 0.14
#: Of configs that differ in tiles alone, what the next best is expected to take longer.
_NEXT = 1e-4
#: Share of the predicted time that `mma_sync_small` must take less than where copies are of 16 bytes: assumed.
_ALIGNED = 0.8
#: Configs that a call chooses among; the first is the default.
CONFIGS: tuple[MmaSyncConfig, ...] = (
    MmaSyncConfig(),
    MmaSyncConfig(tile_n=256, warps_n=4, stages=4),
    MmaSyncConfig(tile_m=256, warps_m=4, stages=4),
    MmaSyncConfig(tile_n=256, k_bytes=64, warps_n=4, stages=5),
    MmaSyncConfig(warps_n=4),
    MmaSyncConfig(mma_k_bytes=16),
    MmaSyncConfig(tile_m=64, stages=4),
    *(MmaSyncConfig(tile_m=64, tile_n=64, stages=4, cluster_k=parts) for parts in _PARTS),
    *FOR_TF32,
)


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
    times, found = dict(zip(_PARTS, _times(problem, gpu), strict=True)), [math.inf] * len(configs)
    for x in split:
        found[x] = times.get(configs[x].cluster_k, math.inf)
    for place, x in enumerate(sorted(alone, key=order)):
        found[x] = times[1] * (1 + _NEXT * place)
    return found


@cache_for_configs
def _plain(configs: Sequence[MmaSyncConfig]) -> tuple[list[int], list[int]]:
    """Return the configs that are not for TF32 alone, by their numbers: those without clusters, and others."""
    plain = [x for x, one in enumerate(configs) if one not in FOR_TF32]
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
    oriented, times = _oriented(problem), _every_tf32_us(problem, gpu)
    return [
        us
        for us, one in zip(times, CONFIGS, strict=True)
        if one.cluster_k >= least and (one.cluster_k == 1 or _has_registers(one, oriented))
    ]


@cache_last_call
def _every_tf32_us(problem: GemmProblem, gpu: GpuRates) -> list[float]:
    found: list[float] = tf32_us(problem, CONFIGS, gpu).tolist()
    return found


def tf32_us(
    problem: GemmProblem, configs: Sequence[MmaSyncConfig], gpu: GpuRates, rates: Tf32Rates = TF32_RATES
) -> Numbers:
    """Return roughly the times of a product in TF32, in microseconds."""
    oriented = _oriented(problem)
    lines = Lines(min(_copied(oriented)), _vector(oriented))
    return times_us(oriented, configs, gpu, lines, rates)


def _least_us(problem: GemmProblem, gpu: GpuRates) -> float:
    """Return a time that no predicted one is less than; it costs a fraction of these."""
    if problem.a.dtype == FLOAT32:
        return tf32_least_us(problem, CONFIGS, gpu)
    k_tiles = problem.k * problem.a.dtype.itemsize / _K_BYTES
    tiles = problem.m * problem.n / _TILE**2 * (problem.batch or (1,))[0]
    # As if all tiles were of later waves, and SMs had tiles all the time: those of clusters take longer.
    k_tile = _LEAST if _is_mn_major_int8(problem) else _LATER * _both_read_us(problem)
    return gpu.load * k_tile * k_tiles * tiles / gpu.multiprocessors


@cache_last_call
def _times(problem: GemmProblem, gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds of other elements than float32, by the CTAs of a tile (`_PARTS`)."""
    item = problem.a.dtype.itemsize
    found = _int8_us(problem, gpu) if _is_mn_major_int8(problem) else _k_major_us(problem, gpu)
    for number, parts in enumerate(_PARTS):
        if parts > 1:
            enough = problem.k * item >= parts * _K_BYTES
            found[number] += gpu.load * (_REDUCTION + _PARTIALS * parts) if enough else math.inf
    return found


def _is_mn_major_int8(problem: GemmProblem) -> bool:
    return problem.a.dtype.itemsize == 1 and not (problem.a.is_row_major and problem.b.is_col_major)


def _k_major_us(problem: GemmProblem, gpu: GpuRates) -> list[float]:
    """Return the times of 16-bit elements, and of others that are K-major, without reductions."""
    tiles = _tiles(problem, _TILE)
    read = _both_read_us(problem)
    wide = max(problem.d.dtype.itemsize / 2, 1.0)
    written = _WRITE * wide if _lines_begin(problem.d) % MAP_ALIGNMENT == 0 else _WRITE_UNALIGNED
    written += _FINISH * ((problem.c is not None) + (problem.epilogue is not None))
    k_bytes, once = problem.k * problem.a.dtype.itemsize, _LAUNCH * gpu.launch
    moved = gpu.moved_us(problem.bytes_min, _BYTES)
    found = []
    for parts in _PARTS:
        multiplied = k_bytes / _K_BYTES / parts * read
        if parts == 1:
            found.append((multiplied + written) * (1 + _LATER * max(tiles / gpu.multiprocessors - 1, 0.0)))
        else:
            found.append((_SPLIT * multiplied + written) * _rounds(tiles, parts, gpu))
    return [once + one * gpu.load + moved for one in found]


def _int8_us(problem: GemmProblem, gpu: GpuRates) -> list[float]:
    """Return the times of 8-bit elements that are MN-major, without reductions."""
    oriented, filled = _oriented(problem), _both_filled(problem)
    slower = _INT8_BYTEWISE if min(_copied(oriented)) < _WORD else 1.0
    written = _INT8_UNALIGNED if _vector(oriented) == 1 else _INT8_WRITE * problem.d.dtype.itemsize / 4
    memory, once = problem.bytes_min / min(_INT8_BYTES, gpu.memory), _INT8_LAUNCH * gpu.launch
    found = []
    for parts in _PARTS:
        k_tiles, computed = -(-problem.k // (_K_BYTES * parts)), math.inf
        for side, k_tile_us in _INT8_TILES if parts == 1 else _INT8_TILES[-1:]:
            tiles = _tiles(problem, side)
            rounds = max(1.0, tiles / gpu.multiprocessors * _INT8_MORE) if parts == 1 else _rounds(tiles, parts, gpu)
            each = k_tiles * k_tile_us * slower * filled + written * (side / _TILE) ** 2
            computed = min(computed, each * rounds * gpu.load)
        found.append(once + math.hypot(computed, memory))
    return found


def _tiles(problem: GemmProblem, side: int) -> int:
    return -(-problem.m // side) * -(-problem.n // side) * (problem.batch or (1,))[0]


def _both_filled(problem: GemmProblem) -> float:
    return (_filled(problem.m) + _filled(problem.n)) / 2


def _rounds(tiles: int, parts: int, gpu: GpuRates) -> float:
    """Return how many tiles an SM computes one after another, of clusters of so many CTAs."""
    rounds = math.ceil(tiles * parts / (gpu.multiprocessors * _REACHED[parts]))
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
    return _READ_EMPTY + (1 - _READ_EMPTY) * min(lines / _TILE, 1.0)


def _lines_begin(matrix: StridedMatrix) -> int:
    """Return the bytes that all lines begin at multiples of."""
    stride = matrix.row_stride if matrix.col_stride == 1 else matrix.col_stride
    return math.gcd(stride * matrix.dtype.itemsize, matrix.alignment)


def faster_alternative(problem: GemmProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the kernel of small products, where it is expected to be faster."""
    if problem.a.dtype.itemsize == 2 and min(_copied(_oriented(problem))) == max(COPIES):
        cost *= _ALIGNED
    return MMA_SYNC_SMALL.name if is_faster_small(problem, cost, gpu) else None


SPEC = KernelSpec(
    name="mma_sync_gemm",
    operation="gemm",
    summary="float16, bfloat16, TF32 and int8, any of the four layouts: tensor cores by mma.sync, k-tiles by cp.async",
    package=__package__,
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
    configs=CONFIGS,
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    refuses=refuses,
    refuses_types=_refuses_types,
    costs=costs,
    faster_alternative=faster_alternative,
    epilogues=True,
    gated=True,
    absmax=True,
)
