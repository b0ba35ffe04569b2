"""Permutations that keep the last axis: their limits, and launch recipe."""

from __future__ import annotations

import dataclasses
import itertools
import math

from gemmule.core.arch import Arch
from gemmule.core.dtype import INT32
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.launch import Launch, ScalarParam
from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import VECTOR_BYTES
from gemmule.core.spec import Signature
from gemmule.kernels.parts.hopper_facts import SMS
from gemmule.kernels.transpose.blocks.block import AXES, axes_of
from gemmule.kernels.transpose.blocks.spec import blocks_take_less
from gemmule.kernels.transpose.refusals import ITEMSIZES, why_not_itemsize
from gemmule.kernels.transpose.rows.runs import SHARE_BITS, RowsConfig, rows_are_short, runs_of, unit_of_rows
from gemmule.kernels.transpose.spec import (
    batched_param,
    element_signature,
    launch_tiles,
    transpose_spec,
)
from gemmule.kernels.transpose.tile_config import SECTOR

# Bytes of rows whose multiples are at the same place of lines.
_LINES = 512
# Microseconds of an H200, fitted to 70 permutations: of a launch, of a byte that is read or written; by the bytes of a
# unit, of a vector, and of the end of a row.
_LAUNCH, _BYTE = 1.4, 0.238e-6
_VECTORS = {1: (1.75e-6, 18e-6), 2: (0.85e-6, 11e-6), 4: (0.55e-6, 3.3e-6), 8: (0.5e-6, 2e-6), 16: (0.1e-6, 18e-6)}
# Share of the time of rows below which blocks are chosen; the same of few odd rows of bytes, whose times are predicted
# too long.
_BLOCKS, _BLOCKS_FEW, _FEW = 0.95, 0.8, 8 << 20


def _refuses(problem: TransposeProblem) -> str | None:
    if reason := why_not_itemsize(problem, ITEMSIZES):
        return reason
    source, target = problem.source.col_stride, problem.target.col_stride
    if (source, target) != (1, 1):
        return f"elements of a row have a stride of {source} in the source and {target} in the target; they must be 1"
    if rows_are_short(problem) and 3 <= len(axes_of(problem)) <= AXES:
        return f"rows of {problem.cols * problem.itemsize} bytes are short: blocks of several axes are faster"
    return None


def _signature(problem: TransposeProblem, config: RowsConfig) -> Signature:
    del config
    runs = runs_of(problem)
    return _runs_signature(runs.units.itemsize, runs.merged)


def _signatures(arch: Arch) -> tuple[Signature, ...]:
    del arch
    return tuple(
        _runs_signature(size, merged)
        for size, merged in itertools.product(ITEMSIZES, (False, True))
        if not (merged and size == VECTOR_BYTES)
    )


def _runs_signature(unit: int, merged: bool) -> Signature:
    return (*element_signature(unit), ("runs", "merged" if merged else "single"))


def _launch(problem: TransposeProblem, config: RowsConfig) -> Launch:
    runs = runs_of(problem)
    params = tuple(
        batched_param(name, runs.units, matrix, (matrix.row_stride,)) for name, matrix in runs.units.operands().items()
    )
    lanes, (tiles_i, tiles_j) = config.lanes(runs), config.tiles_of(runs)
    numbers = {
        "lanes": lanes,
        # A product by it divides the number of a thread by the lanes.
        "share": -(-(1 << SHARE_BITS) // lanes),
        "abreast": config.abreast(runs),
        "together": runs.batch if config.batch else 1,
        "tiles": tiles_i * tiles_j,
        "neighbours": tiles_i if runs.merged else tiles_j,
        "divisor": runs.divisor if runs.merged else 0,
        "before": runs.memory[0],
        "after": runs.memory[1],
    }
    scalars = (ScalarParam(name, INT32, number) for name, number in numbers.items())
    return dataclasses.replace(launch_tiles(problem, config), params=(*params, *scalars))


def _cost(problem: TransposeProblem, config: RowsConfig, gpu: GpuRates) -> float:
    """Return about the microseconds of rows: their bytes, and vectors of threads, those outside of rows too."""
    runs = runs_of(problem)
    vectors = math.prod(config.grid(problem)) * config.threads * config.passes
    # Rows that do not follow one another in the target: with those of other matrices they make whole lines. Not where
    # they do in the source, and the stride of matrices is a power of 2, so that they share channels of memory.
    units = runs.units
    in_step = units.source.row_stride == units.cols and runs.bytes % _LINES == 0
    preferred = int(units.target.row_stride * units.itemsize != runs.bytes and not in_step)
    # Shorter vectors take as long to place.
    share = (config.vector + 4) / (VECTOR_BYTES + 4) * (1.0 if config.batch == preferred else 1.02)
    moved = _BYTE * problem.bytes_min + vectors * share * _vector_us(problem, units.itemsize)
    return _LAUNCH + moved * SMS / gpu.multiprocessors


def _vector_us(problem: TransposeProblem, unit: int) -> float:
    """Return the microseconds of a vector: of its words, and of the ends of rows that it has or shares sectors with."""
    of_vector, of_ends = _VECTORS[unit]
    if _are_sectors(problem):
        return of_vector
    return of_vector + of_ends * VECTOR_BYTES / (problem.cols * problem.itemsize)


def _are_sectors(problem: TransposeProblem) -> bool:
    """Return whether rows are of whole sectors."""
    return problem.cols * problem.itemsize % SECTOR == 0


def _faster_alternative(problem: TransposeProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the kernel of blocks where it is predicted to be faster."""
    # Rows of whole sectors take as long as their bytes.
    if _are_sectors(problem):
        return None
    are_few = unit_of_rows(problem) == 1 and problem.bytes_min <= _FEW
    return "transpose_blocks" if blocks_take_less(problem, (_BLOCKS_FEW if are_few else _BLOCKS) * cost, gpu) else None


SPEC = transpose_spec(
    name="transpose_rows",
    summary="elements of 1 to 16 bytes, source and target contiguous along the same axis, batch: rows are copied",
    package=__package__,
    configs=(
        RowsConfig(),
        RowsConfig(batch=1),
        RowsConfig(passes=4),
        RowsConfig(4, 8),
    ),
    itemsizes=ITEMSIZES,
    signatures=_signatures,
    signature=_signature,
    refuses=_refuses,
    launch=_launch,
    cost=_cost,
    cost_in_us=True,
    faster_alternative=_faster_alternative,
)
