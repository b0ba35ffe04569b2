"""Learned corrections of cost models: small networks, shipped as data.

A network reads what a config is, what a product is and what the limits say of both, and gives the logarithm of the
factor by which measured times differ from the limits. Several, fitted from different beginnings, give their mean.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Numbers = np.ndarray[Any, np.dtype[Any]]


class Given(NamedTuple):
    """Terms of networks for features that few products differ in; a column for each config.

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


class Networks:
    """Networks of two hidden layers, whose first layers are one: the units of all networks are concatenated.

    Parameters
    ----------
    path : Path
        The file of their weights.
    most : float
        The largest factor, as a logarithm to base 2: what is beyond what was measured is left to the limits.

    Attributes
    ----------
    chips : tuple of str
        Chips that they were fitted to.
    first : dict
        Weights of the first layer by parts of the features, a row for each; ``chips`` are its biases.
    """

    def __init__(self, path: Path, most: float) -> None:
        content = json.loads(path.read_text(encoding="utf-8"))
        every = [{name: np.array(value, np.float32) for name, value in one.items()} for one in content["networks"]]
        beyond = {"hidden", "biases", "out", "out_bias"}
        self.chips = tuple(content["chips"])
        self.first = {
            name: np.concatenate([one[name] for one in every], axis=-1) for name in every[0] if name not in beyond
        }
        # Weights of the second layer by network, a row for each of its units.
        self._hidden = np.ascontiguousarray(np.stack([one["hidden"].T for one in every]))
        self._biases = np.concatenate([one["biases"] for one in every])[:, None]
        # The result is the mean of all networks'.
        self._out = np.concatenate([one["out"] for one in every]) / len(every)
        self._out_bias = float(np.mean([one["out_bias"] for one in every]))
        self._most = most

    def given(self, first: Numbers, chip: str) -> Given:
        """Return what is given of the sums of the first layer by a part of the features, a row for each config."""
        layer = (first + self.first["chips"][self.chips.index(chip)]).T
        second = self._times_hidden(layer) + self._biases
        most = np.full(len(first), self._most)
        every = -layer, -second, self._out @ second + self._out_bias, -most, most
        return Given(*(np.ascontiguousarray(one, np.float32) for one in every))

    def factors(self, weights: Numbers, features: Numbers, given: Given) -> Numbers:
        """Return for each config the factor by which a product is expected to take longer than the limits say.

        Parameters
        ----------
        weights : array
            Weights of the first layer for the features that are not given, a row for each unit.
        features : array
            These, a row for each.
        given : Given
            The others'.
        """
        # max(x + bias, 0) is max(x, -bias) + bias, whose last term is part of the next layer's biases. NumPy is slower
        # with `@` than with `dot`, and with columns and scalars than with arrays of the layer's shape.
        layer = weights.dot(features)
        np.maximum(layer, given.below_first, out=layer)
        layer = self._times_hidden(layer)
        np.maximum(layer, given.below_second, out=layer)
        found: Numbers = self._out.dot(layer)
        found += given.out_bias
        np.maximum(found, given.least, out=found)
        np.minimum(found, given.most, out=found)
        return np.exp2(found, out=found)

    def _times_hidden(self, layer: Numbers) -> Numbers:
        count, units, _ = self._hidden.shape
        return np.matmul(self._hidden, layer.reshape(count, units, -1)).reshape(layer.shape)
