"""What measured times add to the limits of the cost model: small networks, shipped as data.

A network reads what a config is, what a product is and what the limits say of both, and gives the logarithm of the
factor by which measured times differ from the limits. Several, fitted from different beginnings, give their mean.
"""

from __future__ import annotations

import functools
import json
from math import log2
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .rates import Numbers, OperandLayout, Operation, TileRates

_DATA = Path(__file__).with_name("correction.json")
#: The largest factor, as a logarithm to base 2: what is beyond what was measured is left to the limits.
_MOST = 0.8
#: Numbers of a product among its features, which stand before how its operands lie.
NUMBERS = 6


class Networks(NamedTuple):
    """Networks of two hidden layers, whose first layers are one: the units of one network stand beside the next's.

    Attributes
    ----------
    config, operands, lines : array
        Weights of the first layer, a row for each input: what configs decide, and how operands and the result lie.
    numbers : array
        Weights of the first layer, a row for each unit: of the limits, and of the numbers of a product.
    chips : array
        Biases of the first layer, a row for each chip.
    float8 : array
        What is added to them for floats of 8 bits.
    hidden : array
        Weights of the second layer by network, a row for each of its units.
    biases, out : array
        Biases of the second layer, and weights of the result, which is the mean of all networks', by unit.
    out_bias : float
        Its bias.
    """

    config: Numbers
    operands: Numbers
    lines: Numbers
    numbers: Numbers
    chips: Numbers
    float8: Numbers
    hidden: Numbers
    biases: Numbers
    out: Numbers
    out_bias: float


class Given(NamedTuple):
    """What a correction adds for configs on a GPU, and for how operands and the result lie; a column for each config.

    Attributes
    ----------
    below_first, below_second : array
        Negative biases of the first and of the second layer, a row for each unit.
    out_bias : array
        Bias of the result.
    least, most : array
        Limits of the result.
    """

    below_first: Numbers
    below_second: Numbers
    out_bias: Numbers
    least: Numbers
    most: Numbers


@functools.cache
def _data() -> tuple[tuple[str, ...], Networks]:
    """Return the chips that the networks were fitted to, in the order of their biases, and the networks."""
    content = json.loads(_DATA.read_text(encoding="utf-8"))
    return tuple(content["chips"]), networks(content["networks"])


def learned_chips() -> tuple[str, ...]:
    """Return the chips that the correction was fitted to."""
    return _data()[0]


def networks(content: list[dict[str, Any]]) -> Networks:
    """Return networks as one, from their weights."""
    every = [{name: np.array(value, np.float32) for name, value in one.items()} for one in content]
    config, operands, mixed, problem, chips, float8 = (
        np.concatenate([one[name] for one in every], axis=-1)
        for name in ("config", "operands", "mixed", "problem", "chips", "float8")
    )
    return Networks(
        config=config,
        operands=operands,
        lines=problem[NUMBERS:],
        numbers=np.ascontiguousarray(np.concatenate((mixed, problem[:NUMBERS])).T),
        chips=chips,
        float8=float8,
        hidden=np.ascontiguousarray(np.stack([one["hidden"].T for one in every])),
        biases=np.concatenate([one["biases"] for one in every]),
        out=np.concatenate([one["out"] for one in every]) / len(every),
        out_bias=float(np.mean([one["out_bias"] for one in every])),
    )


def problem_features(one: Operation) -> list[list[float]]:
    """Return what is read of a product: in two rows, as it is and with swap-AB."""
    rows, cols, *logs = product_numbers(one)
    return [[rows, cols, *logs, *_lines(one, 0)], [cols, rows, *logs, *_lines(one, 1)]]


def product_numbers(one: Operation) -> tuple[float, ...]:
    """Return the numbers that are read of a product, of rows and of columns first."""
    rows, cols, k_tiles = log2(one.rows), log2(one.cols), log2(one.k_tiles)
    return rows, cols, k_tiles, one.last, log2(one.read + one.written), log2(one.written)


def _lines(one: Operation, swap_ab: int) -> tuple[float, ...]:
    """Return what is read of how operands and the result lie."""
    a, b = (one.b, one.a) if swap_ab else (one.a, one.b)
    result = one.result_begin in (1, 2), one.result_begin == 3, one.result_item / 2 - 1
    return *_of_lines(a), *_of_lines(b), *result


def _of_lines(lines: OperandLayout) -> tuple[bool, bool, bool]:
    return lines.begin in (1, 2), lines.begin == 3, lines.across


def correction(of: TileRates, one: Operation, read: Numbers) -> Numbers:
    """Return for each column of `read` the factor by which that is expected to take longer than the limits say.

    Parameters
    ----------
    of : TileRates
        The configs, on a GPU.
    one : Operation
        The product.
    read : array
        What `times.limits` returns of both, a row for each quantity.
    """
    nets = _data()[1]
    lies = one.a, one.b, one.prepared, one.result_begin, one.result_item, one.float8
    given = of.remembered(lies, lambda: _given_of_each(nets, of, one))
    # max(x + bias, 0) is max(x, -bias) + bias, whose last term is part of the next layer's biases. NumPy is slower with
    # `@` than with `dot`, and with columns and scalars than with arrays of the layer's shape.
    layer = nets.numbers.dot(read)
    np.maximum(layer, given.below_first, out=layer)
    layer = np.matmul(nets.hidden, layer.reshape(len(nets.hidden), -1, read.shape[1])).reshape(layer.shape)
    np.maximum(layer, given.below_second, out=layer)
    found: Numbers = nets.out.dot(layer)
    found += given.out_bias
    np.maximum(found, given.least, out=found)
    np.minimum(found, given.most, out=found)
    return np.exp2(found, out=found)


def _given_of_each(nets: Networks, of: TileRates, one: Operation) -> Given:
    """Return what is given, of a product and of a prepared one."""
    every = [_given(nets, of, x) for x in one.each()]
    joined = [of.of_each([array.T for array in arrays]).T for arrays in zip(*every, strict=True)]
    return Given(*(np.ascontiguousarray(array, np.float32) for array in joined))


def _given(nets: Networks, of: TileRates, one: Operation) -> Given:
    """Return what the configs, the GPU and how operands lie decide."""
    first = of.features() @ nets.config + of.of_layout(one).features @ nets.operands
    first += nets.chips[learned_chips().index(of.gpu.learned)] + one.float8 * nets.float8
    first += (np.array([_lines(one, 0), _lines(one, 1)], np.float32) @ nets.lines).take(of.side, axis=0)
    second = np.matmul(nets.hidden, first.T.reshape(len(nets.hidden), -1, of.count)).reshape(first.T.shape)
    second += nets.biases[:, None]
    most = np.full(of.count, _MOST)
    return Given(-first.T, -second, nets.out @ second + nets.out_bias, -most, most)
