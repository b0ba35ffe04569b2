"""The product behind bf16x6_gemm: six products of parts in bfloat16, what it takes, how it is launched."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT32, Precision
from gemmule.core.errors import ArgumentError
from gemmule.core.launch import ExtentsParam, Launch, Param, ScalarParam, TensorMapParam, TensorParam, Workspace
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, split_batch
from gemmule.core.row_major import row_result, why_not_extents
from gemmule.core.spec import Config, KernelSpec, Signature
from gemmule.kernels.hopper.tma_tiles import SLICE_BYTES, padded, why_not_copied

#: Parts of a number, the greatest first; K of a slice, to whose multiples the parts of a line are filled up.
PARTS, SLICE = 3, SLICE_BYTES // 2
#: Slices whose sums are added to those before them in device memory: K of 1024.
ASIDE = 16
#: Warpgroups that multiply, threads of one and of all, rows of a wgmma.
CONSUMERS, WARPGROUP, MMA_M = 2, 128, 64
THREADS = (1 + CONSUMERS) * WARPGROUP
_BARRIERS = 1024
_MOST_SHARED = 227 << 10
#: Columns of a tile: a thread has half as many sums, twice.
_MOST_COLUMNS = 192


@dataclasses.dataclass(frozen=True)
class SixProductsConfig(Config):
    """Tile of C and stages.

    Attributes
    ----------
    tile_m, tile_n : int
        Elements: 128 rows, 64 for each of two warpgroups; columns a multiple of 64 up to 192.
    stages : int
        Pairs of a slice of A and one of B in shared memory, 3 or more.
    depth : int
        K of the products that tensor cores sum, 32 or 64: then the sums are added to others, rounded.
    group : int
        Tiles that are taken downwards before they go to the right.
    ctas : int
        CTAs that share all tiles: the multiprocessors of the chip.
    """

    tile_m: int = 128
    tile_n: int = 192
    stages: int = 5
    depth: int = 32
    group: int = 8
    ctas: int = 132

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tile_m != CONSUMERS * MMA_M or self.tile_n % MMA_M or self.tile_n > _MOST_COLUMNS:
            raise ArgumentError(
                f"config {self}: tile_m must be {CONSUMERS * MMA_M}, tile_n a multiple of {MMA_M} up to {_MOST_COLUMNS}"
            )
        if self.depth not in (SLICE // 2, SLICE):
            raise ArgumentError(f"config {self}: depth must be {SLICE // 2} or {SLICE}")
        if self.stages < PARTS:
            raise ArgumentError(f"config {self}: stages are {PARTS} or more")
        if self.shared_bytes > _MOST_SHARED:
            raise ArgumentError(f"config {self}: {self.shared_bytes} bytes of shared memory, of at most {_MOST_SHARED}")

    @property
    def outputs(self) -> int:
        return self.tile_m * self.tile_n

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA: barriers, and stages."""
        return _BARRIERS + (self.tile_m + self.tile_n) * SLICE_BYTES * self.stages


def why_not(problem: GemmProblem, arch: Arch, config: SixProductsConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del config
    return refuses(problem, arch)


def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where all do.

    Its A (M, K) and B (K, N) hold three parts of K / 3 columns or rows, one behind the other.
    """
    if arch.capability != (9, 0):
        return f"wgmma is an instruction of sm_90a; this GPU is {arch}"
    if (problem.a.dtype, problem.b.dtype) != (BFLOAT16, BFLOAT16) or problem.precision is not Precision.BF16X6:
        return f"A is {problem.a.dtype} and B {problem.b.dtype}; this kernel takes the parts that bf16x6_gemm makes"
    if problem.k % (PARTS * SLICE):
        return f"K={problem.k} is not {PARTS} parts of whole slices of {SLICE}"
    inner, _, _ = split_batch(problem, SPEC.batch_dims)
    oriented, _, _ = row_result(inner)
    for name, matrix in oriented.operands().items():
        if name in "cd" and matrix.dtype != FLOAT32:
            return f"{name.upper()} is {matrix.dtype}; this kernel writes float32 and adds it"
        if not (matrix.is_row_major or (matrix.is_col_major and name not in "cd")):
            return (
                f"{name.upper()} has strides ({matrix.row_stride}, {matrix.col_stride}); this kernel takes row-major "
                "and column-major matrices, C and the result of one kind"
            )
        if matrix.alignment % matrix.dtype.itemsize:
            return f"{name.upper()} begins within an element, at a multiple of {matrix.alignment} bytes"
        if name in "cd":
            continue
        # One matrix for all of the batch is found without a step.
        own = matrix if any(matrix.batch_strides) else dataclasses.replace(matrix, batch_strides=())
        if reason := why_not_copied(name, own, inner.batch if own.batch_strides else ()):
            return reason
    if not all((problem.m, problem.n, problem.k, problem.alpha, *problem.batch)):
        return "there is nothing to multiply: an extent, the batch or alpha is 0"
    return why_not_extents(problem)


def signature(problem: GemmProblem, config: SixProductsConfig) -> Signature:
    """Specialise for the direction in which A and B are contiguous, and whether there is a C."""
    del config
    oriented, _, _ = row_result(problem)
    along_a, along_b = ("k" if oriented.a.lies_in_rows else "m"), ("n" if oriented.b.lies_in_rows else "k")
    return _signature(along_a, along_b, problem.c is not None)


def _signature(a: str, b: str, c: bool) -> Signature:
    return (("a", a), ("b", b), ("c", "yes" if c else "no"))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return every combination."""
    del arch
    return tuple(_signature(a, b, c) for a in "km" for b in "nk" for c in (False, True))


def launch(problem: GemmProblem, config: SixProductsConfig) -> Launch:
    """Return the launch recipe: as many CTAs as share the tiles, maps of the parts, and C and D as they lie."""
    problem, first, second = row_result(problem)
    batch = (problem.batch or (1,))[0]
    tiles = -(-problem.m // config.tile_m) * -(-problem.n // config.tile_n) * batch
    c = problem.c if problem.c is not None else problem.d
    # The one place where B turns from (K, N), as the API has it, to (N, K), as CuTe has it.
    params = (
        *_slices_of(first, problem.a, problem.a.lies_in_rows, batch, config.tile_m),
        *_slices_of(second, problem.b.transposed(), not problem.b.lies_in_rows, batch, config.tile_n),
        _rows_of("d" if problem.c is None else "c", c, batch),
        _rows_of("d", problem.d, batch),
        ScalarParam("alpha", FLOAT32, problem.alpha),
        ScalarParam("beta", FLOAT32, problem.beta if problem.c is not None else 0),
    )
    ctas = min(tiles, config.ctas)
    workspaces: tuple[Workspace, ...] = ()
    if problem.k > PARTS * SLICE * ASIDE:
        workspaces = (Workspace("long sums", ctas * config.outputs * FLOAT32.itemsize),)
    # Short sums are kept nowhere, and any address will do.
    aside = ("long sums", ctas * config.outputs) if workspaces else ("d", 0)
    return Launch(
        grid=(ctas, 1, 1),
        block=(THREADS, 1, 1),
        shared_bytes=config.shared_bytes,
        params=(*params, TensorParam(aside[0], (aside[1],), ())),
        overlaps=True,
        workspaces=workspaces,
    )


def _slices_of(operand: str, matrix: StridedMatrix, along_k: bool, batch: int, tile: int) -> tuple[Param, Param]:
    """Describe A or B as (M or N, K): the copy engine brings slices of a tile."""
    item = matrix.dtype.itemsize
    # Lines along K are brought as rows of a tile; lines across K as 128 bytes of each k.
    box = (SLICE, tile) if along_k else (SLICE, SLICE)
    along = matrix if along_k else matrix.transposed()
    line = along.row_stride * item if along.rows > 1 else padded(along.cols * item)
    step = (matrix.batch_strides or (0,))[0] * item
    # The kernel takes the last matrix where there are not as many as of the result.
    matrices = batch if step else 1
    described = TensorMapParam(
        operand,
        matrix.dtype,
        (along.cols, along.rows, matrices),
        (line, step or padded(line * along.rows)),
        (*box, 1),
        SLICE_BYTES,
    )
    return described, ExtentsParam(operand, (matrix.rows, matrix.cols, matrices))


def _rows_of(operand: str, matrix: StridedMatrix, batch: int) -> TensorParam:
    """Describe C or D."""
    return TensorParam(operand, (matrix.rows, matrix.cols, batch), (matrix.row_stride, *(matrix.batch_strides or (0,))))


#: Microseconds on an H200: a launch; writing 128 x 128; and six products of a slice by columns of the tile.
_LAUNCH, _WRITE = 1.9, 1.0
_SLICE = {192: 2.94, 128: 1.98, 64: 1.04}


def costs(problem: GemmProblem, configs: Sequence[SixProductsConfig], multiprocessors: int) -> list[float]:
    """Return roughly the times in microseconds: tiles that a multiprocessor computes one after another."""
    m, n = (problem.m, problem.n) if problem.d.is_row_major else (problem.n, problem.m)
    slices, batch = problem.k // (PARTS * SLICE), (problem.batch or (1,))[0]
    found = []
    for config in configs:
        tiles = -(-m // config.tile_m) * -(-n // config.tile_n) * batch
        waves = -(-tiles // min(multiprocessors, config.ctas))
        written = _WRITE * config.tile_n / 128 * (1 if problem.c is None else 2)
        found.append(_LAUNCH + waves * (slices * _SLICE[config.tile_n] + written))
    return found


def cost(problem: GemmProblem, config: SixProductsConfig, multiprocessors: int) -> float:
    """Return roughly the time in microseconds."""
    return costs(problem, (config,), multiprocessors)[0]


SPEC = KernelSpec(
    name="bf16x6_products",
    operation="gemm",
    summary="three parts of float32 in bfloat16 each, six of their products: wgmma, TMA, sums rounded every 32 of K",
    package=__package__,
    archs=(Arch(9, 0, True),),
    configs=(
        SixProductsConfig(),
        SixProductsConfig(tile_n=128, stages=6),
        SixProductsConfig(tile_n=64, stages=9),
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    cost=cost,
    refuses=refuses,
    costs=costs,
    cost_in_us=True,
)
