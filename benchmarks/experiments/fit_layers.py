"""Fit the network that predicts layers of models to records of them, from the shipped network of most products on.

Reads records of `config_times.py`, of an H200. A config's time counts relative to those of the product's other configs:
the network is to give what that of most products gives, plus what times differ from it, less the mean of that over
the product. So what a choice depends on is learned, and how fast a product is beside those of other kernels stays.
Products left out are those of `fit_cost_model.py`; what is chosen of them is printed. Needs PyTorch, and no GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from correction_networks import Training
from fit_cost_model import Fit, Measured, judged, read
from shipped_networks import ShippedNetworks, options, weights_near

_TRAINING = Training((128, 48), 1, 60, 512, 2e-3, 0.5)


def targets_of(before: Fit, one: Measured) -> tuple[Any, Any]:
    """Return the logarithms that the network is to give for a product's configs, and what these count."""
    weights = weights_near(one.times, one.times.min())
    logs = before.logs(one)
    differences = one.wanted - logs
    return logs + differences - np.average(differences, weights=weights), weights


def main() -> None:
    """Fit, say how good the choices are, and write the data that the cost model reads."""
    given = options(__doc__).parse_args()
    shipped = ShippedNetworks()
    layers = [one for one in read(given.records) if one.is_layer]
    fitted = [one for one in layers if not one.held_out]
    before = shipped.not_trained(fitted)
    after = shipped.continued(fitted, _TRAINING, [targets_of(before, one) for one in fitted])
    for name, fit in (("before", before), ("after", after)):
        print(f"left out, {name}: {judged(fit, [one for one in layers if one.held_out])}", flush=True)
    shipped.write("layers", after)


if __name__ == "__main__":
    main()
