"""Double precision on tensor cores: what the kernel takes, how it is launched."""

from __future__ import annotations

import dataclasses
import itertools

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT64
from gemmule.core.errors import ArgumentError
from gemmule.core.launch import FEW_BYTES, Launch
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, split_batch
from gemmule.core.remembered import remembered
from gemmule.core.row_major import batched_params, row_result, why_not_extents, why_not_grid, why_not_lines
from gemmule.core.spec import Config, KernelSpec, Signature
from gemmule.kernels.float64.cost import cost, costs
from gemmule.kernels.parts.lines import Lines, line_bytes, lines_of

#: Bytes that a copy may move at once: two elements, or one.
COPIES = (16, 8)
#: Rows of a block of a warp, and columns of a product.
BLOCK, COLUMNS = 16, 8
#: Rows and elements of K of the products that tensor cores know: Ampere's, and those of Hopper.
SHAPES = ((8, 4), (16, 4), (16, 8), (16, 16))
#: Most sums of a thread: 192 of its 255 registers; and most copies of single elements in a slice, whose addresses it
#: holds.
_MOST_SUMS, _MOST_COPIES = 96, 32
#: Shared memory of a multiprocessor of Hopper, what each CTA takes of it besides its own, registers, and those that a
#: thread needs besides its sums.
_SHARED_BYTES, _RESERVED_BYTES, _REGISTERS, _OTHERS = 228 << 10, 1 << 10, 65536, 64


@dataclasses.dataclass(frozen=True)
class MmaDoubleConfig(Config):
    """Tile of C that a CTA computes, the warps that share it, and the slices in flight.

    Attributes
    ----------
    tile_m, tile_n : int
        Elements.
    tile_k : int
        Depth of a slice, 16 or 32 elements.
    warps_m, warps_n : int
        Warps along M and N. A warp's part of the tile is a multiple of 16 x 16.
    stages : int
        Slices in shared memory, at least 2.
    mma_m, mma_k : int
        Rows and elements of K of an mma.sync: 8 and 4, which Ampere has; or 16, and 4, 8 or 16.
    group : int
        Tiles that CTAs take downwards before they go to the right.
    cluster_k : int
        CTAs of a cluster that share a tile: each takes a part of K, and writes a part of the columns. 1, or from
        sm_90 on a divisor of a warp's columns by 8.
    """

    tile_m: int = 64
    tile_n: int = 64
    tile_k: int = 16
    warps_m: int = 2
    warps_n: int = 2
    stages: int = 4
    mma_m: int = 16
    mma_k: int = 16
    group: int = 8
    cluster_k: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        unit_m, unit_n = BLOCK * self.warps_m, 2 * COLUMNS * self.warps_n
        if self.tile_m % unit_m or self.tile_n % unit_n or self.tile_k not in (16, 32) or self.stages < 2:
            raise ArgumentError(
                f"config {self}: tile_m must be a multiple of {unit_m}, tile_n of {unit_n}, tile_k 16 or 32, and "
                "stages 2 or more"
            )
        if (self.mma_m, self.mma_k) not in SHAPES:
            known = ", ".join(f"{rows} x {COLUMNS} x {k}" for rows, k in SHAPES)
            raise ArgumentError(f"config {self}: mma_m and mma_k must be those of a product among {known}")
        copied = max(COPIES) // FLOAT64.itemsize * self.threads
        if self.tile_m * self.tile_k % copied or self.tile_n * self.tile_k % copied:
            raise ArgumentError(f"config {self}: a slice must be a multiple of {copied} elements, two a thread")
        if (sums := self.outputs // self.threads) > _MOST_SUMS:
            raise ArgumentError(f"config {self}: {sums} sums a thread are more than {_MOST_SUMS}; add warps")
        if self.cluster_k > 1 and (
            self.tile_n // self.warps_n // COLUMNS % self.cluster_k
            or self.outputs * FLOAT64.itemsize > self.shared_bytes
        ):
            raise ArgumentError(
                f"config {self}: cluster_k must divide a warp's columns by {COLUMNS}, and the sums fit into the slices"
            )

    @property
    def outputs(self) -> int:
        return self.tile_m * self.tile_n

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.warps_m * self.warps_n

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA."""
        return (self.tile_m + self.tile_n) * self.tile_k * self.stages * FLOAT64.itemsize

    @property
    def resident(self) -> int:
        """CTAs that a multiprocessor of Hopper holds at a time: while some wait, others multiply."""
        by_registers = _REGISTERS // (2 * self.outputs + _OTHERS * self.threads)
        return max(min(_SHARED_BYTES // (self.shared_bytes + _RESERVED_BYTES), by_registers), 1)


@remembered
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where that depends on the config."""
    del arch
    inner, _, _ = split_batch(problem, SPEC.batch_dims)
    return why_not_lines(inner, FLOAT64) or why_not_extents(inner)


def why_not(problem: GemmProblem, arch: Arch, config: MmaDoubleConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    if reason := refuses(problem, arch):
        return reason
    inner, _, _ = split_batch(problem, SPEC.batch_dims)
    oriented, _, _ = row_result(inner)
    if arch.major < 9 and (config.mma_m, config.mma_k) != SHAPES[0]:
        return f"config {config}: {arch} has float64 products of 8 x 8 x 4 only; larger ones need sm_90 or newer"
    if arch.major < 9 and config.cluster_k > 1:
        return f"config {config}: {arch} has no clusters, which sm_90 and newer have"
    if config.shared_bytes > (most := arch.shared_bytes_per_block):
        return f"config {config} needs {config.shared_bytes} bytes of shared memory, more than the {most} of {arch}"
    copies = (config.tile_m + config.tile_n) * config.tile_k // config.threads
    if copies > _MOST_COPIES and min(_lines(x).copy_bytes for x in (oriented.a, oriented.b)) < max(COPIES):
        return (
            f"rows of A or B that begin or end at odd elements are copied one by one, and config {config} has too few "
            f"threads for that: {copies} copies each are more than {_MOST_COPIES}"
        )
    return why_not_grid(_grid(oriented, config))


def _grid(problem: GemmProblem, config: MmaDoubleConfig) -> tuple[int, int, int]:
    tiles = -(-problem.n // config.tile_n) * -(-problem.m // config.tile_m)
    return (tiles * (problem.batch or (1,))[0] * config.cluster_k, 1, 1)


def _lines(matrix: StridedMatrix) -> Lines:
    # The hardware reads no more than the part of a copy that is inside, but compute-sanitizer calls all of it read.
    return lines_of(matrix, COPIES, ends=True)


def _run(problem: GemmProblem) -> int:
    """Return how many neighbours of D, and of C, are moved at once."""
    outputs = [matrix for matrix in (problem.c, problem.d) if matrix is not None]
    aligned = all(line_bytes(x, x.rows, x.row_stride) % max(COPIES) == 0 for x in outputs)
    return 2 if problem.n % 2 == 0 and aligned else 1


def signature(problem: GemmProblem, config: MmaDoubleConfig) -> Signature:
    """Specialise for the direction in which A and B are contiguous, the widths of copies, and whole tiles."""
    oriented, _, _ = row_result(problem)
    a, b, run = _lines(oriented.a), _lines(oriented.b), _run(oriented)
    sides = (config.tile_m, config.tile_n, config.tile_k)
    whole = all(extent % side == 0 for extent, side in zip((oriented.m, oriented.n, oriented.k), sides, strict=True))
    whole = whole and run == 2 and a.copy_bytes == b.copy_bytes == max(COPIES)
    return _signature(("k" if a.rows else "m", a.copy_bytes), ("n" if b.rows else "k", b.copy_bytes), run, whole)


def _signature(a: tuple[str, int], b: tuple[str, int], run: int, whole: bool) -> Signature:
    return (
        ("element", FLOAT64.name),
        ("a_along", a[0]),
        ("a_copies", str(a[1])),
        ("b_along", b[0]),
        ("b_copies", str(b[1])),
        ("run", str(run)),
        ("tiles", "whole" if whole else "ragged"),
    )


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return all layouts with whole tiles, with tiles that do not divide, and with rows that are not aligned."""
    del arch
    widths = ((16, 2, True), (16, 2, False), (8, 1, False))
    return tuple(
        _signature((a, size), (b, size), run, whole)
        for (size, run, whole), a, b in itertools.product(widths, "km", "nk")
    )


def launch(problem: GemmProblem, config: MmaDoubleConfig) -> Launch:
    """Return the launch recipe: one CTA for each tile of C and matrix of the batch."""
    problem, first, second = row_result(problem)
    return Launch(
        grid=_grid(problem, config),
        block=(config.threads, 1, 1),
        shared_bytes=config.shared_bytes,
        cluster=(config.cluster_k, 1, 1),
        params=batched_params(problem, first, second, _lines(problem.a).stride, _lines(problem.b).stride),
        overlaps=problem.bytes_min <= FEW_BYTES,
    )


SPEC = KernelSpec(
    name="float64_gemm",
    operation="gemm",
    summary="float64, any of the four layouts: tensor cores by mma.sync, slices by cp.async",
    package=__package__,
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
    configs=(
        MmaDoubleConfig(),
        MmaDoubleConfig(stages=3, mma_k=8),
        MmaDoubleConfig(tile_n=128, warps_n=4, mma_k=8),
        MmaDoubleConfig(tile_m=128, tile_n=128, warps_n=4),
        MmaDoubleConfig(mma_k=8, cluster_k=2),
        MmaDoubleConfig(tile_n=32, cluster_k=2),
        MmaDoubleConfig(tile_m=32, mma_k=8),
        MmaDoubleConfig(tile_m=32, mma_k=8, cluster_k=2),
        MmaDoubleConfig(tile_m=32, tile_n=32, tile_k=32),
        MmaDoubleConfig(tile_m=16, tile_k=32, warps_m=1, warps_n=4, cluster_k=2),
        MmaDoubleConfig(tile_m=16, tile_k=32, warps_m=1, cluster_k=4),
        MmaDoubleConfig(stages=3, mma_m=8, mma_k=4),
        MmaDoubleConfig(tile_m=128, tile_n=128, warps_n=4, stages=3, mma_m=8, mma_k=4),
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    refuses=refuses,
    cost=cost,
    costs=costs,
    cost_in_us=True,
)
