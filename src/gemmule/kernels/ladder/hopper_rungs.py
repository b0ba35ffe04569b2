"""What the rungs of the Hopper ladder share: what they take, how they are specialised and launched."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from typing import ClassVar

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT16, FLOAT32, DType
from gemmule.core.errors import ArgumentError
from gemmule.core.launch import Launch, Param, ScalarParam, TensorParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, split_batch
from gemmule.core.remembered import remembered
from gemmule.core.row_major import row_result, why_not_extents, why_not_grid
from gemmule.core.spec import Buildable, Config, KernelSpec, Signature
from gemmule.kernels.hopper.tma_tiles import (
    BOX_COLS,
    BOX_ROWS,
    SLICE_BYTES,
    box_params,
    slice_params,
    why_not_copied,
    why_not_written,
)

DTYPES = (BFLOAT16, FLOAT16)
#: Threads of a warpgroup, rows of a wgmma, and warpgroups that multiply where another feeds them.
WARPGROUP, MMA_ROWS, CONSUMERS = 128, 64, 2
#: Shared memory of a CTA: the most there is, and what barriers get of it.
_MOST_SHARED, _BARRIERS = 227 << 10, 1024


@dataclasses.dataclass(frozen=True)
class RungConfig(Config):
    """Tile of C, and the order of tiles.

    Rungs add fields and state: `rows`, what tile_m must be a multiple of; `threads` of a CTA; `cluster`, CTAs one below
    the other that share the slices of B; `boxes` of C or D in shared memory, 0 where threads write D by themselves.

    Attributes
    ----------
    tile_m, tile_n : int
        Elements: multiples of 64, tile_n at most 256.
    stages : int
        Slices in shared memory.
    group : int
        Tiles that are taken downwards before they go to the right.
    """

    tile_m: int = 128
    tile_n: int = 128
    stages: int = 1
    group: int = 8

    rows: ClassVar[int] = MMA_ROWS
    threads: ClassVar[int] = WARPGROUP
    cluster: ClassVar[int] = 1
    boxes: ClassVar[int] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tile_m % self.rows or self.tile_n % BOX_COLS or self.tile_n > 256:
            raise ArgumentError(f"config {self}: tile_m must be a multiple of {self.rows}, tile_n 64, 128, 192 or 256")
        if self.shared_bytes > _MOST_SHARED:
            raise ArgumentError(f"config {self}: {self.shared_bytes} bytes of shared memory, of at most {_MOST_SHARED}")

    @property
    def outputs(self) -> int:
        return self.tile_m * self.tile_n

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA: barriers, stages of A and B, and boxes of D."""
        slices = (self.tile_m + self.tile_n) * SLICE_BYTES * self.stages
        return _BARRIERS + slices + self.boxes * BOX_ROWS * SLICE_BYTES

    def grid(self, tiles: int) -> int:
        """Return the CTAs for a number of tiles."""
        return tiles


@dataclasses.dataclass(frozen=True)
class RolesConfig(RungConfig):
    """A tile that two warpgroups multiply, which a third feeds.

    Attributes
    ----------
    tile_m, tile_n : int
        Elements: tile_m a multiple of 128; tile_n 64, 128, 192 or 256.
    stages : int
        Slices in shared memory.
    group : int
        Tiles that are taken downwards before they go to the right.
    """

    tile_m: int = 128
    tile_n: int = 256
    stages: int = 4

    rows: ClassVar[int] = MMA_ROWS * CONSUMERS
    threads: ClassVar[int] = WARPGROUP * (1 + CONSUMERS)


@dataclasses.dataclass(frozen=True)
class PersistentConfig(RolesConfig):
    """A tile that two warpgroups multiply, which a third feeds, in CTAs that stay.

    Attributes
    ----------
    tile_m, tile_n : int
        Elements: tile_m a multiple of 128; tile_n 64, 128, 192 or 256.
    stages : int
        Slices in shared memory.
    group : int
        Tiles that are taken downwards before they go to the right.
    ctas : int
        CTAs that share all tiles: the multiprocessors of the chip.
    """

    ctas: int = 132

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ctas < self.cluster:
            raise ArgumentError(f"config {self}: ctas must be the {self.cluster} of a cluster or more")

    def grid(self, tiles: int) -> int:
        return min(tiles, self.ctas // self.cluster * self.cluster)


def hopper_spec(*, package: str, summary: str, configs: tuple[RungConfig, ...]) -> KernelSpec:
    """Return the spec of a rung: float16 or bfloat16, A and B in rows or in columns, C and D both in rows or columns.

    Parameters
    ----------
    package : str
        The kernel's package; its last name is the kernel's. Its module ``kernel`` has ``buildable(config, types)``.
    summary : str
        One line.
    configs : tuple of RungConfig
        Every config, the default one first.
    """
    return KernelSpec(
        name=package.rpartition(".")[2],
        operation="gemm",
        summary=summary,
        package=package,
        archs=(Arch(9, 0, True),),
        configs=configs,
        signatures=_signatures,
        why_not=_why_not,
        signature=_problem_signature,
        launch=_launch,
        build=functools.partial(_build, package),
        batch_dims=0,
        refuses=functools.partial(_refuses, written=configs[0].boxes > 0),
    )


def _why_not(problem: GemmProblem, arch: Arch, config: RungConfig) -> str | None:
    if reason := _refuses(problem, arch, written=config.boxes > 0):
        return reason
    inner, _, _ = split_batch(problem, 0)
    oriented, _, _ = row_result(inner)
    return why_not_grid((_grid(oriented, config), 1, 1))


def _refuses(problem: GemmProblem, arch: Arch, *, written: bool) -> str | None:
    """Say why no config takes `problem`, of a rung whose copy engine writes D or not."""
    if reason := _why_not_read(problem, arch):
        return reason
    if written:
        inner, _, _ = split_batch(problem, 0)
        oriented, _, _ = row_result(inner)
        return why_not_written(oriented.d)
    return None


@remembered
def _why_not_read(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no rung takes `problem`, whatever writes D: all are asked, one after another."""
    if arch.capability != (9, 0):
        return f"wgmma is an instruction of sm_90a; this GPU is {arch}"
    # Each matrix of a batch is a launch; the later ones may begin elsewhere.
    inner, _, _ = split_batch(problem, 0)
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
        if reason := why_not_copied(name, matrix, ()):
            return reason
    if not all((problem.m, problem.n, problem.k, problem.alpha, *problem.batch)):
        return "there is nothing to multiply: an extent, the batch or alpha is 0"
    return why_not_extents(problem)


def _grid(problem: GemmProblem, config: RungConfig) -> int:
    # The tiles of whole clusters.
    tiles_m = -(-problem.m // (config.tile_m * config.cluster)) * config.cluster
    return config.grid(tiles_m * -(-problem.n // config.tile_n))


def _problem_signature(problem: GemmProblem, config: RungConfig) -> Signature:
    del config
    oriented, _, _ = row_result(problem)
    along_a = "k" if oriented.a.lies_in_rows else "m"
    along_b = "k" if oriented.b.transposed().lies_in_rows else "n"
    return _signature(problem.a.dtype, along_a, along_b, problem.c is not None)


def _signatures(arch: Arch) -> tuple[Signature, ...]:
    del arch
    every = tuple(_signature(BFLOAT16, a, b, c) for a in "km" for b in "nk" for c in (False, True))
    # The types differ in two words of the code.
    return (*every, _signature(FLOAT16, "k", "n", False))


def _signature(element: DType, a: str, b: str, c: bool) -> Signature:
    return (("element", element.name), ("a", a), ("b", b), ("c", "yes" if c else "no"))


def _launch(problem: GemmProblem, config: RungConfig) -> Launch:
    problem, first, second = row_result(problem)
    c = problem.c if problem.c is not None else problem.d
    params = (
        *slice_params(first, problem.a, (), config.tile_m),
        # The one place where B turns from (K, N), as the API has it, to (N, K), as CuTe has it.
        *slice_params(second, problem.b.transposed(), (), config.tile_n, config.cluster),
        *_result_params("d" if problem.c is None else "c", c, config),
        *_result_params("d", problem.d, config),
        ScalarParam("alpha", FLOAT32, problem.alpha),
        ScalarParam("beta", FLOAT32, problem.beta if problem.c is not None else 0),
    )
    return Launch(
        grid=(_grid(problem, config), 1, 1),
        block=(config.threads, 1, 1),
        shared_bytes=config.shared_bytes,
        cluster=(config.cluster, 1, 1),
        params=params,
    )


def _result_params(operand: str, matrix: StridedMatrix, config: RungConfig) -> tuple[Param, ...]:
    if config.boxes:
        return box_params(operand, matrix, ())
    return (TensorParam(operand, (matrix.rows, matrix.cols), (matrix.row_stride,)),)


def _build(package: str, config: RungConfig, signature: Signature) -> Buildable:
    built = importlib.import_module(f"{package}.kernel").buildable(config, dict(signature))
    assert isinstance(built, Buildable)
    return built
