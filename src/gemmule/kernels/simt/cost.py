"""Predicted times of the float32 GEMMs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from gemmule.core.dtype import INT32
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.core.row_major import is_vectorised, row_result
from gemmule.kernels.parts.leading_dimension import LeadingDimension, leading_dimension

from .config import LARGEST, VECTOR, VECTOR_BYTES, SimtConfig
from .rates import RATES
from .work import OperandLayout, SimtWork, facts_of, work_of

#: Layout of MN-major copies in workspaces.
_COPY = OperandLayout(k_major=False, unaligned=False)
#: Microseconds on an H200 that a wave of the largest tiles takes longer with C, or an input of the epilogue, that is
#: read by element: in columns, and otherwise. Smaller tiles hide it (records 20261130T001854 and 20261130T005355).
_BY_COLUMNS, _BY_ROWS = 10.0, 45.0


def limits(problem: GemmProblem, configs: Sequence[SimtConfig], gpu: GpuRates) -> SimtWork:
    """Return the work of configs for a product."""
    return _limits(problem, (operand_layouts(problem),), configs, gpu)


def _limits(
    problem: GemmProblem,
    operands: tuple[tuple[OperandLayout, OperandLayout], ...],
    configs: Sequence[SimtConfig],
    gpu: GpuRates,
) -> SimtWork:
    """Return the work of configs for a product with each of several pairs of operands, one after another."""
    one, _, _ = row_result(problem)
    m, n, k, batch = one.m, one.n, one.k, (one.batch or (1,))[0]
    integers = one.a.dtype == INT32
    facts = facts_of(configs, operands, n % VECTOR > 0, gpu.multiprocessors, integers=integers)
    moved = gpu.moved_us(((m + n) * k + m * n) * batch * one.a.dtype.itemsize, 1.0)
    tiles = np.ceil(float(m) / facts.tile_m)
    tiles *= np.ceil(float(n) / facts.tile_n)
    if batch != 1:
        tiles *= batch
    return work_of(facts, tiles, k, moved)


@cache_last_call
def operand_layouts(problem: GemmProblem) -> tuple[OperandLayout, OperandLayout]:
    """Return the layouts of A and B of the row-major result."""
    oriented, _, _ = row_result(problem)
    a, b = oriented.a, oriented.b
    k_bytes = oriented.k * a.dtype.itemsize
    return _layout_of(a, a.is_row_major, k_bytes), _layout_of(b, not b.is_row_major, k_bytes)


def _layout_of(matrix: StridedMatrix, k_major: bool, k_bytes: int) -> OperandLayout:
    # A vector of a padded K-major operand may be half outside.
    outside = k_major and k_bytes % VECTOR_BYTES > 0
    return OperandLayout(k_major, outside or operand_copies(matrix).copy_bytes < VECTOR_BYTES)


def operand_copies(matrix: StridedMatrix) -> LeadingDimension:
    """Return the leading dimension of an operand, and the widest copies that it allows."""
    # The hardware reads only the part of a copy that is inside, but compute-sanitizer reports all of it as read.
    return leading_dimension(matrix, (VECTOR_BYTES, matrix.dtype.itemsize), ends=True)


def costs(problem: GemmProblem, configs: Sequence[SimtConfig], gpu: GpuRates) -> Any:
    """Return roughly the times in microseconds of `simt_gemm`."""
    return _predicted(_limits(problem, (operand_layouts(problem),), configs, gpu), _by_element_us(problem) * gpu.load)


def _by_element_us(problem: GemmProblem) -> float:
    """Return how much longer a wave of the largest tiles takes with matrices that are read by element."""
    oriented, _, _ = row_result(problem)
    found, inputs = 0.0, [] if oriented.epilogue is None else [*oriented.epilogue.matrices]
    if oriented.c is not None and not is_vectorised(oriented.c, row_major=True):
        inputs.append(oriented.c)
    for one in inputs:
        if one.row_stride and one.col_stride:
            found += _BY_COLUMNS if abs(one.row_stride) < abs(one.col_stride) else _BY_ROWS
    return found


def costs_with_copies(
    problem: GemmProblem, copied: Collection[str], configs: Sequence[Any], gpu: GpuRates
) -> tuple[Any, Any]:
    """Return `costs` of a product, and with MN-major copies of some operands: faster than one after the other."""
    _, *names = row_result(problem)
    layouts = operand_layouts(problem)
    first, second = (_COPY if name in copied else one for name, one in zip(names, layouts, strict=True))
    work = _limits(problem, (layouts, (first, second)), configs, gpu)
    own, others = _predicted(work, _by_element_us(problem) * gpu.load).reshape(2, -1)
    return own, others


def _predicted(work: SimtWork, by_element_us: float = 0.0) -> Any:
    found = work.predicted_us(RATES)
    found *= work.facts.factor
    if by_element_us:
        found += by_element_us * (work.waves + 1) * (work.facts.tile_m * work.facts.tile_n >= LARGEST)
    return found


def costs_of_tiles(
    problem: GemmProblem, tiles: Sequence[float], moved: float, configs: Sequence[SimtConfig], gpu: GpuRates
) -> list[float]:
    """Return roughly the times in microseconds of `simt_grouped` with the operands and the K of a problem.

    Parameters
    ----------
    tiles : sequence of float
        Tiles of each config.
    moved : float
        Bytes of operands and result.
    """
    layouts = (operand_layouts(problem),)
    facts = facts_of(configs, layouts, problem.n % VECTOR > 0, gpu.multiprocessors, takes_vectors=False)
    work = work_of(facts, np.array(tiles, float), problem.k, gpu.moved_us(moved, 1.0))
    found: list[float] = _predicted(work).tolist()
    return found
