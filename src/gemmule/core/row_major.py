"""What the kernels for row-major matrices share: what they take, how they are specialised and launched."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from abc import abstractmethod
from typing import ClassVar

from .arch import Arch
from .dtype import DType
from .errors import ArgumentError
from .launch import Launch, Param, ScalarParam, TensorParam
from .layout import StridedMatrix
from .problem import GemmProblem
from .remembered import remembered
from .spec import Buildable, Config, KernelSpec, Signature

#: Extents beyond this could overflow the 32-bit indices of the kernels.
MAX_EXTENT = 2**30
#: CTAs along x, y and z.
MAX_GRID = (2**31 - 1, 2**16 - 1, 2**16 - 1)
#: Threads that a CTA may have.
MAX_THREADS = 1024
#: Bytes of shared memory that a CTA may have on any architecture.
MAX_SHARED_BYTES = 227 << 10
#: Bytes of the widest copy that one thread makes.
VECTOR_BYTES = 16


class RowMajorConfig(Config):
    """Base of the configs: what a launch needs to know of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threads > MAX_THREADS:
            raise ArgumentError(f"config {self}: {self.threads} threads are more than the {MAX_THREADS} of a CTA")
        if self.shared_bytes > MAX_SHARED_BYTES:
            raise ArgumentError(
                f"config {self}: {self.shared_bytes} bytes of shared memory, of at most {MAX_SHARED_BYTES}"
            )

    @property
    @abstractmethod
    def tile(self) -> tuple[int, int, int]:
        """Rows and columns of C that a CTA computes, and the depth of its slices of K."""

    @property
    @abstractmethod
    def threads(self) -> int:
        """Threads of a CTA."""

    @property
    def outputs(self) -> int:
        return self.tile[0] * self.tile[1]

    @property
    def divides(self) -> tuple[int, int, int]:
        """What must divide M, N and K for the kernel without predicates: the tile."""
        return self.tile

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA."""
        return 0

    def grid(self, m: int, n: int) -> tuple[int, int, int]:
        """Return the CTAs for an (m, n) result: neighbours lie along a row of C."""
        tile_m, tile_n, _ = self.tile
        return (-(-n // tile_n), -(-m // tile_m), 1)


@dataclasses.dataclass(frozen=True)
class ThreadTileConfig(RowMajorConfig):
    """Tile of C that a CTA computes, and the part of a thread.

    Attributes
    ----------
    tile_m, tile_n, tile_k : int
        Elements.
    thread_m, thread_n : int
        Rows and columns of C that a thread computes.
    """

    tile_m: int = 128
    tile_n: int = 128
    tile_k: int = 8
    thread_m: int = 8
    thread_n: int = 8

    #: Neighbours that a thread copies or writes at once, and the numbers that are whole runs of them.
    run: ClassVar[int] = 1
    in_runs: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tile_m % self.thread_m or self.tile_n % self.thread_n:
            raise ArgumentError(f"config {self}: thread_m must divide tile_m, and thread_n tile_n")
        for name in self.in_runs:
            if getattr(self, name) % self.run:
                raise ArgumentError(f"config {self}: {name} must be a multiple of {self.run}, which move at once")
        copied = self.run * self.threads
        if any(side * self.tile_k % copied for side in self.copied_sides):
            raise ArgumentError(f"config {self}: a slice must be a multiple of {copied} elements, {self.run} a thread")

    @property
    def tile(self) -> tuple[int, int, int]:
        return (self.tile_m, self.tile_n, self.tile_k)

    @property
    def threads(self) -> int:
        return (self.tile_m // self.thread_m) * (self.tile_n // self.thread_n)

    @property
    def copied_sides(self) -> tuple[int, ...]:
        """Rows of the slices that all threads copy together, each the same number of runs."""
        return (self.tile_m, self.tile_n)

    @property
    def slice_elements(self) -> int:
        """Elements of a slice of A and one of B."""
        return (self.tile_m + self.tile_n) * self.tile_k


def row_major_spec(
    *, package: str, dtype: DType, summary: str, configs: tuple[RowMajorConfig, ...], archs: tuple[Arch, ...]
) -> KernelSpec:
    """Return the spec of a kernel for row-major A (M, K), B (K, N), C and D (M, N), all of one type.

    It is specialised twice: for tiles that divide the problem, in matrices whose rows start at multiples of 16 bytes
    (``whole``: wide copies, no predicates), and for all others (``ragged``).

    Parameters
    ----------
    package : str
        The kernel's package; its last name is the kernel's. Its module ``kernel`` has ``buildable(config, types)``.
    dtype : DType
        Type of all operands.
    summary : str
        One line.
    configs : tuple of RowMajorConfig
        Every config, the default one first.
    archs : tuple of Arch
        As of KernelSpec.
    """
    return KernelSpec(
        name=package.rpartition(".")[2],
        operation="gemm",
        summary=summary,
        package=package,
        archs=archs,
        configs=configs,
        signatures=functools.partial(_signatures, dtype),
        why_not=functools.partial(_why_not, dtype),
        signature=_problem_signature,
        launch=_launch,
        build=functools.partial(_build, package),
        batch_dims=0,
    )


def _why_not(dtype: DType, problem: GemmProblem, arch: Arch, config: RowMajorConfig) -> str | None:
    del arch
    return (
        why_not_row_major(problem, dtype) or why_not_extents(problem) or why_not_grid(config.grid(problem.m, problem.n))
    )


def _problem_signature(problem: GemmProblem, config: RowMajorConfig) -> Signature:
    return _signature(problem.d.dtype, is_whole(problem, config.divides))


def _signatures(dtype: DType, arch: Arch) -> tuple[Signature, ...]:
    del arch
    return tuple(_signature(dtype, whole) for whole in (True, False))


def _launch(problem: GemmProblem, config: RowMajorConfig) -> Launch:
    return Launch(
        grid=config.grid(problem.m, problem.n),
        block=(config.threads, 1, 1),
        shared_bytes=config.shared_bytes,
        params=row_major_params(problem),
    )


def _build(package: str, config: RowMajorConfig, signature: Signature) -> Buildable:
    built = importlib.import_module(f"{package}.kernel").buildable(config, dict(signature))
    assert isinstance(built, Buildable)
    return built


def row_result(problem: GemmProblem) -> tuple[GemmProblem, str, str]:
    """Return a problem whose result is row-major, and the operands that are its A and B.

    A column-major D is the row-major D.T = B.T @ A.T.
    """
    if problem.d.is_row_major:
        return problem, "a", "b"
    a, b, d = problem.b.transposed(), problem.a.transposed(), problem.d.transposed()
    c = problem.c.transposed() if problem.c is not None else None
    epilogue = problem.epilogue.transposed() if problem.epilogue is not None else None
    turned = dataclasses.replace(problem, m=problem.n, n=problem.m, a=a, b=b, c=c, d=d, epilogue=epilogue)
    return turned, "b", "a"


@remembered
def why_not_row_major(problem: GemmProblem, dtype: DType) -> str | None:
    """Say which operand is not a row-major matrix of that type, or None where all are."""
    for name, matrix in problem.operands().items():
        if matrix.dtype != dtype:
            return f"{name.upper()} is {matrix.dtype}; this kernel takes {dtype} only"
        if matrix.cols > 1 and matrix.col_stride != 1:
            return (
                f"{name.upper()} has strides ({matrix.row_stride}, {matrix.col_stride}); this kernel takes row-major "
                "matrices only, whose neighbours in a row are neighbours in memory"
            )
    return None


@remembered
def why_not_lines(problem: GemmProblem, dtype: DType) -> str | None:
    """Say which operand is no row- or column-major matrix of that type, or None where all are, C lying as D does."""
    for name, matrix in problem.operands().items():
        if matrix.dtype != dtype:
            return f"{name.upper()} is {matrix.dtype}; this kernel takes {dtype} only"
        if not (matrix.is_row_major or matrix.is_col_major):
            return (
                f"{name.upper()} has strides ({matrix.row_stride}, {matrix.col_stride}); this kernel takes row-major "
                "and column-major matrices"
            )
    oriented, _, _ = row_result(problem)
    if oriented.c is not None and not oriented.c.is_row_major:
        return "C and the output have different layouts; this kernel takes both row-major or both column-major"
    return None


def why_not_extents(problem: GemmProblem) -> str | None:
    """Say which extent is too large for 32-bit indices, or None where all fit."""
    for name, extent in (("M", problem.m), ("N", problem.n), ("K", problem.k)):
        if extent > MAX_EXTENT:
            return f"{name}={extent} is more than {MAX_EXTENT}, the most that this kernel's 32-bit indices take"
    return None


def why_not_grid(grid: tuple[int, int, int]) -> str | None:
    """Say which side of the grid is too long, or None where a launch takes it."""
    for axis, ctas, most in zip("xyz", grid, MAX_GRID, strict=True):
        if ctas > most:
            return f"the problem needs {ctas} CTAs along {axis}, more than the {most} of a launch"
    return None


def is_whole(problem: GemmProblem, tile: tuple[int, int, int]) -> bool:
    """Whether tiles divide the problem and every row of every operand starts where a 16-byte copy may."""
    extents = (problem.m, problem.n, problem.k)
    divides = all(extent % side == 0 for extent, side in zip(extents, tile, strict=True))
    return divides and all(is_vectorised(matrix, row_major=True) for matrix in problem.operands().values())


def is_vectorised(matrix: StridedMatrix, *, row_major: bool) -> bool:
    """Whether every row (or column, of a column-major matrix) of every batch starts where a 16-byte copy may."""
    lead = matrix.row_stride if row_major else matrix.col_stride
    item = matrix.dtype.itemsize
    return all(stride * item % VECTOR_BYTES == 0 for stride in (lead, *matrix.batch_strides)) and (
        matrix.alignment % VECTOR_BYTES == 0
    )


def row_major_params(problem: GemmProblem) -> tuple[Param, ...]:
    """Return the parameters A (M, K), B (N, K), C and D (M, N), alpha, beta.

    Unit strides are compiled in, so a tensor is its pointer, two extents and one stride.
    """
    m, n, k = problem.m, problem.n, problem.k
    acc = problem.accumulator
    c = problem.c if problem.c is not None else problem.d
    return (
        TensorParam("a", (m, k), (problem.a.row_stride,)),
        # The one place where B turns from (K, N), as the API has it, to (N, K), as CuTe has it.
        TensorParam("b", (n, k), (problem.b.row_stride,)),
        TensorParam("d" if problem.c is None else "c", (m, n), (c.row_stride,)),
        TensorParam("d", (m, n), (problem.d.row_stride,)),
        ScalarParam("alpha", acc, problem.alpha),
        ScalarParam("beta", acc, problem.beta if problem.c is not None else 0),
    )


def batched_params(problem: GemmProblem, first: str, second: str, a_line: int, b_line: int) -> tuple[Param, ...]:
    """Return the parameters A (M, K, L), B (N, K, L), row-major C and D (M, N, L), alpha, beta.

    Parameters
    ----------
    problem, first, second
        The problem with a row-major result, and the operands that are its A and B, as `row_result` gives them.
    a_line, b_line : int
        Elements from a line of A and of B, a row or a column, to the next; within one the stride is compiled in.
    """
    m, n, k = problem.m, problem.n, problem.k
    batch = problem.batch or (1,)
    acc = problem.accumulator
    c = problem.c if problem.c is not None else problem.d

    def strides(matrix: StridedMatrix, line: int) -> tuple[int, ...]:
        return (line, *(matrix.batch_strides or (0,)))

    return (
        TensorParam(first, (m, k, *batch), strides(problem.a, a_line)),
        # The one place where B turns from (K, N), as the API has it, to (N, K), as CuTe has it.
        TensorParam(second, (n, k, *batch), strides(problem.b, b_line)),
        TensorParam("d" if problem.c is None else "c", (m, n, *batch), strides(c, c.row_stride)),
        TensorParam("d", (m, n, *batch), strides(problem.d, problem.d.row_stride)),
        ScalarParam("alpha", acc, problem.alpha),
        ScalarParam("beta", acc, problem.beta if problem.c is not None else 0),
    )


def _signature(dtype: DType, whole: bool) -> Signature:
    return (("element", dtype.name), ("tiles", "whole" if whole else "ragged"))
