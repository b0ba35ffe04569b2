"""Hopper's production kernel: what it takes, how it is launched."""

from __future__ import annotations

import dataclasses

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT16, FLOAT32, DType
from gemmule.core.errors import ArgumentError
from gemmule.core.launch import ExtentsParam, Launch, Param, ScalarParam, TensorMapParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, split_batch
from gemmule.core.row_major import row_result, why_not_extents
from gemmule.core.spec import Buildable, Config, KernelSpec, Signature

DTYPES = (BFLOAT16, FLOAT16)
#: Warpgroups that multiply, threads of one and of all, rows of a wgmma.
CONSUMERS, WARPGROUP, MMA_M = 2, 128, 64
THREADS = (1 + CONSUMERS) * WARPGROUP
#: Bytes of K of a slice, which are the rows of the copy engine's swizzle; boxes in which D is written, and how many of
#: them a warpgroup has in shared memory.
K_BYTES, BOX_M, BOX_N, BUFFERS = 128, 64, 64, 2
#: What the copy engine asks of addresses and pitches, in bytes.
ALIGNMENT = 16
_MAX_PITCH = 1 << 40
_BARRIERS = 1024
#: Rows of 64 and columns of a tile that a warpgroup has registers for: 192 sums a thread.
_MAX_SUMS = 384


@dataclasses.dataclass(frozen=True)
class ProductionConfig(Config):
    """Tile of C, stages, the cluster, and how the two warpgroups that multiply share the work.

    Attributes
    ----------
    tile_m, tile_n : int
        Elements: multiples of 64, tile_n at most 256.
    stages : int
        Slices in shared memory.
    pingpong : int
        1 where each warpgroup has tiles of its own and they take turns, 0 where they share a tile.
    cluster_m, cluster_n : int
        CTAs of a cluster along M and N.
    group : int
        Clusters' tiles that are taken downwards before they go to the right.
    ctas : int
        CTAs that share all tiles: the multiprocessors of the chip.
    """

    tile_m: int = 128
    tile_n: int = 256
    stages: int = 4
    pingpong: int = 0
    cluster_m: int = 2
    cluster_n: int = 1
    group: int = 8
    ctas: int = 132

    def __post_init__(self) -> None:
        rows = MMA_M if self.pingpong else CONSUMERS * MMA_M
        if self.tile_m % rows or self.tile_n % BOX_N or not 0 < self.tile_n <= 256:
            raise ArgumentError(f"config {self}: tile_m must be a multiple of {rows}, tile_n 64, 128, 192 or 256")
        if self.tile_m // rows * self.tile_n > _MAX_SUMS:
            raise ArgumentError(f"config {self}: the sums of a tile do not fit into a warpgroup's registers")
        if self.cluster_m not in (1, 2) or self.cluster_n not in (1, 2) or self.stages < 2 or self.ctas < self.cluster:
            raise ArgumentError(f"config {self}: clusters have 1 or 2 CTAs along M and N, and stages are 2 or more")
        if self.shared_bytes > 227 << 10:
            raise ArgumentError(f"config {self}: {self.shared_bytes} bytes of shared memory, of at most {227 << 10}")

    @property
    def outputs(self) -> int:
        return self.tile_m * self.tile_n

    @property
    def cluster(self) -> int:
        """CTAs of a cluster."""
        return self.cluster_m * self.cluster_n

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA: barriers, stages of A and B, and boxes of D."""
        boxes = CONSUMERS * BUFFERS * BOX_M * K_BYTES
        return _BARRIERS + (self.tile_m + self.tile_n) * K_BYTES * self.stages + boxes


def why_not(problem: GemmProblem, arch: Arch, config: ProductionConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del config
    if arch.capability != (9, 0):
        return f"wgmma is an instruction of sm_90a; this GPU is {arch}"
    inner, _, _ = split_batch(problem, SPEC.batch_dims)
    oriented, _, _ = row_result(inner)
    for name, matrix in oriented.operands().items():
        if matrix.dtype not in DTYPES or matrix.dtype != problem.a.dtype:
            types = ", ".join(f"{key.upper()} {one.dtype}" for key, one in problem.operands().items())
            return f"the operands are {types}; this kernel takes all of one type, {' or '.join(map(str, DTYPES))}"
        if not (matrix.is_row_major or (matrix.is_col_major and name in "ab")):
            return (
                f"{name.upper()} has strides ({matrix.row_stride}, {matrix.col_stride}); this kernel takes row-major "
                "and column-major matrices, C and the result of one kind"
            )
        if reason := _why_not_copied(name, matrix, inner.batch):
            return reason
    if not (problem.m and problem.n and problem.k and problem.alpha):
        return "there is nothing to multiply: an extent or alpha is 0"
    return why_not_extents(problem)


def _why_not_copied(name: str, matrix: StridedMatrix, batch: tuple[int, ...]) -> str | None:
    """Say why the copy engine cannot take a matrix."""
    item = matrix.dtype.itemsize
    rows = _in_rows(matrix)
    lines, pitch = (matrix.rows, matrix.row_stride) if rows else (matrix.cols, matrix.col_stride)
    steps = [("pitch", lines, pitch)]
    steps += [("step of the batch", extent, s) for extent, s in zip(batch, matrix.batch_strides, strict=True)]
    if matrix.alignment % ALIGNMENT:
        return f"{name.upper()} begins at a multiple of {matrix.alignment} bytes; the copy engine needs {ALIGNMENT}"
    for what, extent, step in steps:
        if extent > 1 and (step <= 0 or step * item % ALIGNMENT or step * item >= _MAX_PITCH):
            return (
                f"{name.upper()} has a {what} of {step * item} bytes; the copy engine needs positive multiples of "
                f"{ALIGNMENT}"
            )
    return None


def _in_rows(matrix: StridedMatrix) -> bool:
    """Whether a matrix is read along its rows."""
    return matrix.is_row_major


def signature(problem: GemmProblem, config: ProductionConfig) -> Signature:
    """Specialise for the type, the direction in which A and B are contiguous, and whether there is a C."""
    del config
    oriented, _, _ = row_result(problem)
    return _signature(
        problem.a.dtype,
        "k" if _in_rows(oriented.a) else "m",
        "n" if _in_rows(oriented.b) else "k",
        problem.c is not None,
    )


def _signature(element: DType, a: str, b: str, c: bool) -> Signature:
    return (("element", element.name), ("a", a), ("b", b), ("c", "yes" if c else "no"))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return every combination."""
    del arch
    return tuple(_signature(dtype, a, b, c) for dtype in DTYPES for a in "km" for b in "nk" for c in (False, True))


def launch(problem: GemmProblem, config: ProductionConfig) -> Launch:
    """Return the launch recipe: as many CTAs as share the tiles, and the maps by which the copy engine finds them."""
    problem, first, second = row_result(problem)
    m, n = problem.m, problem.n
    batch = (problem.batch or (1,))[0]
    tiles = -(-m // (config.tile_m * config.cluster_m)) * -(-n // (config.tile_n * config.cluster_n)) * batch
    clusters = min(tiles, config.ctas // config.cluster)
    c = problem.c if problem.c is not None else problem.d
    # The one place where B turns from (K, N), as the API has it, to (N, K), as CuTe has it.
    params = (
        *_tiles_of(first, problem.a, batch, config.tile_m, config.cluster_n),
        *_tiles_of(second, problem.b.transposed(), batch, config.tile_n, config.cluster_m),
        *_boxes_of("d" if problem.c is None else "c", c, batch),
        *_boxes_of("d", problem.d, batch),
        ScalarParam("alpha", FLOAT32, problem.alpha),
        ScalarParam("beta", FLOAT32, problem.beta if problem.c is not None else 0),
    )
    return Launch(
        grid=(clusters * config.cluster, 1, 1),
        block=(THREADS, 1, 1),
        shared_bytes=config.shared_bytes,
        cluster=(config.cluster, 1, 1),
        params=params,
    )


def _tiles_of(operand: str, matrix: StridedMatrix, batch: int, tile: int, sharers: int) -> tuple[Param, Param]:
    """Describe A or B as (M or N, K): a slice of a tile, of which each of `sharers` CTAs brings its part."""
    depth = K_BYTES // matrix.dtype.itemsize
    # Lines along K are brought as rows of a tile; lines across K as 128 bytes of each k.
    box = (depth, tile // sharers) if _in_rows(matrix) else (depth, depth // sharers)
    return _map_of(operand, matrix, batch, box)


def _boxes_of(operand: str, matrix: StridedMatrix, batch: int) -> tuple[Param, Param]:
    """Describe C or D."""
    return _map_of(operand, matrix, batch, (BOX_N, BOX_M))


def _map_of(operand: str, matrix: StridedMatrix, batch: int, box: tuple[int, int]) -> tuple[Param, Param]:
    item = matrix.dtype.itemsize
    along = matrix if _in_rows(matrix) else matrix.transposed()
    # Where there is only one line, or one matrix, it does not matter where the next would be.
    line = max(along.row_stride * item, 0) if along.rows > 1 else _padded(along.cols * item)
    next_matrix = (matrix.batch_strides or (0,))[0] * item if batch > 1 else _padded(line * along.rows)
    described = TensorMapParam(
        operand=operand,
        dtype=matrix.dtype,
        extents=(along.cols, along.rows, batch),
        pitches=(line, next_matrix),
        box=(*box, 1),
        swizzle=K_BYTES,
    )
    return described, ExtentsParam(operand, (matrix.rows, matrix.cols, batch))


def _padded(size: int) -> int:
    return max(-(-size // ALIGNMENT) * ALIGNMENT, ALIGNMENT)


#: Rate of a tile of that many rows and columns in a long product, as a share of that of 128 x 128 on an H100.
_RATES = {(128, 256): 0.985, (128, 192): 1.02, (128, 128): 1.0, (64, 256): 0.97, (64, 128): 0.865, (64, 64): 0.55}


def cost(problem: GemmProblem, config: ProductionConfig, multiprocessors: int) -> float:
    """Return roughly the time: tiles that a multiprocessor computes one after another, and what each costs.

    At the ends of a tile the tensor cores wait for some slices, fewer where two warpgroups take turns.
    """
    oriented, _, _ = row_result(problem)
    sides = (config.tile_m * config.cluster_m, config.tile_n * config.cluster_n)
    tiles = -(-oriented.m // sides[0]) * -(-oriented.n // sides[1]) * (problem.batch or (1,))[0]
    waves = -(-tiles // (min(multiprocessors, config.ctas) // config.cluster))
    slices = -(-oriented.k * problem.a.dtype.itemsize // K_BYTES)
    ends = 4 if config.pingpong else 10
    rate = _RATES.get((config.tile_m, config.tile_n), 0.5)
    return waves * config.outputs / rate * (slices + ends)


def build(config: ProductionConfig, signature: Signature) -> Buildable:
    """Return the kernel and its stand-in arguments."""
    from .kernel import buildable

    return buildable(config, dict(signature))


SPEC = KernelSpec(
    name="h09_production",
    operation="gemm",
    summary="float16 and bfloat16, any of the four layouts, pitches of whole 16 bytes: wgmma, TMA, persistent CTAs",
    package="gemmule.kernels.gemm.h09_production",
    archs=(Arch(9, 0, True),),
    configs=(
        ProductionConfig(tile_n=192, pingpong=1, cluster_m=1),
        ProductionConfig(tile_n=192, pingpong=1),
        ProductionConfig(cluster_m=1),
        ProductionConfig(),
        ProductionConfig(tile_n=128, stages=5, pingpong=1, cluster_m=1),
        ProductionConfig(tile_m=64, tile_n=256, pingpong=1, cluster_m=1),
        ProductionConfig(tile_m=64, tile_n=128, stages=6, pingpong=1, cluster_m=1),
        ProductionConfig(tile_m=64, tile_n=64, stages=8, pingpong=1, cluster_m=1),
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    build=build,
    cost=cost,
)
