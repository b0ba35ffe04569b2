"""Products of few rows by 8-bit weights: what the kernel takes, and how it is launched."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, FLOAT32, DType, accumulator
from gemmule.core.epilogue_inputs import epilogue_params, epilogue_signature, why_not_inputs
from gemmule.core.errors import ArgumentError
from gemmule.core.launch import ExtentsParam, Launch, Param, ScalarParam, TensorMapParam, TensorParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, split_batch
from gemmule.core.remembered import remembered
from gemmule.core.row_major import row_result, why_not_extents, why_not_grid
from gemmule.core.spec import Config, KernelSpec, Signature
from gemmule.kernels.hopper.gemm_upcast.spec import SPEC as WIDENED
from gemmule.kernels.hopper.tma_tiles import padded, why_not_copied

#: Types of weights, of rows beside them, and of C and the result.
NARROW, OUTPUTS = (FLOAT8_E4M3, FLOAT8_E5M2), (BFLOAT16, FLOAT16, FLOAT32)
ROWS = (*NARROW, FLOAT16, BFLOAT16)
#: Threads of a warpgroup, warpgroups that multiply, weights of a block, and elements of K of a slice: 128 bytes.
WARPGROUP, CONSUMERS, BLOCK, TILE_K = 128, 2, 128, 128
#: Threads of a CTA: those, a warpgroup that widens rows, and one of which a warp copies.
THREADS, WIDENERS = (CONSUMERS + 2) * WARPGROUP, 4
TILES_N = (8, 16, 32, 64, 128)
_BARRIERS, _WIDE_BYTES, _SWIZZLE = 1024, 2, 128
#: Shared memory of a CTA, by how many of them share a multiprocessor.
_SHARED = {1: 227 << 10, 2: 113 << 10}
_MOST_CLUSTER = 8
#: Sums of a tile for which there is room beside its slices.
_MOST_APART = 64 * 128


@dataclasses.dataclass(frozen=True)
class MixedConfig(Config):
    """Rows of a tile, slices in shared memory, and CTAs that share K.

    Attributes
    ----------
    tile_n : int
        Rows of A, the columns of the instruction: 8, 16, 32, 64 or 128.
    stages : int
        Slices of A and B in shared memory as they came.
    slots : int
        Slices of A there as 16-bit floats.
    cluster_k : int
        CTAs of a cluster that share the sum of a tile: each takes a part of K, and writes a part of the result.
    residents : int
        CTAs that share a multiprocessor, 1 or 2.
    blocks : int
        Blocks of 128 weights of a tile, 1 or 2.
    """

    tile_n: int = 16
    stages: int = 4
    slots: int = 4
    cluster_k: int = 1
    residents: int = 2
    blocks: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tile_n not in TILES_N:
            raise ArgumentError(f"config {self}: tile_n must be one of {', '.join(map(str, TILES_N))}")
        if self.cluster_k > _MOST_CLUSTER or self.residents not in _SHARED or self.blocks > 2:
            raise ArgumentError(f"config {self}: cluster_k must be 1 to {_MOST_CLUSTER}, residents and blocks 1 or 2")
        if not self.teams <= self.slots <= self.stages:
            raise ArgumentError(f"config {self}: slots must be {self.teams} at least, and stages as many as slots")
        if reason := self.why_not_rows(1):
            raise ArgumentError(reason)

    @property
    def outputs(self) -> int:
        return self.tile_w * self.tile_n

    @property
    def tile_w(self) -> int:
        """Weights of a tile: columns of the result."""
        return self.blocks * BLOCK

    @property
    def teams(self) -> int:
        """Teams of warps that widen rows, a slice each: of larger slices all have a part."""
        return {8: 4, 16: 4, 32: 2}.get(self.tile_n, 1)

    @property
    def apart(self) -> bool:
        """Whether sums of a cluster have memory of their own; larger ones come to where slices were."""
        return self.cluster_k > 1 and self.outputs <= _MOST_APART

    def shared_bytes(self, itemsize: int) -> int:
        """Return a CTA's shared memory: barriers, slices as they came, of rows of so many bytes, and as multiplied."""
        came = (self.tile_w + self.tile_n * itemsize) * TILE_K * self.stages
        sums = self.cluster_k * -(-self.outputs // (4 * self.cluster_k)) * 16 if self.apart else 0
        return _BARRIERS + came + self.slots * self.tile_n * TILE_K * _WIDE_BYTES + -(-sums // 128) * 128

    def why_not_rows(self, itemsize: int) -> str | None:
        """Say why there is no room for rows of elements of so many bytes, or None where there is."""
        size, most = self.shared_bytes(itemsize), _SHARED[self.residents]
        return f"config {self}: {size} bytes of shared memory, of at most {most}" if size > most else None


def why_not(problem: GemmProblem, arch: Arch, config: MixedConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    if reason := refuses(problem, arch):
        return reason
    if (slices := -(-problem.k // TILE_K)) < config.cluster_k:
        return f"K={problem.k} has {slices} slices of {TILE_K}, too few to share among {config.cluster_k} CTAs"
    inner, _, _ = split_batch(problem, SPEC.batch_dims)
    if reason := config.why_not_rows(row_result(inner)[0].a.dtype.itemsize):
        return reason
    return why_not_grid(_grid(row_result(inner)[0], config))


@remembered
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where that depends on the config."""
    if arch.capability != (9, 0):
        return f"wgmma is an instruction of sm_90a; this GPU is {arch}"
    inner, _, _ = split_batch(problem, SPEC.batch_dims)
    oriented, _, _ = row_result(inner)
    a, b, d = oriented.a.dtype, oriented.b.dtype, problem.d.dtype
    if a not in ROWS or b not in NARROW:
        return (
            f"rows of the result are of {a}, and its columns of {b}; this kernel takes columns of "
            f"{' and '.join(map(str, NARROW))}, and rows of these or of {' and '.join(map(str, ROWS[2:]))}"
        )
    if d not in OUTPUTS or (problem.c is not None and problem.c.dtype != d):
        return f"the output is {d}; this kernel makes {', '.join(map(str, OUTPUTS))}, with a C of the same type"
    if reason := why_not_inputs(problem):
        return reason
    for name, matrix in (("a", oriented.a), ("b", oriented.b.transposed())):
        if not (matrix.is_row_major and matrix.lies_in_rows):
            return f"{name.upper()} is not contiguous along K; this kernel reads lines along K only"
        if reason := why_not_copied(name, matrix, inner.batch):
            return reason
    for name, result in (("C", oriented.c), ("the output", oriented.d)):
        if result is not None and not result.is_row_major:
            return f"{name} has strides ({result.row_stride}, {result.col_stride}); C and the output must lie in rows"
    if not all((problem.m, problem.n, problem.k, problem.alpha, *problem.batch)):
        return "there is nothing to multiply: an extent, the batch or alpha is 0"
    return why_not_extents(problem)


def signature(problem: GemmProblem, config: MixedConfig) -> Signature:
    """Specialise for the types, whether there is a C, and the epilogue."""
    del config
    oriented, _, _ = row_result(problem)
    plain = _signature(oriented.a.dtype, oriented.b.dtype, oriented.d.dtype, problem.c is not None)
    return (*plain, *epilogue_signature(oriented.epilogue))


def _signature(a: DType, b: DType, out: DType, adds: bool) -> Signature:
    types = (("a", a.name), ("b", b.name), ("c", out.name), ("d", out.name), ("acc", accumulator(a, b).name))
    return (*types, ("adds", "yes" if adds else "no"))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return both types and every result once."""
    del arch
    return (
        _signature(FLOAT8_E4M3, FLOAT8_E4M3, BFLOAT16, False),
        _signature(FLOAT8_E5M2, FLOAT8_E4M3, FLOAT32, True),
        _signature(FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, False),
        _signature(FLOAT16, FLOAT8_E4M3, FLOAT16, False),
        _signature(BFLOAT16, FLOAT8_E4M3, BFLOAT16, False),
    )


def _grid(oriented: GemmProblem, config: MixedConfig) -> tuple[int, int, int]:
    weights, tokens = -(-oriented.n // config.tile_w), -(-oriented.m // config.tile_n)
    return (weights * tokens * config.cluster_k, 1, (oriented.batch or (1,))[0])


def launch(problem: GemmProblem, config: MixedConfig) -> Launch:
    """Return the launch recipe: a cluster for each tile."""
    oriented, first, second = row_result(problem)
    batch = (oriented.batch or (1,))[0]
    c = ("d", oriented.d) if oriented.c is None else ("c", oriented.c)
    results = (
        TensorParam(name, (x.rows, x.cols, batch), (x.row_stride, (x.batch_strides or (0,))[0]))
        for name, x in (c, ("d", oriented.d))
    )
    return Launch(
        grid=_grid(oriented, config),
        block=(THREADS, 1, 1),
        shared_bytes=config.shared_bytes(oriented.a.dtype.itemsize),
        cluster=(config.cluster_k, 1, 1),
        overlaps=oriented.epilogue is None or not oriented.epilogue.absmax,
        params=(
            *_lines(second, oriented.b.transposed(), batch, config.tile_w),
            *_lines(first, oriented.a, batch, config.tile_n),
            *results,
            ScalarParam("alpha", problem.accumulator, problem.alpha),
            ScalarParam("beta", problem.accumulator, problem.beta if problem.c is not None else 0),
            *epilogue_params(oriented.epilogue, batch, problem.accumulator),
        ),
    )


def _lines(operand: str, matrix: StridedMatrix, batch: int, lines: int) -> tuple[Param, Param]:
    """Describe lines along K: so many of a slice at once."""
    # Where there is only one line, or one matrix, it does not matter where the next would be.
    item = matrix.dtype.itemsize
    pitch = matrix.row_stride if matrix.rows > 1 else padded(matrix.cols * item) // item
    step = (matrix.batch_strides or (0,))[0] if batch > 1 else padded(pitch * matrix.rows * item) // item
    described = TensorMapParam(
        operand=operand,
        dtype=matrix.dtype,
        extents=(matrix.cols, matrix.rows, batch),
        pitches=(pitch * item, step * item),
        # Lines of a box are 128 bytes: of 16-bit floats it takes two.
        box=(TILE_K // item, lines, 1),
        swizzle=_SWIZZLE,
    )
    return described, ExtentsParam(operand, (matrix.rows, matrix.cols, batch))


#: Measured on an H200, in microseconds and bytes of one: a launch; weights from memory; slices from the L2 cache to a
#: multiprocessor; each further wave of CTAs.
_LAUNCH, _MEMORY, _PORT, _WAVE = 2.1, 4.25e6, 66e3, 1.0
#: What a slice takes a multiprocessor, by rows and blocks, where that is more than its way there.
_SLICE = {(16, 1): 0.3, (32, 1): 0.39, (64, 1): 0.53, (64, 2): 0.78, (128, 2): 1.42}
#: The exchange of sums, for each KB of them, and that for each CTA of the cluster.
_EXCHANGE, _EXCHANGE_KB, _EXCHANGE_EACH = 1.1, 0.013, 0.009
#: Clusters of so many CTAs that run at the same time, one CTA a multiprocessor; and how much longer those take that fit
#: badly into the 16 or 18 multiprocessors of a GPC.
_CLUSTERS = {1: 132, 2: 66, 3: 39, 4: 30, 5: 22, 6: 17, 7: 15, 8: 15}
_UNEVEN = {4: 1.05, 5: 1.04, 8: 1.06}
#: Multiprocessors of a full chip; rows beyond which it was not measured, and is not taken.
_ALL, _MOST_ROWS = 132, 512


def costs(problem: GemmProblem, configs: Sequence[MixedConfig], multiprocessors: int) -> list[float]:
    """Return roughly the times in microseconds."""
    oriented, _, _ = row_result(problem)
    slices = -(-oriented.k // TILE_K)
    memory = problem.bytes_min / _MEMORY

    def time(config: MixedConfig) -> float:
        cluster, kilobytes = config.cluster_k, config.outputs * 4 / 1024
        ctas = math.prod(_grid(oriented, config))
        at_once = max(_CLUSTERS[cluster] * config.residents * multiprocessors // _ALL, 1) * cluster
        waves = math.ceil(ctas / at_once)
        brought = (config.tile_w + config.tile_n * oriented.a.dtype.itemsize) * TILE_K / _PORT
        each = math.ceil(slices / cluster) * max(brought, _SLICE.get((config.tile_n, config.blocks), 0.0))
        # Where a multiprocessor has several CTAs, the first that ends makes room.
        several = waves if config.residents == 1 else max(ctas / multiprocessors, 1.0)
        read = float((memory**3 + (several * each) ** 3) ** (1 / 3))
        total = _LAUNCH + read + _WAVE * (waves - 1)
        if cluster > 1:
            total += _EXCHANGE + kilobytes * (_EXCHANGE_KB + _EXCHANGE_EACH * cluster)
        return total * _UNEVEN.get(cluster, 1.0)

    return [time(config) for config in configs]


def cost(problem: GemmProblem, config: MixedConfig, multiprocessors: int) -> float:
    """Return roughly the time in microseconds."""
    return costs(problem, (config,), multiprocessors)[0]


def outdone(problem: GemmProblem, cost: float) -> str | None:
    """Return the kernel that widens operands in memory, where that is expected to be faster."""
    if min(problem.m, problem.n) > _MOST_ROWS:
        return WIDENED.name
    if WIDENED.costs is None or WIDENED.refuses is None or WIDENED.refuses(problem, WIDENED.archs[0]):
        return None
    return WIDENED.name if min(WIDENED.costs(problem, WIDENED.configs, _ALL)) < cost else None


#: For each tile its stages, slots, CTAs on a multiprocessor and blocks.
_SHAPES: tuple[tuple[int, int, int, int, int], ...] = (
    (16, 4, 4, 2, 1),
    (8, 5, 4, 2, 1),
    (32, 3, 3, 2, 1),
    (64, 5, 3, 1, 1),
    (64, 4, 3, 1, 2),
    (128, 3, 2, 1, 2),
)
#: Those for which there is room if rows of A are of 16 bits.
_FOR_16_BITS = ((64, 3, 3, 1, 2), (128, 2, 2, 1, 2))


def _configs(clusters: Sequence[int], shapes: Sequence[tuple[int, int, int, int, int]]) -> tuple[MixedConfig, ...]:
    """Return for every shape a config for every cluster."""
    return tuple(
        MixedConfig(tile_n, stages, slots, cluster_k, residents, blocks)
        for tile_n, stages, slots, residents, blocks in shapes
        for cluster_k in clusters
    )


SPEC = KernelSpec(
    name="hopper_gemm_w8a16",
    operation="gemm",
    summary="few rows of 8-bit or 16-bit floats by 8-bit floats, both along K, pitches of whole 16 bytes: weights are "
    "read once, and widened in registers",
    package=__package__,
    archs=(Arch(9, 0, True),),
    configs=(*_configs((1, 2, 3, 4, 5, 6, 7, 8), _SHAPES), *_configs((1, 2, 4, 6), _FOR_16_BITS)),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    cost=cost,
    refuses=refuses,
    costs=costs,
    cost_in_us=True,
    outdone=outdone,
    epilogues=True,
    absmax=True,
)
