"""Specs of the study's transposes: a CTA's threads stand over a rectangle of the matrix."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import opaque_dtype
from gemmule.core.launch import Launch, TensorParam
from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import MAX_EXTENT, why_not_grid
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.transpose.refusals import rows_are_aligned, why_not_contiguous

from .transpose_rung_config import BlockConfig, PaddedTileConfig, TileConfig, UnrolledConfig, VectorConfig

_ITEMSIZES = (1, 2, 4, 8)
#: The block shapes of the study's sweep; the first is the one that it found best. Then those of squares.
_SHAPES = ((32, 16), (32, 32), (32, 8), (64, 16), (64, 8), (128, 8))
_SQUARES = ((32, 8), (32, 16), (32, 32), (64, 8), (64, 16))


def _rung(
    name: str,
    summary: str,
    configs: Sequence[BlockConfig],
    x: str = "i",
    *,
    copies: bool = False,
    wide: tuple[int, ...] | None = None,
) -> KernelSpec:
    """Return the spec of a transpose.

    Parameters
    ----------
    name, summary, configs
        As of `KernelSpec`.
    x : str
        The index that consecutive threads follow: ``i``, along the source's rows, or ``j``, along the target's.
    copies : bool
        Whether the kernel copies: its target then lies in memory as its source does.
    wide : tuple of int, optional
        For kernels that move vectors of 16 bytes: the sizes of elements that they take, in rows that begin and end at
        multiples of 16 bytes. Without it, elements of 1 to 8 bytes and any rows.
    """
    itemsizes = wide or _ITEMSIZES
    return KernelSpec(
        name=name,
        operation="transpose",
        summary=summary,
        package=f"{__package__}.{name}",
        archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
        configs=tuple(configs),
        signatures=functools.partial(_signatures, itemsizes),
        why_not=functools.partial(_why_not, x, copies, itemsizes, wide is not None),
        signature=_signature,
        launch=functools.partial(_launch, x, copies),
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
        return "this kernel only copies: source and target must both have a row stride of 1"
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


_BLOCKS = tuple(BlockConfig(*shape) for shape in _SHAPES)
_UNROLLED = tuple(UnrolledConfig(*shape) for shape in _SHAPES)
_BY_ROWS, _BY_COLUMNS = "reads along rows, writes along columns", "reads along columns, writes along rows"

T01 = _rung("t01_copy_row", "a copy, no transpose: consecutive threads along the rows", _BLOCKS, copies=True)
T02 = _rung("t02_copy_col", "a copy, no transpose: consecutive threads along the columns", _BLOCKS, "j", copies=True)
T03 = _rung("t03_naive_row", f"{_BY_ROWS}, one element a thread", _BLOCKS)
T04 = _rung("t04_naive_col", f"{_BY_COLUMNS}, one element a thread", _BLOCKS, "j")
T05 = _rung("t05_unroll_row", f"{_BY_ROWS}, 4 elements a thread", _UNROLLED)
T06 = _rung("t06_unroll_col", f"{_BY_COLUMNS}, 4 elements a thread", _UNROLLED, "j")
T07 = _rung("t07_diagonal_row", f"{_BY_ROWS}, blocks in diagonal order", _BLOCKS)
T08 = _rung("t08_diagonal_col", f"{_BY_COLUMNS}, blocks in diagonal order", _BLOCKS, "j")
T09 = _rung(
    "t09_shared_tile",
    "reads and writes along rows, through a square tile in shared memory",
    [TileConfig(*shape) for shape in _SQUARES],
)
T10 = _rung(
    "t10_padded",
    "reads and writes along rows, through a square tile whose rows are padded by an element",
    [PaddedTileConfig(*shape) for shape in _SQUARES],
)
T11 = _rung(
    "t11_swizzled_vectorised",
    "4 bytes, rows of whole 16 bytes: vectors on both sides, through a square swizzled by an XOR",
    [VectorConfig(), VectorConfig(128), VectorConfig(64, side=32)],
    wide=(4,),
)
