"""Correction of the cost model by measured times: a small network, shipped as data.

It reads what a config is, what a product is and what the limits say of both, and gives the logarithm of the factor by
which measured times differ from the limits. It is evaluated for the configs that lead by the limits, as the best is
among these: so it can be larger than one that is evaluated for all, in the same time.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from math import log2
from pathlib import Path
from typing import Any

import numpy as np

from .rates import Numbers, OperandLayout, Operation, TileRates

#: The largest factor, as a logarithm to base 2: what is beyond what was measured is left to the limits.
_MOST = np.array(0.8, np.float32)
_LEAST = np.array(-_MOST)
#: K-tiles of all elements of a result from which a product with an MN-major operand is predicted by the network of
#: large products, 4096 x 4096 x 4096 of 16-bit types: the other one was continued with layers, which are K-major, and
#: took 5 % longer there in layout nn (record 20261129T152802).
_LARGE = 2**30
#: Fewest columns and k-tiles of a layer of a model, which is predicted by a network of its own, and the chip that its
#: times were measured on.
_LAYER_COLUMNS, _LAYER_K_TILES, _LAYER_CHIP = 2048, 32, "H200"
#: Fewest k-tiles of a product that takes further configs.
_FURTHER_K_TILES = 16
#: A K-major operand whose lines begin at multiples of 128 bytes.
_ALIGNED = OperandLayout(0, False)
#: Numbers of a product among its features, before those of its operands' layouts.
NUMBERS = 6
#: Quantities of the limits that are read as logarithms, before others.
_LOGARITHMS = 6


class _Network:
    """A network of two hidden layers.

    Attributes
    ----------
    chips : tuple of str
        Chips that it was fitted to.
    first : dict
        Weights of the first layer by parts of the features, a row for each; ``chips`` are its biases.
    """

    def __init__(self, chips: Sequence[str], network: Mapping[str, Any]) -> None:
        self.chips = tuple(chips)
        weights = {name: np.array(value, np.float32) for name, value in network.items()}
        self._hidden, self._biases, self._out, self._out_bias = (
            weights.pop(name) for name in ("hidden", "biases", "out", "out_bias")
        )
        self.first: dict[str, Numbers] = weights
        # Weights of what is not given: what the limits say of a product, and its numbers.
        self._read = np.ascontiguousarray(np.concatenate((weights["mixed"], weights["problem"][:NUMBERS])))
        self._units = self._read.shape[1]

    def given(self, first: Numbers, chip: str) -> Numbers:
        """Return what is given of the sums of the first layer by a part of the features: a row for each config.

        The negative biases of the first layer, those of the second layer, and the bias of the result.
        """
        layer = first + self.first["chips"][self.chips.index(chip)]
        second = layer @ self._hidden + self._biases
        out = second @ self._out + self._out_bias
        return np.ascontiguousarray(np.column_stack((-layer, -second, out)), np.float32)

    def factors(self, read: Numbers, given: Numbers) -> Numbers:
        """Return the factors of configs by what is read of each, a column for each, and what is given, a row."""
        # max(x + bias, 0) is max(x, -bias) + bias, whose last term is part of the next layer's biases. NumPy is slower
        # with `@` than with `dot`.
        layer = read.T.dot(self._read)
        np.maximum(layer, given[:, : self._units], out=layer)
        layer = layer.dot(self._hidden)
        np.maximum(layer, given[:, self._units : -1], out=layer)
        found: Numbers = layer.dot(self._out)
        found += given[:, -1]
        np.maximum(found, _LEAST, out=found)
        np.minimum(found, _MOST, out=found)
        return np.exp2(found, out=found)


@functools.cache
def _network(name: str = "network") -> _Network:
    """Return the network of most products, or that of ``large`` ones, of ``layers`` or of ``draws``."""
    content = json.loads(Path(__file__).with_name("correction.json").read_text(encoding="utf-8"))
    return _Network(content["chips"], content[name])


def _is_large(operation: Operation) -> bool:
    k_tiles = operation.rows * operation.cols * operation.batch * operation.k_tiles
    return k_tiles >= _LARGE and (operation.a.mn_major or operation.b.mn_major)


def is_layer(operation: Operation, chip: str) -> bool:
    """Return whether a product is like the layers of models that were timed: of 16-bit types, with weights as B."""
    return (
        operation.cols >= _LAYER_COLUMNS
        and operation.k_tiles >= _LAYER_K_TILES
        and operation.a == operation.b == _ALIGNED
        and operation.learned_item == 2
        and operation.result_begin == 0
        and not operation.float8
        and operation.batch == 1
        and operation.tiles is None
        and chip == _LAYER_CHIP
    )


def takes_further(operation: Operation, chip: str) -> bool:
    """Return whether a product is predicted by the network of draws: of 16-bit types, no layer; further configs too."""
    return (
        operation.result_item == 2
        and operation.k_tiles >= _FURTHER_K_TILES
        and not operation.float8
        and operation.batch == 1
        and operation.tiles is None
        and chip == _LAYER_CHIP
        and not is_layer(operation, chip)
        and not _is_large(operation)
    )


def learned_chips() -> tuple[str, ...]:
    """Return the chips that the correction was fitted to."""
    return _network().chips


def problem_features(operation: Operation) -> list[list[float]]:
    """Return the features of a product: in two rows, as it is and with swap-AB."""
    rows, cols, *logs = product_numbers(operation)
    return [[rows, cols, *logs, *_lines(operation, 0)], [cols, rows, *logs, *_lines(operation, 1)]]


def product_numbers(operation: Operation) -> tuple[float, ...]:
    """Return the numbers that are read of a product, of rows and of columns first."""
    rows, cols, k_tiles = log2(operation.rows), log2(operation.cols), log2(operation.k_tiles)
    return rows, cols, k_tiles, operation.last, log2(operation.read + operation.written), log2(operation.written)


def _lines(operation: Operation, swap_ab: int) -> tuple[float, ...]:
    """Return the features of the layouts of operands and result."""
    a, b = (operation.b, operation.a) if swap_ab else (operation.a, operation.b)
    result = operation.result_begin in (1, 2), operation.result_begin == 3, operation.learned_item / 2 - 1
    return *_of_lines(a), *_of_lines(b), *result


def _of_lines(lines: OperandLayout) -> tuple[bool, bool, bool]:
    return lines.begin in (1, 2), lines.begin == 3, lines.mn_major


def read_of(quantities: Numbers, places: Any) -> Numbers:
    """Return the features of some configs' quantities of `times.limits`: a column for each."""
    read: Numbers = quantities.take(places, axis=1).astype(np.float32)
    logarithms = read[:_LOGARITHMS]
    np.log2(logarithms, out=logarithms)
    return read


def correction(rates: TileRates, operation: Operation, quantities: Numbers, leading: Any) -> Numbers:
    """Return for each of some configs the factor by which that is expected to take longer than the limits say.

    Parameters
    ----------
    rates : TileRates
        The configs, on a GPU.
    operation : Operation
        The product.
    quantities : array
        Those of `times.limits`, of all configs.
    leading : array
        The places of some configs.
    """
    name = "network"
    if _is_large(operation):
        name = "large"
    elif is_layer(operation, rates.gpu.learned):
        name = "layers"
    elif takes_further(operation, rates.gpu.learned):
        name = "draws"
    net = _network(name)
    layout = (
        name,
        operation.a,
        operation.b,
        operation.prepared,
        operation.result_begin,
        operation.learned_item,
        operation.float8,
    )
    given = rates.cached(layout, lambda: _given_of_each(net, rates, operation))
    return net.factors(read_of(quantities, leading), given.take(leading, axis=0))


def _given_of_each(net: _Network, rates: TileRates, operation: Operation) -> Numbers:
    """Return what is given, of a product and of a prepared one."""
    every: Sequence[Numbers] = [net.given(_first(net, rates, x), rates.gpu.learned) for x in operation.each()]
    return rates.of_each(every)


def _first(net: _Network, rates: TileRates, operation: Operation) -> Numbers:
    """Return the sums of the first layer by configs and elements, and by the layouts of operands and result."""
    lines = np.array([_lines(operation, 0), _lines(operation, 1)], np.float32) @ net.first["problem"][NUMBERS:]
    found: Numbers = (
        rates.features() @ net.first["config"] + rates.of_layout(operation).features @ net.first["operands"]
    )
    found += lines.take(rates.side, axis=0) + operation.float8 * net.first["float8"]
    return found
