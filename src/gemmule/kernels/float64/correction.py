"""What measured times add to the limits of the float64 cost model: small networks, shipped as data.

A network reads what a config is, what a product is and what the limits say of both, and gives the logarithm of the
factor by which measured times differ from the limits. The mean of several is taken.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_for_configs
from gemmule.core.problem import GemmProblem
from gemmule.core.row_major import row_result

from .config import Float64Config
from .limits import RATES, Limits, Numbers, Tiles, begins_inside, is_odd, tiles_of

_DATA = Path(__file__).with_name("correction.json")
#: The largest factor, as a logarithm to base 2: what is beyond what was measured is left to the limits.
_MOST = 0.6
#: Extents that were measured: far from them, batches, and matrices that tiles of 64 divide have other factors.
_LEAST, _LARGEST, _WHOLE = 64, 8192, 64
#: Waves of which the last one counts, and which mixed features are logarithms.
_WAVES, _LOGS = 8, (2, 4, 11)


class Networks(NamedTuple):
    """Networks of two hidden layers, the units of one beside the next's.

    Attributes
    ----------
    config, mixed, product : array
        Weights of the first layer, a row for each unit: of what is read of configs, of both, and of a product.
    chips : array
        Biases of the first layer, a row for each chip.
    hidden : array
        Weights of the second layer by network, a row for each of its units.
    biases, out : array
        Biases of the second layer, and weights of the result, which is the mean of all networks', by unit.
    out_bias : float
        Its bias.
    """

    config: Numbers
    mixed: Numbers
    product: Numbers
    chips: Numbers
    hidden: Numbers
    biases: Numbers
    out: Numbers
    out_bias: float


@functools.cache
def _data() -> tuple[tuple[str, ...], Networks]:
    """Return the chips that the networks were fitted to, in the order of their biases, and the networks."""
    content = json.loads(_DATA.read_text(encoding="utf-8"))
    every = [{name: np.array(value, np.float32) for name, value in one.items()} for one in content["networks"]]
    config, mixed, product = (
        np.ascontiguousarray(np.concatenate([one[name].T for one in every])) for name in ("config", "mixed", "product")
    )
    nets = Networks(
        config=config,
        mixed=mixed,
        product=product,
        chips=np.concatenate([one["chips"] for one in every], axis=-1),
        hidden=np.ascontiguousarray(np.stack([one["hidden"].T for one in every])),
        biases=np.concatenate([one["biases"] for one in every])[:, None],
        out=np.concatenate([one["out"] for one in every]) / len(every),
        out_bias=float(np.mean([one["out_bias"] for one in every])),
    )
    return tuple(content["chips"]), nets


@cache_for_configs
def _given(configs: Sequence[Float64Config], learned: str) -> Numbers:
    """Return what configs and the chip add to the first layer, a column for each config."""
    chips, nets = _data()
    found: Numbers = nets.config @ tiles_of(configs, RATES).features.astype(np.float32)
    found += nets.chips[chips.index(learned)][:, None]
    return found


def measured_share(problem: GemmProblem) -> float:
    """Return how far the networks hold for a product: 1 among those that they were fitted to, 0 far from them.

    They were fitted to random products, whose tiles are cut off. Between extents that were measured and those of half
    as much, or twice, the share of the networks in the logarithm of the factor goes from 1 to 0.
    """
    extents = problem.m, problem.n, problem.k
    whole = not any(x % _WHOLE for x in extents)
    if whole or (problem.batch or (1,))[0] != 1 or not min(extents):
        return 0.0
    least, largest = min(extents) / _LEAST, _LARGEST / max(extents)
    return min(max(1 + math.log2(min(least, largest)), 0.0), 1.0)


def product_features(problem: GemmProblem) -> list[float]:
    """Return what is read of a product."""
    oriented, _, _ = row_result(problem)
    a, b = oriented.a, oriented.b
    major_a, major_b = a.is_row_major, b.is_col_major
    (lines_a, sectors_a), (lines_b, sectors_b) = begins_inside(a), begins_inside(b)
    # Where lines begin matters to copies of lines along K.
    inside = lines_a * major_a, lines_b * major_b
    logs = [math.log2(x) for x in (oriented.m, oriented.n, oriented.k)]
    odd = is_odd(a) or is_odd(b), is_odd(oriented.d)
    return [*inside, *logs, major_a, major_b, sectors_a, sectors_b, *odd]


def mixed_features(own: Sequence[float], of: Tiles, found: Limits) -> Numbers:
    """Return what is read of each config beside the product, whose own features are given: a column for each config."""
    waves = found.share / of.resident
    log_k = of.features[2]
    read: Numbers = np.empty((12, found.times.size), np.float32)
    read[0], read[1], read[2], read[3] = found.whole_m, found.whole_n, found.split, found.k_tiles / found.split
    read[4], read[5], read[6] = found.share, np.minimum(found.share, 4), found.each / found.share
    read[7], read[8] = np.where((waves < _WAVES) & ~of.stream_k, np.ceil(waves) / waves, 1.0), waves <= 1
    read[9], read[10], read[11] = log_k * own[0], log_k * own[1], found.times
    for row in _LOGS:
        np.log2(read[row], out=read[row])
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
    nets, own = _data()[1], product_features(problem)
    layer = nets.mixed.dot(mixed_features(own, tiles_of(configs, RATES), found))
    layer += _given(configs, gpu.learned)
    layer += nets.product.dot(np.array(own, np.float32))[:, None]
    np.maximum(layer, 0, out=layer)
    layer = np.matmul(nets.hidden, layer.reshape(len(nets.hidden), -1, found.times.size)).reshape(layer.shape)
    layer += nets.biases
    np.maximum(layer, 0, out=layer)
    logs = nets.out.dot(layer) + nets.out_bias
    factors: Numbers = np.exp2(np.minimum(np.maximum(logs, -_MOST), _MOST), dtype=np.float64)
    return factors
