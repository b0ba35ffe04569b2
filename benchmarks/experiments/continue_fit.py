"""Make the cost model's learned correction: continue the fit of a former network with further records.

Without arguments it writes the shipped file anew, from the network of commit `BEFORE` and the records named below. Of
further ones it learns what was measured. Of former records' products, and of such as nobody measured, it is to give
mostly what it gave before: so it learns new configs in a minute, and choices among the others stay. The file has the
mean of the weights before and after. Every third product of a further record is left out; what the network before and
the new one choose of it is printed. Needs PyTorch and the history of the repository, and no GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from correction_networks import Training, rounded
from fit_cost_model import Fit, Measured, invented, judged, read, weights_of

from gemmule.kernels.hopper.cost import correction as hopper_correction

#: The commit whose network is continued, and kept for 8-bit floats, and whose network for large products is kept.
BEFORE = "bf6fa77180"
#: Records that it was fitted to: random products and layers, splits of K, 8-bit floats, and registered configs alone.
FORMER = (
    "20261123T035727 20261123T112529 20261123T040212 20261123T105522 20261123T105533 20261128T171432 20261128T200250 "
    "20261129T023425 20261129T080309 20261129T085246 20261128T205138 20261129T013144 20261129T045322 20261129T054750 "
    "20261124T203334 20261128T171438 20261122T082050 20261122T113015 20261122T133327 20261122T141408"
)
#: Records to learn from.
FURTHER = (
    "20261129T111829 20261129T114034 20261129T120404 20261129T141448 20261129T150040 20261129T152802 20261129T175900"
)
_ROOT = Path(__file__).resolve().parents[2]
_TRAINING = Training((128, 48), 1, 6, 2048, 2e-3, 0.002)
#: Of products that were measured before: the share of what was measured in what the network is to give.
_MEASURED = 0.3
#: Least factor of predicted times that it is to give.
_LEAST_FACTOR = 0.55
#: What products of further records count, and products that nobody measured.
_FURTHER, _MORE = 3.0, 2500


def targets_of(before: Fit, one: Measured, further: set[int]) -> tuple[Any, Any]:
    """Return the logarithms that the network is to give for a product's configs, and what these count."""
    if id(one) in further:
        return one.wanted, _FURTHER * weights_of(one, one.times, shipped=False)
    # What the network before knows is of epilogue tiles that were written one by one.
    logs = np.log2(np.maximum(np.exp2(before.logs(one)) - one.saved / one.expected, _LEAST_FACTOR))
    if not one.held_out:
        logs = (1 - _MEASURED) * logs + _MEASURED * one.wanted
    return logs, weights_of(one, before.expected(one))


def not_trained(products: Sequence[Measured], chips: Sequence[str], network: dict[str, Any]) -> Fit:
    """Return a network as it is."""
    nothing = [(np.zeros(len(one.times)), np.ones(len(one.times))) for one in products]
    return Fit(products, chips, _TRAINING._replace(epochs=0), nothing, network)


def mean_of(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the mean of two networks' weights: of products that neither knows it chose better than both."""
    return rounded({name: (np.array(before[name]) + np.array(after[name])) / 2 for name in before})


def products_of(dates: Sequence[str]) -> Iterator[Measured]:
    """Yield the products of the records of some dates."""
    return read([path for date in dates for path in sorted((_ROOT / "benchmarks" / "results").glob(f"{date}-*.jsonl"))])


def main() -> None:
    """Fit, say how good the choices are, and write the data that the cost model reads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--further", nargs="+", default=FURTHER.split(), help="dates of the records to learn from")
    given = parser.parse_args()
    # The same sums on every host.
    torch.set_num_threads(1)
    path = Path(hopper_correction.__file__).with_name("correction.json")
    shown = ["git", "-C", str(_ROOT), "show", f"{BEFORE}:{path.relative_to(_ROOT)}"]
    content = json.loads(subprocess.run(shown, check=True, capture_output=True).stdout)
    chips, network = content["chips"], content["network"]
    measured, further = list(products_of(FORMER.split())), list(products_of(given.further))
    fitted = [one for one in further if not one.held_out]
    every = [*measured, *invented(_MORE, chips), *fitted]
    before = not_trained(every[:100], chips, network)
    numbers = {id(one) for one in fitted}
    after = Fit(every, chips, _TRAINING, [targets_of(before, one, numbers) for one in every], network)
    for name, products in (("further", further), ("former", [one for one in measured if not one.float8])):
        left_out = [one for one in products if one.held_out]
        for which, fit in (("before", before), ("after", after)):
            print(f"{name} records, left out, {which}: {judged(fit, left_out)}", flush=True)
    mean = mean_of(network, after.network())
    path.write_text(json.dumps(content | {"network": mean, "float8": network}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
