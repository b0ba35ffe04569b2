"""What measured times add to the limits of the cost model: small networks, shipped as data for each chip.

A network reads what a config is, what a product is and what the limits say of both, and gives the logarithm of the
factor by which measured times differ from the limits. Several, fitted from different beginnings, give their mean.
"""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gemmule.core.chip_in_use import chip_in_use

from .rates import Numbers, OperandLayout, Operation, TileRates

_DATA = Path(__file__).with_name("correction.json")
#: The largest factor, as a logarithm to base 2: what is beyond what was measured is left to the limits.
_MOST = 0.8
#: Chip of the rates where none was named.
_DEFAULT = "H200"


class ChipRates(NamedTuple):
    """What tells chips apart that have one processor.

    Attributes
    ----------
    memory : float
        Bytes a microsecond from memory.
    number : int
        Of the chip among those that the networks were fitted to.
    """

    memory: float
    number: int


class Networks(NamedTuple):
    """Networks of two hidden layers, whose first layers are one: the units of one network stand beside the next's.

    Attributes
    ----------
    config, operands, mixed, problem : array
        Weights of the first layer: of what is read of a config, of its operands, of the limits and of the product.
    chips : array
        Biases of the first layer, a row for each chip.
    hidden, biases : array
        Weights of the second layer, and its biases, by network.
    out : array
        Weights of the result, which is the mean of all networks', by network.
    out_bias : float
        Its bias.
    """

    config: Numbers
    operands: Numbers
    mixed: Numbers
    problem: Numbers
    chips: Numbers
    hidden: Numbers
    biases: Numbers
    out: Numbers
    out_bias: float


@functools.cache
def _data() -> tuple[dict[str, ChipRates], Networks]:
    content = json.loads(_DATA.read_text(encoding="utf-8"))
    chips = {name: ChipRates(one["memory"], number) for number, (name, one) in enumerate(content["chips"].items())}
    return chips, networks(content["networks"])


def networks(content: list[dict[str, Any]]) -> Networks:
    """Return networks as one, from their weights."""
    every = [{name: np.array(value, np.float32) for name, value in one.items()} for one in content]
    side_by_side = {
        name: np.concatenate([one[name] for one in every], axis=-1)
        for name in ("config", "operands", "mixed", "problem", "chips")
    }
    hidden, biases, out = (np.stack([one[name] for one in every]) for name in ("hidden", "biases", "out"))
    bias = float(np.mean([one["out_bias"] for one in every]))
    return Networks(
        **side_by_side, hidden=hidden, biases=biases[:, None], out=out[..., None] / len(every), out_bias=bias
    )


def chip_rates() -> ChipRates:
    """Return the rates of the chip in use; of one without rates, those of an H200."""
    return _rates(chip_in_use())


@functools.cache
def _rates(name: str) -> ChipRates:
    chips = _data()[0]
    return chips[next((chip for chip in chips if chip in name), _DEFAULT)]


def problem_features(one: Operation) -> list[list[float]]:
    """Return what is read of a product: in two rows, as it is and with swap-AB."""
    logs = math.log2(one.k_tiles), one.last, math.log2(one.read + one.written), math.log2(one.written)
    result = (one.result_begin in (1, 2), one.result_begin == 3, one.result_item / 2 - 1)
    rows, cols = math.log2(one.rows), math.log2(one.cols)
    a, b = _of_lines(one.a), _of_lines(one.b)
    return [[rows, cols, *logs, *a, *b, *result], [cols, rows, *logs, *b, *a, *result]]


def _of_lines(lines: OperandLayout) -> tuple[bool, bool, bool]:
    return lines.begin in (1, 2), lines.begin == 3, lines.across


def correction(of: TileRates, one: Operation, mixed: Numbers, multiprocessors: int) -> Numbers:
    """Return for each config the factor by which it is expected to take longer than the limits say.

    Parameters
    ----------
    of : TileRates
        The configs.
    one : Operation
        The product.
    mixed : array
        What `hopper_cost.limits` gives of both, a row for each quantity.
    multiprocessors : int
        The GPU's.
    """
    nets = _data()[1]
    layer = mixed.T.astype(np.float32) @ nets.mixed
    key = (one.a, one.b, multiprocessors, chip_in_use())
    layer += of.remembered(key, lambda: _of_configs(nets, of, one, multiprocessors))
    layer += (np.array(problem_features(one), np.float32) @ nets.problem).take(of.side, axis=0)
    np.maximum(layer, 0, out=layer)
    count, _, units = nets.hidden.shape
    layer = layer.reshape(-1, count, units).swapaxes(0, 1) @ nets.hidden
    layer += nets.biases
    np.maximum(layer, 0, out=layer)
    found = (layer @ nets.out).sum(axis=0)[:, 0]
    found += nets.out_bias
    np.maximum(found, -_MOST, out=found)
    np.minimum(found, _MOST, out=found)
    factor: Numbers = np.exp2(found)
    return factor


def _of_configs(nets: Networks, of: TileRates, one: Operation, multiprocessors: int) -> Numbers:
    """Return the part of the first layer that only the configs and the operands' lines decide."""
    own = of.features(multiprocessors) @ nets.config + of.operands(one.a, one.b).features @ nets.operands
    found: Numbers = (own + nets.chips[chip_rates().number]).astype(np.float32)
    return found
