"""Predicted times of hopper_gemm."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from gemmule.core.dtype import FLOAT32, DType
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_for_configs
from gemmule.core.problem import GemmProblem
from gemmule.kernels.hopper.cost.correction import is_layer, takes_further
from gemmule.kernels.hopper.cost.edges import edge_share
from gemmule.kernels.hopper.cost.functions import function_us, is_slow, reads_a_matrix
from gemmule.kernels.hopper.cost.operation import operation_of
from gemmule.kernels.hopper.cost.pauses import epilogue_us, fp8_contention, promote_us, scaled_us
from gemmule.kernels.hopper.cost.rates import Numbers, Operation, TileRates, positions_among, times_at
from gemmule.kernels.hopper.cost.times import rates_of, times_us
from gemmule.kernels.hopper.tile_config import COLUMN_SCALED_N, CONSUMERS, MAX_ACC_COLUMNS
from gemmule.kernels.parts.hopper_facts import SMS

from .columns import why_not_columns
from .config import HopperGemmConfig
from .offers import FOR_8_K_TILES, SHARED_ROWS, SHORT_K, is_offered, offered_to

#: Share of predicted times that an MN-major A in registers adds: columns over the larger of tile_n and the second
#: number, as its elements are read once for all columns; more where CTAs share the loads of A; and where a cluster
#: splits K. Fitted to the products of records 20261125T121807 (an H100), 20261125T131244 and 20261128T135333
#: (H200s).
_COLUMNS_PER_A, _LEAST_COLUMNS, _SHARED_A, _SPLIT_A = 10, 48, 0.04, 0.05
#: The chip that the factors below were timed on: of the same with `split_k`, of records 20261129T054750 and
#: 20261130T040208; without it, where CTAs share the loads of A and a warpgroup multiplies 128 rows or more, and the
#: fewest k-tiles, and k-tiles of all elements, that it holds for, of 20261125T131244 to 20261130T102800.
_TIMED_CHIP = "H200"
_SPLIT_K_A = 0.92
_SHARED_TALL_A, _TALL_K_TILES, _TALL_WORK = 1.12, 10, 2**25
#: Microseconds that a warpgroup takes longer for 2**14 elements with C: of records 20261129T203727 and
#: 20261129T210739, H200s.
_C_US = 0.5
#: The factor of the times of tiles whose accumulators leave no registers for elements of a matrix that a function of
#: 16-bit operands reads, so that these spill: 1.29 and 1.33 of record 20261130T010854.
_SPILLED = 1.3
#: The factor of the times of gated TF32: 1.12, 1.20 and 1.28 of 1000, 2048 and 4096 cubed (record 20261130T093620).
_GATED_TF32 = 1.2
#: Fewest k-tiles of a product that configs of `FOR_SHARED_ROWS` are offered to, which has K-major operands besides: of
#: such they were timed. Of others a choice among them took longer (record 20261129T150040). And fewest of one that is
#: offered those of `FOR_8_K_TILES`: 64 x 40 by 1 x 4 took 6 % longer in nine records, 2 % in 20261130T102800.
_LEAST_K_TILES, _LEAST_OF_ALL = 16, 8
#: Most k-tiles of a product that configs of `FOR_SHORT_K` are offered to, and their share of the time of those with a
#: stage more: 0.93 and 0.94 with C, 0.96 and 0.97 with GELU, of record 20261130T032441.
_MOST_K_TILES, _SHORT_SHARE = 4, 0.96
#: Bytes of an element of 16 bits.
_HALF_BYTES = 2
#: The factor of layers' times in configs of three consumers, to which their network was not fitted: of record
#: 20261130T133826, judged by 20261130T142006.
_THREE = 1.03


def costs(problem: GemmProblem, configs: Sequence[HopperGemmConfig], gpu: GpuRates) -> Numbers:
    """Return the predicted time of each config, in microseconds: infinite for configs not offered to the types."""
    return costs_of_each(problem, operation_of(problem), configs, gpu)[0]


def costs_of_each(
    problem: GemmProblem, operation: Operation, configs: Sequence[HopperGemmConfig], gpu: GpuRates
) -> list[Numbers]:
    """Return `costs` of a product, and those with K-major copies if the operation has them."""
    dtype = problem.a.dtype
    mn_major = operation.a.mn_major, operation.b.mn_major
    prepares = operation.prepared is not None
    offers = is_layer(operation, gpu.learned), takes_further(operation, gpu.learned)
    rates, positions = _offered(configs, gpu, dtype, mn_major, prepares, offers)
    if not rates.count:
        return [times_at((), one) for one in positions]
    times = times_us(operation, rates)
    if operation.k_tiles < _LEAST_K_TILES:
        lacking = FOR_8_K_TILES if operation.k_tiles < _LEAST_OF_ALL else SHARED_ROWS
        times += rates.cached(lacking, lambda: rates.each(lambda one: math.inf if one.on(SMS) in lacking else 0.0))
    if offers[0]:
        times *= rates.cached("three", lambda: rates.each(lambda one: _THREE if one.consumers > CONSUMERS else 1.0))
    if dtype.is_float8:
        times += promote_us(operation, rates)
        lines = None
        if problem.epilogue is not None and (scales := problem.epilogue.scales) is not None:
            lines = (scales.lines_a, scales.lines_b) if problem.d.is_row_major else (scales.lines_b, scales.lines_a)
            times += scaled_us(operation, rates, lines)
            times *= edge_share(operation, rates, lines)
        times *= fp8_contention(operation, rates)
        if lines is None or lines[1] != 1:
            times += rates.cached("columns_only", lambda: rates.each(_only_for_columns))
    if dtype == FLOAT32 and any(mn_major):
        work = operation.rows * operation.cols * operation.k_tiles
        times *= _registers_factors(mn_major, rates, work >= _TALL_WORK and operation.k_tiles >= _TALL_K_TILES)
    if dtype == FLOAT32 and problem.epilogue is not None and problem.epilogue.second is not None:
        times *= _GATED_TF32
    if problem.epilogue is not None or problem.c is not None:
        times += epilogue_us(operation, rates, None if dtype.is_float8 else _epilogue_us(problem))
    if problem.epilogue is not None and reads_a_matrix(problem.epilogue) and dtype.itemsize == _HALF_BYTES:
        times *= rates.cached("spilled", lambda: rates.each(lambda one: _SPILLED if _is_full(one) else 1.0))
    short, others = rates.cached("short K", lambda: _pairs_for_short_k(rates))
    times[short] = times[others] * _SHORT_SHARE if _has_short_k(problem, operation) else math.inf
    return [times_at(times, one) for one in positions]


def _epilogue_us(problem: GemmProblem) -> float:
    """Return how much longer a warpgroup takes for 2**14 elements with the problem's C and epilogue."""
    return _C_US * (problem.c is not None) + function_us(problem.epilogue)


def _is_full(config: HopperGemmConfig) -> bool:
    """Return whether a thread has as many accumulators as there may be."""
    return config.mma_tiles_m * config.mma_n == MAX_ACC_COLUMNS


def _has_short_k(problem: GemmProblem, operation: Operation) -> bool:
    """Return whether the configs of `FOR_SHORT_K` pay, which hold a whole tile of C or of a function's results."""
    epilogue = problem.epilogue
    writes = problem.c is not None or (epilogue is not None and is_slow(epilogue))
    whole = problem.d.dtype.itemsize == problem.a.dtype.itemsize and (epilogue is None or epilogue.second is None)
    return operation.k_tiles <= _MOST_K_TILES and writes and whole


def _pairs_for_short_k(rates: TileRates) -> tuple[list[int], list[int]]:
    """Return the places of the configs of `FOR_SHORT_K`, and of those with a stage more; of their own without such."""
    places = {config: place for place, config in enumerate(rates.configs)}
    short = [config for config in rates.configs if config.on(SMS) in SHORT_K]
    others = (dataclasses.replace(config, stages=config.stages + 1) for config in short)
    found = [places[config] for config in short]
    return found, [places.get(other, place) for other, place in zip(others, found, strict=True)]


def _only_for_columns(config: HopperGemmConfig) -> float:
    """Return an infinite time for tiles that were found to pay with a scale for each column only, else 0."""
    only = config.mma_tiles_m > 1 or (config.tile_n == COLUMN_SCALED_N and not config.pingpong)
    return math.inf if only else 0.0


class _Offered(NamedTuple):
    """Configs offered to a product, and to that of K-major copies if the operation has them."""

    rates: TileRates  #: Rates of the product's configs, then of those for copies.
    #: For each product, the index among `rates` of every config's time; -1 where it is not offered.
    positions: tuple[Numbers, ...]


@cache_for_configs
def _offered(
    configs: Sequence[HopperGemmConfig],
    gpu: GpuRates,
    dtype: DType,
    mn_major: tuple[bool, bool],
    prepares: bool,
    offers: tuple[bool, bool],
) -> _Offered:
    """Return the configs for a type, some of which are for 8-bit floats only, whatever the SMs of the GPU.

    `mn_major`: whether the operands that give a row-major result's rows and columns are MN-major; copies are not.
    `offers`: whether the product is a layer of a model, and whether it takes further configs of an H200.
    """
    layer, further = offers

    def supports(one: HopperGemmConfig, mn_major: tuple[bool, bool]) -> bool:
        k_major = not mn_major[one.swap_ab], not mn_major[1 - one.swap_ab]
        if not is_offered(one.on(SMS), k_major, layer=layer, further=further):
            return False
        return not why_not_columns(dtype, k_major, one) and offered_to(dtype, one.on(SMS))

    found = [[one for one in configs if supports(one, major)] for major in _majors(mn_major, prepares)]
    positions, before = [], 0
    for offered in found:
        positions.append(positions_among(configs, offered, before))
        before += len(offered)
    return _Offered(rates_of(tuple(itertools.chain(*found)), gpu, len(found[0])), tuple(positions))


def _majors(mn_major: tuple[bool, bool], prepares: bool = True) -> tuple[tuple[bool, bool], ...]:
    """Return whether operands are MN-major, then the same of their K-major copies."""
    return (mn_major, (False, False))[: 1 + prepares]


def _registers_factors(mn_major: tuple[bool, bool], rates: TileRates, large: bool) -> Numbers:
    """Return `_registers_factor` of all configs; copies are K-major."""

    def compute() -> Numbers:
        chip = rates.gpu.learned
        factors = (functools.partial(_registers_factor, major, chip, large) for major in _majors(mn_major))
        return rates.of_each([rates.each(factor) for factor in factors])

    return rates.cached((mn_major, large), compute)


def _registers_factor(mn_major: tuple[bool, bool], chip: str, large: bool, config: HopperGemmConfig) -> float:
    """Return the factor of predicted times where one 32-bit operand, of rows or of columns, is MN-major."""
    if not any(mn_major):
        return 1.0
    if config.cluster_k > 1:
        return 1 + _SPLIT_A
    factor = 1 + _COLUMNS_PER_A / max(config.tile_n, _LEAST_COLUMNS) + _SHARED_A * (config.cluster_n > 1)
    if chip != _TIMED_CHIP:
        return factor
    if config.split_k:
        return factor * _SPLIT_K_A
    return factor * _SHARED_TALL_A if large and config.cluster_n > 1 and config.mma_tiles_m > 1 else factor
