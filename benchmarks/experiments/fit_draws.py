"""Fit the network that predicts an H200's products of 16-bit types that are no layers of models.

Reads records of `config_times.py`. Times count as in `fit_layers.py`, relative to those of the product's other configs.
Wide networks are fitted to them, then the shipped one to the mean of theirs, of the same products and of random ones
that nobody measured, in the configs that lead by the limits. Products left out are those of `fit_cost_model.py`; what
is chosen of them by networks that have not seen them is printed before. Needs PyTorch, and no GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from config_products import draws
from correction_networks import Training
from fit_cost_model import Fit, Measured, judged, read, widths
from fit_layers import targets_of
from shipped_networks import ShippedNetworks, options, weights_near

from gemmule.core.gpu_rates import H200_RATES
from gemmule.kernels.hopper.cost.correction import takes_further
from gemmule.kernels.hopper.cost.operation import operation_of
from gemmule.kernels.hopper.gemm.config_lists import CONFIGS
from gemmule.kernels.hopper.gemm.offers import is_offered, offered_to
from gemmule.kernels.parts.hopper_facts import SMS

_CHIP = "H200"
_WIDE = Training((256, 128), 4, 30, 2048, 4e-3, 0.05)
_SHIPPED = Training((192, 64), 1, 30, 2048, 1e-2, 0.002)
#: Random products that nobody measured, their seed, and the configs of each.
_MORE, _SEED, _LEAD = 3000, 2, 64


def invented(count: int) -> Iterator[Measured]:
    """Yield random products in the registered configs that lead, without times."""
    products = ((one, operation_of(one)) for one in draws(_SEED, "bfloat16"))
    taken = ((problem, one) for problem, one in products if takes_further(one, _CHIP))
    for problem, one in itertools.islice(taken, count):
        major = not one.a.mn_major, not one.b.mn_major
        able = tuple(
            config
            for config in CONFIGS
            if offered_to(problem.a.dtype, config)
            and is_offered(config.on(SMS), major[:: -1 if config.swap_ab else 1], layer=False, further=True)
        )
        _, expected, features = widths(one, able, H200_RATES)
        some = expected.argsort()[:_LEAD]
        yield Measured(
            _CHIP, problem.a.dtype, [able[x] for x in some], expected[some], expected[some], features[some], 1.0
        )


def fitted(products: Sequence[Measured], more: Sequence[Measured], shipped: ShippedNetworks) -> tuple[Fit, Fit]:
    """Return the wide networks and the shipped one."""
    before = shipped.not_trained(products)
    wide = Fit(products, shipped.chips, _WIDE, [targets_of(before, one) for one in products])
    every = [*products, *more]
    return wide, Fit(every, shipped.chips, _SHIPPED, [distilled(wide, one) for one in every])


def distilled(wide: Fit, one: Measured) -> tuple[Any, Any]:
    """Return the logarithms that the wide networks give for a product's configs, and what these count."""
    expected = wide.expected(one)
    return wide.logs(one), weights_near(expected, np.min(expected))


def main() -> None:
    """Fit, say how good the choices are, and write the data that the cost model reads."""
    given = options(__doc__).parse_args()
    shipped = ShippedNetworks()
    every = (one for one in read(given.records) if one.dtype.itemsize == 2 and _CHIP in one.chip)
    products = [one for one in every if not one.is_layer]
    more = list(invented(_MORE))
    left_out = [one for one in products if one.held_out]
    fits = fitted([one for one in products if not one.held_out], more, shipped)
    for name, fit in zip(("wide", "shipped"), fits, strict=True):
        print(f"left out, {name}: {judged(fit, left_out)}", flush=True)
    shipped.write("draws", fitted(products, more, shipped)[1])


if __name__ == "__main__":
    main()
