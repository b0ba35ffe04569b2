"""The cost model's learned corrections as they are shipped: read, fitted further, and written back."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from correction_networks import Training
from fit_cost_model import Fit, Measured

from gemmule.kernels.hopper.cost import correction as hopper_correction

#: How fast a config's weight falls with its distance from the fastest, and the least.
_NEAR, _LEAST_WEIGHT = 6.0, 0.05


class ShippedNetworks:
    """What the cost model reads.

    Attributes
    ----------
    chips : list of str
    network : dict
        The network of most products.
    """

    def __init__(self) -> None:
        self._path = Path(hopper_correction.__file__).with_name("correction.json")
        self._content: dict[str, Any] = json.loads(self._path.read_text())
        self.chips: list[str] = self._content["chips"]
        self.network: dict[str, Any] = self._content["network"]

    def not_trained(self, products: Sequence[Measured]) -> Fit:
        """Return the network of most products as it is."""
        nothing = [(np.zeros(len(one.times)), np.ones(len(one.times))) for one in products]
        return Fit(products, self.chips, Training((128, 48), 1, 0, 2048, 2e-3, 0.002), nothing, self.network)

    def continued(self, products: Sequence[Measured], training: Training, targets: Sequence[tuple[Any, Any]]) -> Fit:
        """Return the network of most products, fitted further."""
        return Fit(products, self.chips, training, targets, self.network)

    def write(self, name: str, fit: Fit) -> None:
        """Replace one of the networks."""
        self._path.write_text(json.dumps(self._content | {name: fit.network()}, separators=(",", ":")) + "\n")


def weights_near(times: Any, least: float) -> Any:
    """Return what configs count, most that which is fastest."""
    return np.maximum(np.exp(-_NEAR * (times / least - 1)), _LEAST_WEIGHT)


def options(description: str | None, records: str = "record files") -> argparse.ArgumentParser:
    """Return the options of a fit: the files of records."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+", help=records)
    return parser
