"""Fit the network that predicts configs whose tiles go by GPC, of layers of models, to records of `config_times.py`.

Other configs of the same layers, which the network of layers predicts, say how fast a layer is beside its prediction;
relative to that a config's time counts. Layers left out are those of `fit_cost_model.py`: what is chosen of them by a
network that has not seen them is printed, then the network is fitted to all. Needs PyTorch, and no GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from correction_networks import Training
from fit_cost_model import Fit, read
from fit_further import Pair, judged, part, targets_of
from shipped_networks import ShippedNetworks, options

_TRAINING = Training((128, 48), 1, 60, 128, 1e-3, 0.5)


def pairs(paths: Sequence[Path]) -> Iterator[Pair]:
    """Yield layers in two parts: configs of the usual order, and those by GPC."""
    for one in read(paths):
        places: tuple[list[int], list[int]] = ([], [])
        for place, config in enumerate(one.configs):
            places[config.gpc_order].append(place)
        if one.is_layer and all(places):
            yield Pair(*(part(one, some) for some in places))


def main() -> None:
    """Fit, say how good the choices are, and write the data that the cost model reads."""
    given = options(__doc__).parse_args()
    shipped = ShippedNetworks("layers")
    products = list(pairs(given.records))
    before = shipped.not_trained([one.known for one in products])

    def fitted(some: Sequence[Pair]) -> Fit:
        return shipped.continued([one.further for one in some], _TRAINING, [targets_of(before, one) for one in some])

    after = fitted([one for one in products if not one.known.held_out])
    print(f"left out: {judged([one for one in products if one.known.held_out], before, after)}", flush=True)
    shipped.write("ordered", fitted(products))


if __name__ == "__main__":
    main()
