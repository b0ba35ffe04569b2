"""Continue the fit of the cost model's learned correction with further records, from the shipped network.

Reads records of `config_times.py`: those that the shipped network was fitted to, and further ones, of which it learns
what was measured. Of the others' products, and of such as nobody measured, it is to give mostly what it gave before:
so it learns new configs in a minute, and choices among the others stay. Every third product of a further record is
left out; what the network before and the new one choose of it is printed. Needs PyTorch, and no GPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from correction_networks import Training
from fit_cost_model import Fit, Measured, invented, judged, read, weights_of

from gemmule.kernels.hopper.cost import correction as hopper_correction

_TRAINING = Training((128, 48), 1, 6, 2048, 2e-3, 0.002)
#: Of products that were measured before: the share of what was measured in what the network is to give.
_MEASURED = 0.3
#: What products of further records count, and products that nobody measured.
_FURTHER, _MORE = 3.0, 2500


def targets_of(before: Fit, one: Measured, further: set[int]) -> tuple[Any, Any]:
    """Return the logarithms that the network is to give for a product's configs, and what these count."""
    if id(one) in further:
        return one.wanted, _FURTHER * weights_of(one, one.times, shipped=False)
    logs = before.logs(one)
    if not one.held_out:
        logs = (1 - _MEASURED) * logs + _MEASURED * one.wanted
    return logs, weights_of(one, before.expected(one))


def not_trained(products: Sequence[Measured], chips: Sequence[str], network: dict[str, Any]) -> Fit:
    """Return a network as it is."""
    nothing = [(np.zeros(len(one.times)), np.ones(len(one.times))) for one in products]
    return Fit(products, chips, _TRAINING._replace(epochs=0), nothing, network)


def main() -> None:
    """Fit, say how good the choices are, and write the data that the cost model reads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+", help="record files of the shipped fit")
    parser.add_argument("--further", type=Path, nargs="+", required=True, help="record files to learn from")
    given = parser.parse_args()
    path = Path(hopper_correction.__file__).with_name("correction.json")
    content = json.loads(path.read_text())
    chips, network = content["chips"], content["network"]
    measured, further = list(read(given.records)), list(read(given.further))
    fitted = [one for one in further if not one.held_out]
    every = [*measured, *invented(_MORE, chips), *fitted]
    before = not_trained(every[:100], chips, network)
    numbers = {id(one) for one in fitted}
    after = Fit(every, chips, _TRAINING, [targets_of(before, one, numbers) for one in every], network)
    for name, products in (("further", further), ("former", [one for one in measured if not one.float8])):
        left_out = [one for one in products if one.held_out]
        for which, fit in (("before", before), ("after", after)):
            print(f"{name} records, left out, {which}: {judged(fit, left_out)}", flush=True)
    path.write_text(json.dumps(content | {"network": after.network()}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
