"""What the study's transposes share: blocks of threads over a matrix, what they take, how they are launched."""

from __future__ import annotations

import dataclasses
import functools
import importlib

from gemmule.core.arch import Arch
from gemmule.core.dtype import opaque_dtype
from gemmule.core.errors import ArgumentError
from gemmule.core.launch import Launch, TensorParam
from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import MAX_EXTENT, why_not_grid
from gemmule.core.spec import Buildable, Config, KernelSpec, Signature
from gemmule.kernels.transpose.refusals import rows_are_aligned, why_not_contiguous

_ITEMSIZES = (1, 2, 4, 8)
_MAX_THREADS = 1024


@dataclasses.dataclass(frozen=True)
class BlockConfig(Config):
    """Threads of a CTA.

    Attributes
    ----------
    block_x, block_y : int
        Threads along x, in which neighbours of a warp lie, and along y.
    """

    block_x: int = 32
    block_y: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block_x * self.block_y > _MAX_THREADS:
            raise ArgumentError(f"config {self}: a block has up to {_MAX_THREADS} threads")

    @property
    def covers(self) -> tuple[int, int]:
        """Elements that a CTA moves along x and along y."""
        return self.block_x, self.block_y

    @property
    def outputs(self) -> int:
        return self.covers[0] * self.covers[1]

    def shared_bytes(self, itemsize: int) -> int:
        """Shared memory of a CTA."""
        del itemsize
        return 0


#: The block shapes of the study's sweep; the first is the one that it found best.
SHAPES = ((32, 16), (32, 32), (32, 8), (64, 16), (64, 8), (128, 8))


def block_spec(
    *,
    package: str,
    summary: str,
    configs: tuple[BlockConfig, ...],
    x: str,
    copies: bool = False,
    wide: tuple[int, ...] | None = None,
) -> KernelSpec:
    """Return the spec of a transpose whose threads stand over the matrix, one CTA over a rectangle of it.

    Parameters
    ----------
    package : str
        The kernel's package; its last name is the kernel's. Its module ``kernel`` has ``buildable(config, types)``.
    summary : str
        One line.
    configs : tuple of BlockConfig
        Every config, the default one first.
    x : str
        The index that neighbouring threads walk: ``i``, along the source's rows, or ``j``, along the target's.
    copies : bool
        Whether the kernel copies: its target then lies in memory as its source does.
    wide : tuple of int, optional
        For kernels that move vectors of 16 bytes: the sizes of elements that they take, in rows that begin and end at
        multiples of 16 bytes. Without it, elements of 1 to 8 bytes and any rows.
    """
    itemsizes = wide or _ITEMSIZES
    return KernelSpec(
        name=package.rpartition(".")[2],
        operation="transpose",
        summary=summary,
        package=package,
        archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
        configs=configs,
        signatures=functools.partial(_signatures, itemsizes),
        why_not=functools.partial(_why_not, x, copies, itemsizes, wide is not None),
        signature=_signature,
        launch=functools.partial(_launch, x, copies),
        build=functools.partial(_build, package),
        batch_dims=0,
    )


def _why_not(
    x: str,
    copies: bool,
    itemsizes: tuple[int, ...],
    wide: bool,
    problem: TransposeProblem,
    arch: Arch,
    config: BlockConfig,
) -> str | None:
    del arch
    if problem.itemsize not in itemsizes:
        known = ", ".join(map(str, itemsizes))
        return f"elements of {problem.itemsize} bytes are not supported; the kernel moves those of {known}"
    source, target = problem.source, problem.target
    if copies and (source.row_stride, target.row_stride) != (1, 1):
        return "this kernel only copies: source and target must lie in memory alike, neighbours along the rows"
    if not copies and (reason := why_not_contiguous(problem)):
        return reason
    if wide and not rows_are_aligned(problem):
        return "this kernel takes rows that begin and end at multiples of 16 bytes"
    if max(problem.rows, problem.cols) > MAX_EXTENT:
        return f"an extent of {problem.rows} x {problem.cols} is more than {MAX_EXTENT}"
    return why_not_grid(_grid(x, problem, config))


def _grid(x: str, problem: TransposeProblem, config: BlockConfig) -> tuple[int, int, int]:
    extents = (problem.rows, problem.cols) if x == "i" else (problem.cols, problem.rows)
    along_x, along_y = (-(-extent // side) for extent, side in zip(extents, config.covers, strict=True))
    return along_x, along_y, 1


def _signature(problem: TransposeProblem, config: BlockConfig) -> Signature:
    del config
    return (("element", opaque_dtype(problem.itemsize).name),)


def _signatures(itemsizes: tuple[int, ...], arch: Arch) -> tuple[Signature, ...]:
    del arch
    return tuple((("element", opaque_dtype(size).name),) for size in itemsizes)


def _launch(x: str, copies: bool, problem: TransposeProblem, config: BlockConfig) -> Launch:
    shape = (problem.rows, problem.cols)
    target = problem.target.col_stride if copies else problem.target.row_stride
    return Launch(
        grid=_grid(x, problem, config),
        block=(config.block_x, config.block_y, 1),
        shared_bytes=config.shared_bytes(problem.itemsize),
        params=(TensorParam("a", shape, (problem.source.col_stride,)), TensorParam("d", shape, (target,))),
    )


def _build(package: str, config: BlockConfig, signature: Signature) -> Buildable:
    built = importlib.import_module(f"{package}.kernel").buildable(config, dict(signature))
    assert isinstance(built, Buildable)
    return built
