"""Spec and launch recipe that transposes share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gemmule.core.arch import Arch
from gemmule.core.dtype import opaque_dtype
from gemmule.core.launch import Launch, Param, TensorParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import TransposeProblem
from gemmule.core.spec import KernelSpec, Signature

from .tile_config import TileConfig

#: Batch dimensions that one launch covers.
BATCH_DIMS = 3


def transpose_spec(
    *, itemsizes: tuple[int, ...], refuses: Callable[[TransposeProblem], str | None], **fields: Any
) -> KernelSpec:
    """Return the spec of a transpose with a CTA for each tile, specialised for the size of elements.

    Parameters
    ----------
    itemsizes : tuple of int
        Sizes of elements that it is specialised for.
    refuses : callable
        ``refuses(problem)`` is why no config takes a problem, or None; the rest is `TileConfig.why_not`.
    **fields
        Other fields of KernelSpec: name, summary, package and configs, and those that differ.
    """
    defaults: dict[str, Any] = {
        "operation": "transpose",
        "archs": (Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
        "signatures": functools.partial(_signatures, itemsizes),
        "why_not": _why_not,
        "signature": _signature,
        "launch": launch_tiles,
        "batch_dims": BATCH_DIMS,
    }
    return KernelSpec(refuses=functools.partial(_refuses, refuses), **(defaults | fields))


def _signatures(itemsizes: tuple[int, ...], arch: Arch) -> tuple[Signature, ...]:
    del arch
    return tuple(element_signature(size) for size in itemsizes)


def _signature(problem: TransposeProblem, config: TileConfig) -> Signature:
    del config
    return element_signature(problem.itemsize)


def element_signature(itemsize: int) -> Signature:
    """Return the specialisation for a size of elements."""
    return (("element", opaque_dtype(itemsize).name),)


def _refuses(refuses: Callable[[TransposeProblem], str | None], problem: TransposeProblem, arch: Arch) -> str | None:
    del arch
    return refuses(problem)


def _why_not(problem: TransposeProblem, arch: Arch, config: TileConfig) -> str | None:
    del arch
    return config.why_not(problem)


def launch_tiles(problem: TransposeProblem, config: TileConfig) -> Launch:
    """Return the launch recipe of a kernel with a CTA for each tile."""
    source, target = problem.source, problem.target
    return Launch(
        grid=config.grid(problem),
        block=(config.threads, 1, 1),
        shared_bytes=config.shared_bytes(problem.itemsize),
        # Unit strides are compiled in.
        params=(
            batched_param("a", problem, source, (source.col_stride,)),
            batched_param("d", problem, target, (target.row_stride,)),
        ),
        overlaps=True,
    )


def batched_param(
    operand: str, problem: TransposeProblem, matrix: StridedMatrix, strides: tuple[int, ...], shape_bits: int = 32
) -> Param:
    """Return an operand as a tensor (rows, cols, three batch extents), with those strides and the batch's."""
    missing = BATCH_DIMS - len(problem.batch)
    shape = (problem.rows, problem.cols, *problem.batch, *(1,) * missing)
    return TensorParam(operand, shape, (*strides, *matrix.batch_strides, *(0,) * missing), shape_bits)
