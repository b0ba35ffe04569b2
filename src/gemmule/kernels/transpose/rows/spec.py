"""Permutations that keep the last axis: their limits, and launch recipe."""

from __future__ import annotations

import dataclasses
import math

from gemmule.core.arch import Arch
from gemmule.core.dtype import INT32
from gemmule.core.launch import Launch, ScalarParam
from gemmule.core.problem import TransposeProblem
from gemmule.core.spec import Signature
from gemmule.kernels.transpose.cost import rows_cost
from gemmule.kernels.transpose.refusals import ITEMSIZES, why_not_itemsize
from gemmule.kernels.transpose.row_units import unit_of_rows, units_of
from gemmule.kernels.transpose.spec import batched_param, element_signature, launch_tiles, transpose_spec
from gemmule.kernels.transpose.tile_config import SHARE_BITS, RowsConfig


def _refuses(problem: TransposeProblem) -> str | None:
    if reason := why_not_itemsize(problem, ITEMSIZES):
        return reason
    source, target = problem.source.col_stride, problem.target.col_stride
    if (source, target) != (1, 1):
        return f"elements of a row have a stride of {source} in the source and {target} in the target; they must be 1"
    return None


def _signature(problem: TransposeProblem, config: RowsConfig) -> Signature:
    del config
    return element_signature(unit_of_rows(problem))


def _launch(problem: TransposeProblem, config: RowsConfig) -> Launch:
    units = units_of(problem)
    params = tuple(
        batched_param(name, units, matrix, (matrix.row_stride,)) for name, matrix in units.operands().items()
    )
    lanes, (tiles_i, tiles_j) = config.lanes(units), config.tiles(units)
    numbers = {
        "lanes": lanes,
        # A product by it divides the number of a thread by the lanes.
        "share": -(-(1 << SHARE_BITS) // lanes),
        "abreast": config.rows(units),
        "together": math.prod(units.batch) if config.batch else 1,
        "tiles": tiles_i * tiles_j,
        "tiles_j": tiles_j,
    }
    scalars = (ScalarParam(name, INT32, number) for name, number in numbers.items())
    return dataclasses.replace(launch_tiles(units, config), params=(*params, *scalars))


def _why_not(problem: TransposeProblem, arch: Arch, config: RowsConfig) -> str | None:
    del arch
    units = units_of(problem)
    if units.itemsize > config.vector:
        return f"rows are moved in units of {units.itemsize} bytes, more than a vector"
    return config.why_not(units)


SPEC = transpose_spec(
    name="transpose_rows",
    summary="elements of 1 to 16 bytes, source and target contiguous along the same axis, batch: rows are copied",
    package=__package__,
    configs=(
        RowsConfig(),
        RowsConfig(16, 2),
        RowsConfig(16, 4, 128),
        RowsConfig(8, 4),
        RowsConfig(4, 8),
        RowsConfig(16, 4, 256, 1),
        RowsConfig(16, 2, 256, 1),
    ),
    itemsizes=ITEMSIZES,
    signature=_signature,
    refuses=_refuses,
    launch=_launch,
    why_not=_why_not,
    cost=rows_cost,
)
