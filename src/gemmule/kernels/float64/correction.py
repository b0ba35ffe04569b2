"""The learned correction of the cost model's limits: see `gemmule.kernels.parts.learned_correction`."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_for_configs
from gemmule.core.problem import GemmProblem
from gemmule.core.row_major import row_result
from gemmule.kernels.parts.learned_correction import Given, Networks

from .config import Float64Config
from .limits import RATES, Layout, Limits, Numbers, Tiles, begins_inside, layout_of, tiles_of

#: The largest factor, as a logarithm to base 2.
_MOST = 0.6
#: Extents that were measured, far from which products have other factors as batches do; and what divides all extents
#: where no tile is cut off.
_LEAST, _LARGEST, _WHOLE = 64, 8192, 64
#: Waves of which the last one counts.
_WAVES = 8


@functools.cache
def _networks() -> tuple[Networks, Numbers]:
    """Return the networks, and their weights of numbers."""
    found = Networks(Path(__file__).with_name("correction.json"), _MOST)
    return found, np.ascontiguousarray(found.first["numbers"].T)


@cache_for_configs
def _given(configs: Sequence[Float64Config], layout: Layout, chip: str) -> Given:
    """Return the terms of configs, chip and layout."""
    (nets, _), of = _networks(), tiles_of(configs, RATES)
    first = of.features.T @ nets.first["config"] + layout_features(of, layout).T @ nets.first["lies"]
    return nets.given(first, chip)


def measured_share(problem: GemmProblem) -> float:
    """Return how far the networks hold for a product: 1 among those that they were fitted to, 0 far from them.

    Between extents that were measured and those of half as much, or twice, the share of the networks in the logarithm
    of the factor goes from 1 to 0.
    """
    m, n, k = problem.m, problem.n, problem.k
    least, largest = min(m, n, k), max(m, n, k)
    if (problem.batch or (1,))[0] != 1 or not least:
        return 0.0
    if least >= _LEAST and largest <= _LARGEST:
        return 1.0
    return max(1 + math.log2(min(least / _LEAST, _LARGEST / largest)), 0.0)


def is_whole(problem: GemmProblem) -> bool:
    """Return whether tiles of 64 divide a product."""
    return not (problem.m % _WHOLE or problem.n % _WHOLE or problem.k % _WHOLE)


def layout_features(of: Tiles, layout: Layout) -> Numbers:
    """Return the features of a product's layout: a column for each config."""
    (lines_a, sectors_a), (lines_b, sectors_b) = begins_inside(layout.begin_a), begins_inside(layout.begin_b)
    # Alignment matters to copies of lines along K.
    inside_a, inside_b, log_k = lines_a * layout.along_a, lines_b * layout.along_b, of.features[2]
    alike = (
        inside_a,
        inside_b,
        layout.along_a,
        layout.along_b,
        sectors_a,
        sectors_b,
        layout.odd_copies,
        layout.odd_writes,
    )
    return np.stack([log_k * inside_a, log_k * inside_b, *(np.full(log_k.size, one) for one in alike)])


def numbers(problem: GemmProblem, of: Tiles, found: Limits) -> Numbers:
    """Return the features of each config and the product: a column for each config."""
    oriented, _, _ = row_result(problem)
    share, parts, whole = found.share, found.parts, found.whole
    waves = share / of.resident
    read: Numbers = np.empty((14, share.size), np.float32)
    read[0], read[1], read[2] = parts[2], share, found.times
    np.log2(read[:3], out=read[:3])
    np.divide(parts[:2], whole[:2], out=read[3:5])
    np.divide(whole[2], parts[2], out=read[5])
    np.minimum(share, 4, out=read[6])
    np.divide(found.each, share, out=read[7])
    np.divide(np.ceil(waves), waves, out=read[8])
    np.copyto(read[8], 1, where=(waves >= _WAVES) | of.persistent)
    np.less_equal(waves, 1, out=read[9])
    read[10], read[11], read[12] = math.log2(oriented.m), math.log2(oriented.n), math.log2(oriented.k)
    read[13] = is_whole(problem)
    return read


def correction(problem: GemmProblem, configs: Sequence[Float64Config], found: Limits, gpu: GpuRates) -> Numbers:
    """Return for each config the factor by which a product is expected to take longer than the limits say.

    Parameters
    ----------
    problem : GemmProblem
        The product.
    configs : sequence of Float64Config
        The configs.
    found : Limits
        The limits of both.
    gpu : GpuRates
        The GPU's, whose chip has biases of its own.
    """
    nets, weights = _networks()
    given = _given(configs, layout_of(row_result(problem)[0]), gpu.learned)
    return nets.factors(weights, numbers(problem, tiles_of(configs, RATES), found), given)
