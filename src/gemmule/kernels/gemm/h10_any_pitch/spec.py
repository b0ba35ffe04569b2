"""Hopper's kernel for rows that begin anywhere: what it takes, how it is launched."""

from __future__ import annotations

import dataclasses

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT16, FLOAT32, INT32, DType
from gemmule.core.errors import ArgumentError
from gemmule.core.launch import ExtentsParam, Launch, Param, ScalarParam, ShiftsParam, TensorMapParam, TensorParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, split_batch
from gemmule.core.row_major import row_result, why_not_extents
from gemmule.core.spec import Buildable, Config, KernelSpec, Signature

DTYPES = (BFLOAT16, FLOAT16)
#: Warpgroups that multiply, threads of one and of all, rows of a wgmma.
CONSUMERS, WARPGROUP, MMA_M = 2, 128, 64
THREADS = (1 + CONSUMERS) * WARPGROUP
#: Bytes of K of a slice, which are the rows of the copy engine's swizzle; elements of 16 bits in them.
K_BYTES, DEPTH = 128, 64
#: What the copy engine asks of addresses and pitches, in bytes: of 8 lines each begins elsewhere in 16 bytes.
ALIGNMENT, CLASSES = 16, 8
#: Bytes between two rows of the tile on its way out, beyond the rows themselves: 8 rows then lie in different banks.
PAD = 16
_MAX_PITCH = 1 << 37
_BARRIERS = 1024
#: Rows of 64 and columns of a tile that a warpgroup has registers for: 192 sums a thread.
_MAX_SUMS = 384


@dataclasses.dataclass(frozen=True)
class AnyPitchConfig(Config):
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

    def __post_init__(self) -> None:
        rows = MMA_M if self.pingpong else CONSUMERS * MMA_M
        if self.tile_m % rows or self.tile_n % MMA_M or not 0 < self.tile_n <= 256:
            raise ArgumentError(f"config {self}: tile_m must be a multiple of {rows}, tile_n 64, 128, 192 or 256")
        if self.tile_m // rows * self.tile_n > _MAX_SUMS:
            raise ArgumentError(f"config {self}: the sums of a tile do not fit into a warpgroup's registers")
        if self.stages < 2 or self.ctas < 1:
            raise ArgumentError(f"config {self}: stages are 2 or more, ctas 1 or more")
        if self.shared_bytes > 227 << 10:
            raise ArgumentError(f"config {self}: {self.shared_bytes} bytes of shared memory, of at most {227 << 10}")

    @property
    def outputs(self) -> int:
        return self.tile_m * self.tile_n

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA: barriers, stages of A and B, and 64 rows of D for each warpgroup."""
        rows = CONSUMERS * MMA_M * (2 * self.tile_n + PAD)
        return _BARRIERS + (self.tile_m + self.tile_n) * K_BYTES * self.stages + rows


def why_not(problem: GemmProblem, arch: Arch, config: AnyPitchConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del config
    if arch.capability != (9, 0):
        return f"wgmma is an instruction of sm_90a; this GPU is {arch}"
    inner, _, _ = split_batch(problem, SPEC.batch_dims)
    oriented, first, second = row_result(inner)
    for name, matrix in oriented.operands().items():
        if matrix.dtype not in DTYPES or matrix.dtype != problem.a.dtype:
            types = ", ".join(f"{key.upper()} {one.dtype}" for key, one in problem.operands().items())
            return f"the operands are {types}; this kernel takes all of one type, {' or '.join(map(str, DTYPES))}"
        if not (matrix.is_row_major or (matrix.is_col_major and name in "ab")):
            return (
                f"{name.upper()} has strides ({matrix.row_stride}, {matrix.col_stride}); this kernel takes row-major "
                "and column-major matrices, C and the result of one kind"
            )
        if matrix.alignment % matrix.dtype.itemsize:
            return f"{name.upper()} begins at a multiple of {matrix.alignment} bytes, which is no whole element"
    if not (problem.m and problem.n and problem.k and problem.alpha):
        return "there is nothing to multiply: an extent or alpha is 0"
    for name, matrix in ((first, oriented.a), (second, oriented.b)):
        lines, pitch = _lines(matrix)
        size = pitch * matrix.dtype.itemsize
        if lines > 1 and not 0 < size < _MAX_PITCH:
            return f"{name.upper()} has a pitch of {size} bytes; the copy engine needs positive ones"
        if lines < CLASSES and _odd(matrix):
            return f"{name.upper()} has {lines} lines; this kernel's maps are for {CLASSES} or more of an odd pitch"
    if _in_rows(oriented.a) == _in_rows(oriented.b):
        across, name = (oriented.b, second) if _in_rows(oriented.b) else (oriented.a, first)
        if _odd(across):
            return f"{name.upper()} has an odd pitch across K, and the other operand lies along K"
    return why_not_extents(problem)


def _in_rows(matrix: StridedMatrix) -> bool:
    """Whether a matrix is read along its rows."""
    return matrix.is_row_major


def _lines(matrix: StridedMatrix) -> tuple[int, int]:
    """Return how many lines of neighbours a matrix has, and the elements from one to the next."""
    if _in_rows(matrix):
        return matrix.rows, matrix.row_stride
    return matrix.cols, matrix.col_stride


def _odd(matrix: StridedMatrix) -> bool:
    """Whether lines begin at different places in 16 bytes."""
    lines, pitch = _lines(matrix)
    return lines > 1 and pitch * matrix.dtype.itemsize % ALIGNMENT != 0


def _classes(problem: GemmProblem) -> tuple[int, int]:
    """Return by how many maps A and B are found; across K the order of K in a slice must be the same for both."""
    a, b = (CLASSES if _odd(matrix) else 1 for matrix in (problem.a, problem.b))
    if not _in_rows(problem.a) and _in_rows(problem.b):
        a = b = max(a, b)
    return a, b


def signature(problem: GemmProblem, config: AnyPitchConfig) -> Signature:
    """Specialise for the type, the direction in which A and B are contiguous, their maps, and whether there is a C."""
    del config
    oriented, _, _ = row_result(problem)
    return _signature(
        problem.a.dtype,
        "k" if _in_rows(oriented.a) else "m",
        "n" if _in_rows(oriented.b) else "k",
        _classes(oriented),
        problem.c is not None,
    )


def _signature(element: DType, a: str, b: str, maps: tuple[int, int], c: bool) -> Signature:
    return (
        ("element", element.name),
        ("a", a),
        ("b", b),
        ("a_maps", str(maps[0])),
        ("b_maps", str(maps[1])),
        ("c", "yes" if c else "no"),
    )


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return every combination."""
    del arch
    found = [("k", "k", (a, b)) for a in (CLASSES, 1) for b in (CLASSES, 1)]
    found += [("m", "n", (a, a)) for a in (CLASSES, 1)]
    found += [("k", "n", (CLASSES, 1)), ("k", "n", (1, 1)), ("m", "k", (1, CLASSES)), ("m", "k", (1, 1))]
    return tuple(_signature(dtype, a, b, maps, c) for dtype in DTYPES for a, b, maps in found for c in (False, True))


def launch(problem: GemmProblem, config: AnyPitchConfig) -> Launch:
    """Return the launch recipe: as many CTAs as share the tiles, and the maps by which the copy engine finds them."""
    problem, first, second = row_result(problem)
    m, n = problem.m, problem.n
    tiles = -(-m // config.tile_m) * -(-n // config.tile_n)
    a_maps, b_maps = _classes(problem)
    c = problem.c if problem.c is not None else problem.d
    # The one place where B turns from (K, N), as the API has it, to (N, K), as CuTe has it.
    b = problem.b.transposed()
    params = (
        *_maps_of(first, problem.a, a_maps, config.tile_m),
        *_maps_of(second, b, b_maps, config.tile_n),
        TensorParam("d" if problem.c is None else "c", (m, n), (c.row_stride,)),
        TensorParam("d", (m, n), (problem.d.row_stride,)),
        ScalarParam("k", INT32, problem.k),
        ShiftsParam(first, _offsets(problem.a, a_maps), problem.a.dtype),
        ShiftsParam(second, _offsets(b, b_maps), b.dtype),
        ScalarParam("alpha", FLOAT32, problem.alpha),
        ScalarParam("beta", FLOAT32, problem.beta if problem.c is not None else 0),
    )
    return Launch(
        grid=(min(tiles, config.ctas), 1, 1), block=(THREADS, 1, 1), shared_bytes=config.shared_bytes, params=params
    )


def _offsets(matrix: StridedMatrix, maps: int) -> tuple[int, ...]:
    """Return in bytes where the first line of each map begins."""
    _, pitch = _lines(matrix)
    return tuple(line * pitch * matrix.dtype.itemsize for line in range(maps))


def box(along_k: bool, tile: int, maps: int) -> tuple[int, int]:
    """Return what one copy brings of A or B: rows of the tile and values of K."""
    if not along_k:
        # 128 bytes of every line, lines of a slice.
        return DEPTH, DEPTH // maps
    # The compiler's layouts know no box of 24 rows.
    rows = tile // maps
    return rows & -rows, DEPTH


def _maps_of(operand: str, matrix: StridedMatrix, maps: int, tile: int) -> tuple[Param, ...]:
    """Describe A or B as (M or N, K): map i finds the lines i, i + maps, i + 2 maps ..., whose pitch is whole."""
    lines, pitch = _lines(matrix)
    item = matrix.dtype.itemsize
    along = _in_rows(matrix)
    length = matrix.cols if along else matrix.rows
    rows, depth = box(along, tile, maps)
    sides = (depth, rows) if along else (rows, depth)
    # Of a single line it does not matter where the next would be.
    line = pitch * item * maps if lines > 1 else -(-length * item // ALIGNMENT) * ALIGNMENT
    counts = [-(-(lines - of_map) // maps) for of_map in range(maps)]
    found = [
        TensorMapParam(operand, matrix.dtype, (length, count), (line,), sides, K_BYTES, offset=offset)
        for offset, count in zip(_offsets(matrix, maps), counts, strict=True)
    ]
    extents = [ExtentsParam(operand, (count, length) if along else (length, count)) for count in counts]
    return (*found, *extents)


#: Rate of a tile of that many rows and columns in a long product, as a share of that of 128 x 128 on an H100.
_RATES = {(128, 256): 0.985, (128, 192): 1.02, (128, 128): 1.0, (64, 128): 0.865, (64, 64): 0.55}


def cost(problem: GemmProblem, config: AnyPitchConfig, multiprocessors: int) -> float:
    """Return roughly the time: tiles that a multiprocessor computes one after another, and what each costs."""
    oriented, _, _ = row_result(problem)
    tiles = -(-oriented.m // config.tile_m) * -(-oriented.n // config.tile_n)
    waves = -(-tiles // min(multiprocessors, config.ctas))
    slices = -(-oriented.k // DEPTH)
    ends = 4 if config.pingpong else 10
    return waves * config.outputs / _RATES.get((config.tile_m, config.tile_n), 0.5) * (slices + ends)


def build(config: AnyPitchConfig, signature: Signature) -> Buildable:
    """Return the kernel and its stand-in arguments."""
    from .kernel import buildable

    return buildable(config, dict(signature))


SPEC = KernelSpec(
    name="h10_any_pitch",
    operation="gemm",
    summary="float16 and bfloat16, rows that begin anywhere: as h09, by maps of every 8th row and shifted boxes",
    package="gemmule.kernels.gemm.h10_any_pitch",
    archs=(Arch(9, 0, True),),
    configs=(
        AnyPitchConfig(),
        AnyPitchConfig(tile_n=192, stages=4),
        AnyPitchConfig(tile_n=256, stages=3, pingpong=0),
        AnyPitchConfig(tile_m=64, stages=6),
        AnyPitchConfig(tile_m=64, tile_n=64, stages=8),
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    build=build,
    batch_dims=0,
    virtual=False,
    cost=cost,
)
