"""Continue the fit of the cost model's learned correction with further records, from the shipped network.

Reads records of `config_times.py`: those that the shipped network was fitted to, and further ones, of which it learns
what was measured. Of the others' products, and of such as nobody measured, it is to give mostly what it gave before:
so it learns new configs in a minute, and choices among the others stay. Every third product of a further record is
left out; what the network before and the new one choose of it is printed. Needs PyTorch, and no GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from correction_networks import Training
from fit_cost_model import Fit, Measured, invented, judged, read, weights_of
from shipped_networks import ShippedNetworks, options

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


def main() -> None:
    """Fit, say how good the choices are, and write the data that the cost model reads."""
    parser = options(__doc__, "record files of the shipped fit")
    parser.add_argument("--further", type=Path, nargs="+", required=True, help="record files to learn from")
    given = parser.parse_args()
    shipped = ShippedNetworks()
    measured, further = list(read(given.records)), list(read(given.further))
    fitted = [one for one in further if not one.held_out]
    every = [*measured, *invented(_MORE, shipped.chips), *fitted]
    before = shipped.not_trained(every[:100])
    numbers = {id(one) for one in fitted}
    after = shipped.continued(every, _TRAINING, [targets_of(before, one, numbers) for one in every])
    for name, products in (("further", further), ("former", [one for one in measured if not one.float8])):
        left_out = [one for one in products if one.held_out]
        for which, fit in (("before", before), ("after", after)):
            print(f"{name} records, left out, {which}: {judged(fit, left_out)}", flush=True)
    shipped.write("network", after)


if __name__ == "__main__":
    main()
