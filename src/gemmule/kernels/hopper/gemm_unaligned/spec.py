"""Hopper's kernel for results whose rows begin anywhere: what it takes, how it is launched."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT16, FLOAT32, DType
from gemmule.core.errors import ArgumentError
from gemmule.core.launch import ExtentsParam, Launch, Param, ScalarParam, TensorMapParam, TensorParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, split_batch
from gemmule.core.remembered import remembered
from gemmule.core.row_major import row_result, why_not_extents
from gemmule.core.spec import Config, KernelSpec, Signature
from gemmule.kernels.hopper.tma_tiles import padded, why_not_copied

DTYPES = (BFLOAT16, FLOAT16)
#: Warpgroups that multiply, threads of one and of all, rows of a wgmma.
CONSUMERS, WARPGROUP, MMA_M = 2, 128, 64
THREADS = (1 + CONSUMERS) * WARPGROUP
#: Bytes of K of a slice, which are the rows of the copy engine's swizzle.
K_BYTES = 128
#: Bytes between two rows of the tile on its way out, beyond the rows themselves: 8 rows then lie in different banks.
PAD = 16
_BARRIERS = 1024
_MOST_SHARED = 227 << 10
#: Rows of 64 and columns of a tile that a warpgroup has registers for: 192 sums a thread.
_MOST_SUMS = 384


@dataclasses.dataclass(frozen=True)
class RaggedResultConfig(Config):
    """Tile of C, stages, and how the two warpgroups that multiply share the work.

    Attributes
    ----------
    tile_m, tile_n : int
        Elements: multiples of 64, tile_n at most 256.
    stages : int
        Slices in shared memory.
    pingpong : int
        1 where each warpgroup has tiles of its own and they take turns, 0 where they share a tile.
    group : int
        Tiles that are taken downwards before they go to the right.
    ctas : int
        CTAs that share all tiles: the multiprocessors of the chip.
    """

    tile_m: int = 128
    tile_n: int = 128
    stages: int = 5
    pingpong: int = 1
    group: int = 8
    ctas: int = 132

    switches: ClassVar[frozenset[str]] = frozenset({"pingpong"})

    def __post_init__(self) -> None:
        super().__post_init__()
        rows = MMA_M if self.pingpong else CONSUMERS * MMA_M
        if self.tile_m % rows or self.tile_n % MMA_M or self.tile_n > 256:
            raise ArgumentError(f"config {self}: tile_m must be a multiple of {rows}, tile_n 64, 128, 192 or 256")
        if self.tile_m // rows * self.tile_n > _MOST_SUMS:
            raise ArgumentError(f"config {self}: the sums of a tile do not fit into a warpgroup's registers")
        if self.stages < 2:
            raise ArgumentError(f"config {self}: stages are 2 or more")
        if self.shared_bytes > _MOST_SHARED:
            raise ArgumentError(f"config {self}: {self.shared_bytes} bytes of shared memory, of at most {_MOST_SHARED}")

    @property
    def outputs(self) -> int:
        return self.tile_m * self.tile_n

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA: barriers, stages of A and B, and 64 rows of D for each warpgroup."""
        rows = CONSUMERS * MMA_M * (2 * self.tile_n + PAD)
        return _BARRIERS + (self.tile_m + self.tile_n) * K_BYTES * self.stages + rows


def why_not(problem: GemmProblem, arch: Arch, config: RaggedResultConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del config
    return refuses(problem, arch)


@remembered
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where all do."""
    if arch.capability != (9, 0):
        return f"wgmma is an instruction of sm_90a; this GPU is {arch}"
    inner, _, _ = split_batch(problem, SPEC.batch_dims)
    oriented, first, second = row_result(inner)
    for name, matrix in inner.operands().items():
        if matrix.dtype not in DTYPES or matrix.dtype != problem.a.dtype:
            types = ", ".join(f"{key.upper()} {one.dtype}" for key, one in problem.operands().items())
            return f"the operands are {types}; this kernel takes all of one type, {' or '.join(map(str, DTYPES))}"
        if not (matrix.is_row_major or matrix.is_col_major):
            return (
                f"{name.upper()} has strides ({matrix.row_stride}, {matrix.col_stride}); this kernel takes row-major "
                "and column-major matrices"
            )
        if matrix.alignment % matrix.dtype.itemsize:
            return f"{name.upper()} begins within an element, at a multiple of {matrix.alignment} bytes"
    if oriented.c is not None and not oriented.c.is_row_major:
        return "C and the output have different layouts; this kernel takes both row-major or both column-major"
    for name, matrix in ((first, oriented.a), (second, oriented.b)):
        if reason := why_not_copied(name, matrix, inner.batch):
            return reason
    if not all((problem.m, problem.n, problem.k, problem.alpha, *problem.batch)):
        return "there is nothing to multiply: an extent, the batch or alpha is 0"
    return why_not_extents(problem)


def signature(problem: GemmProblem, config: RaggedResultConfig) -> Signature:
    """Specialise for the type, the direction in which A and B are contiguous, and whether there is a C."""
    del config
    oriented, _, _ = row_result(problem)
    return _signature(
        problem.a.dtype,
        "k" if oriented.a.lies_in_rows else "m",
        "n" if oriented.b.lies_in_rows else "k",
        problem.c is not None,
    )


def _signature(element: DType, a: str, b: str, c: bool) -> Signature:
    return (("element", element.name), ("a", a), ("b", b), ("c", "yes" if c else "no"))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return every combination."""
    del arch
    return tuple(_signature(dtype, a, b, c) for dtype in DTYPES for a in "km" for b in "nk" for c in (False, True))


def launch(problem: GemmProblem, config: RaggedResultConfig) -> Launch:
    """Return the launch recipe: as many CTAs as share the tiles, maps of A and B, and C and D as they lie."""
    problem, first, second = row_result(problem)
    m, n = problem.m, problem.n
    batch = (problem.batch or (1,))[0]
    tiles = -(-m // config.tile_m) * -(-n // config.tile_n) * batch
    c = problem.c if problem.c is not None else problem.d
    # The one place where B turns from (K, N), as the API has it, to (N, K), as CuTe has it.
    params = (
        *_tiles_of(first, problem.a, problem.a.lies_in_rows, batch, config.tile_m),
        *_tiles_of(second, problem.b.transposed(), not problem.b.lies_in_rows, batch, config.tile_n),
        _rows_of("d" if problem.c is None else "c", c, batch),
        _rows_of("d", problem.d, batch),
        ScalarParam("alpha", FLOAT32, problem.alpha),
        ScalarParam("beta", FLOAT32, problem.beta if problem.c is not None else 0),
    )
    return Launch(
        grid=(min(tiles, config.ctas), 1, 1),
        block=(THREADS, 1, 1),
        shared_bytes=config.shared_bytes,
        params=params,
        overlaps=True,
    )


def _tiles_of(operand: str, matrix: StridedMatrix, along_k: bool, batch: int, tile: int) -> tuple[Param, Param]:
    """Describe A or B as (M or N, K): the copy engine brings slices of a tile."""
    item = matrix.dtype.itemsize
    depth = K_BYTES // item
    # Lines along K are brought as rows of a tile; lines across K as 128 bytes of each k.
    box = (depth, tile) if along_k else (depth, depth)
    along = matrix if along_k else matrix.transposed()
    # Where there is only one line, or one matrix, it does not matter where the next would be.
    line = along.row_stride * item if along.rows > 1 else padded(along.cols * item)
    next_matrix = (matrix.batch_strides or (0,))[0] * item if batch > 1 else padded(line * along.rows)
    described = TensorMapParam(
        operand, matrix.dtype, (along.cols, along.rows, batch), (line, next_matrix), (*box, 1), K_BYTES
    )
    return described, ExtentsParam(operand, (matrix.rows, matrix.cols, batch))


def _rows_of(operand: str, matrix: StridedMatrix, batch: int) -> TensorParam:
    """Describe C or D."""
    steps = matrix.batch_strides or (0,)
    return TensorParam(operand, (matrix.rows, matrix.cols, batch), (matrix.row_stride, *steps))


#: Rate of a tile of that many rows and columns in a long product, as a share of that of 128 x 128 on an H200.
_RATES = {(256, 192): 1.1, (128, 256): 1.04, (128, 192): 1.05, (128, 128): 1.0, (64, 128): 0.88, (64, 64): 0.6}


#: Microseconds on an H200: a launch, a slice of 128 x 128, and the next tile; how much longer slices take for each
#: operand that lies across K.
_LAUNCH, _SLICE, _NEXT, _ACROSS = 2.4, 0.327, 0.308, 0.146
#: Writing 128 x 128 by one warpgroup, element by element; what the part beyond the result's edges saves of that.
_WRITE, _BEYOND = 2.98, 0.58


def costs(problem: GemmProblem, configs: Sequence[RaggedResultConfig], multiprocessors: int) -> list[float]:
    """Return roughly the times in microseconds: tiles that a multiprocessor computes one after another, and their cost.

    Where warpgroups take turns, one writes while the other multiplies, but for the last tile; else both write a half.
    """
    m, n = (problem.m, problem.n) if problem.d.is_row_major else (problem.n, problem.m)
    slices, batch = -(-problem.k * problem.a.dtype.itemsize // K_BYTES), (problem.batch or (1,))[0]
    slices_us = _SLICE * slices * (1 + _ACROSS * ((not problem.a.lies_in_rows) + problem.b.lies_in_rows))
    found = []
    for config in configs:
        tiles = -(-m // config.tile_m) * -(-n // config.tile_n) * batch
        waves = -(-tiles // min(multiprocessors, config.ctas))
        beyond = 1 - m * n * batch / (tiles * config.outputs)
        products = slices_us * config.outputs / 2**14 / _RATES.get((config.tile_m, config.tile_n), 0.5)
        # C, which is read as the result is written, is not measured.
        written = _WRITE * config.outputs / 2**14 * (1 - _BEYOND * beyond) * (1 if problem.c is None else 2)
        if config.pingpong:
            tile = (products**4 + ((products + written + _NEXT) / 2) ** 4) ** 0.25
            found.append(_LAUNCH + waves * (tile + _NEXT) + written)
        else:
            found.append(_LAUNCH + waves * (products + written / 2 + _NEXT))
    return found


def cost(problem: GemmProblem, config: RaggedResultConfig, multiprocessors: int) -> float:
    """Return roughly the time in microseconds."""
    return costs(problem, (config,), multiprocessors)[0]


SPEC = KernelSpec(
    name="hopper_gemm_unaligned",
    operation="gemm",
    summary="float16 and bfloat16, C and the result anywhere, A and B with pitches of whole 16 bytes: wgmma, TMA",
    package=__package__,
    archs=(Arch(9, 0, True),),
    configs=(
        RaggedResultConfig(),
        RaggedResultConfig(tile_n=192, stages=4),
        RaggedResultConfig(tile_n=256, stages=3, pingpong=0),
        RaggedResultConfig(tile_m=256, tile_n=192, stages=3, pingpong=0),
        RaggedResultConfig(tile_m=64, stages=6),
        RaggedResultConfig(tile_m=64, tile_n=64, stages=8),
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
