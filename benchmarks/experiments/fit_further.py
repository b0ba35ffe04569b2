"""Fit the network that predicts further configs: those that only an H200's products of 16-bit types are offered.

Reads records of `config_times.py`. Other configs of the same products, which the network of most products predicts,
say how fast a product is beside its prediction; relative to that a further config's time counts. Products left out are
those of `fit_cost_model.py`: what is chosen of them by a network that has not seen them is printed, then the network
is fitted to all. Needs PyTorch, and no GPU.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from correction_networks import Training
from fit_cost_model import Fit, Measured, read
from shipped_networks import ShippedNetworks, options, weights_near

from gemmule.kernels.hopper.gemm.config_lists import CONFIGS
from gemmule.kernels.hopper.gemm.offers import is_further, is_offered
from gemmule.kernels.parts.hopper_facts import SMS

_TRAINING = Training((128, 48), 1, 40, 128, 1e-3, 0.5)
#: Places, from the last, of whether A and B are MN-major among the features of a product.
_MN_MAJOR = (-7, -4)
_REGISTERED = {dataclasses.replace(config, stages=2): config for config in CONFIGS}


@dataclasses.dataclass
class Pair:
    """A product's configs that the network of most products predicts, and its further ones."""

    known: Measured
    further: Measured


def parts_of(one: Measured) -> Pair | None:
    """Return a product's registered configs in two parts, or None where one of them is empty."""
    places: tuple[list[int], list[int]] = ([], [])
    for place, config in enumerate(one.configs):
        own = _REGISTERED.get(dataclasses.replace(config, stages=2))
        a, b = (not one.features[place, at] for at in _MN_MAJOR)
        if own is not None and is_offered(own.on(SMS), (a, b), layer=False, further=True):
            places[is_further(own.on(SMS), (a, b))].append(place)
    return Pair(*(part(one, some) for some in places)) if all(places) else None


def part(one: Measured, places: list[int]) -> Measured:
    """Return a product with some of its configs."""
    arrays = {name: getattr(one, name)[places] for name in ("times", "expected", "features")}
    return dataclasses.replace(one, configs=[one.configs[place] for place in places], **arrays)


def targets_of(before: Fit, one: Pair) -> tuple[Any, Any]:
    """Return the logarithms that the network is to give for the further configs, and what these count."""
    least = min(one.known.times.min(), one.further.times.min())
    differences = one.known.wanted - before.logs(one.known)
    slower = np.average(differences, weights=weights_near(one.known.times, least))
    return one.further.wanted - slower, weights_near(one.further.times, least)


def fitted(products: Sequence[Pair], before: Fit, shipped: ShippedNetworks) -> Fit:
    """Return the network fitted to products, from that of most products on."""
    targets = [targets_of(before, one) for one in products]
    return shipped.continued([one.further for one in products], _TRAINING, targets)


def judged(products: Sequence[Pair], before: Fit, after: Fit) -> str:
    """Say how good choices are without further configs, and with them."""
    ratios: tuple[list[float], list[float]] = ([], [])
    changed = []
    for one in products:
        assert one.known.cublaslt is not None
        known, further = before.expected(one.known), after.expected(one.further)
        us = [one.known.times[known.argmin()]]
        us.append(one.further.times[further.argmin()] if further.min() < known.min() else us[0])
        for found, time in zip(ratios, us, strict=True):
            found.append(one.known.cublaslt / time)
        changed += [us[0] / us[1]] if us[0] != us[1] else []
    texts = [f"{statistics.geometric_mean(x):.4f}, {sum(y < 0.95 for y in x)} below 0.95" for x in ratios]
    text = f"{len(products)} products, of cuBLASLt's top heuristic: {' and now '.join(texts)}"
    return f"{text}; {len(changed)} changed, {statistics.geometric_mean(changed or [1.0]):.4f} times as fast"


def pairs(paths: Sequence[Path]) -> Iterator[Pair]:
    """Yield the products of records that are no layers, in two parts."""
    for one in read(paths):
        found = parts_of(one) if one.dtype.itemsize == 2 and not one.is_layer and one.cublaslt else None
        if found is not None:
            yield found


def main() -> None:
    """Fit, say how good the choices are, and write the data that the cost model reads."""
    given = options(__doc__).parse_args()
    shipped = ShippedNetworks()
    products = list(pairs(given.records))
    before = shipped.not_trained([one.known for one in products])
    some = fitted([one for one in products if not one.known.held_out], before, shipped)
    print(f"left out: {judged([one for one in products if one.known.held_out], before, some)}", flush=True)
    shipped.write("further", fitted(products, before, shipped))


if __name__ == "__main__":
    main()
