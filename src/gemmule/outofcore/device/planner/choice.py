"""The choice of strategy, tiles and slices: the plan that is expected to be done first within a device's memory."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator

from gemmule.core.dataclass import dataclass
from gemmule.core.name_suggestions import remedy_for

from ....core.errors import ArgumentError, MemoryLimitError
from ...stores.matrix import AnyDType
from ...tiles.memory_budget import at_least, format_bytes
from ...tiles.plan import Product
from .candidates import candidates, strips_of
from .long_plans import MOST, is_long
from .plan import C_STATIONARY, FIVE_BUFFERS, PANELS, RAMPS, RESIDENT, STRATEGIES, DevicePlan
from .rates import Rates
from .shares import expected, largest_share, predicted
from .simulation import Prediction

#: Plans whose time is simulated, of those that the formulae put first: so many, while their products are so few in all.
_FINALISTS, _MOST_PRODUCTS = 24, 6_000
#: Plans that are simulated for a quick answer.
_QUICK = 4
#: Sides of tiles that several devices share alike are multiples of this, which suits every kernel.
_TIGHT = 128
#: Tiles of a plan whose shares are counted.
_MOST_SHARED = 1024
#: Plans of a strategy whose beginning and end are varied, if it takes at most so many times the time of the best.
_REFINED, _NEAR = 2, 1.6
#: Seconds of a link's work that count as one of the product's.
_SLACK = 0.02


#: Sort key of a plan, the plan, and its prediction.
_PredictedPlan = tuple[tuple[float, float], DevicePlan, Prediction]


@dataclass(frozen=True)
class Scope:
    """The plans of a search."""

    count: int = 1  #: Devices alike that share the tiles.
    widest: int | None = None  #: Most columns that leave the device together: what a buffer on the host has room for.
    quick: bool = False  #: Whether to simulate few plans, which tells the time roughly.


@dataclass(frozen=True)
class Chosen:
    """A plan, what it is expected to take, and what it was chosen over."""

    plan: DevicePlan  #: The plan.
    prediction: Prediction  #: Predicted time.
    rates: Rates  #: The rates that it was predicted with.
    memory: int  #: Device memory that it was to keep to.
    others: tuple[tuple[str, float], ...] = ()  #: Best of each other strategy, and the seconds that it would take.
    count: int = 1  #: Devices that share the tiles.

    @functools.cached_property
    def between(self) -> tuple[float, float]:
        """Seconds at the fastest and at the slowest measured rates of the links and of the matrices' storage."""
        if self.rates.slow == self.rates.fast:
            return self.prediction.seconds, self.prediction.seconds
        fast, slow = (
            expected(self.plan, self.rates.at(share), self.count).seconds
            for share in (self.rates.fast, self.rates.slow)
        )
        return fast, slow


def choose_plan(
    product: Product,
    sum_dtype: AnyDType,
    memory: int,
    rates: Rates,
    *,
    symmetric: bool = False,
    strategy: str | None = None,
    scope: Scope | None = None,
) -> Chosen:
    """Return the plan that is expected to be done first, its buffers within `memory` bytes of the device.

    Parameters
    ----------
    sum_dtype : dtype
        Type that slices are summed in.
    memory : int
        Device memory in bytes for all buffers.
    rates : Rates
        Rates of the device, the links and the matrices' storage.
    symmetric : bool
        Whether B is the transpose of A, and no matrix is added.
    strategy : str, optional
        The strategy to take; the best one otherwise, among all but the five buffers.
    scope : Scope, optional
        Plans to search, and the number of devices, each with that memory; by default all plans for one.

    Raises
    ------
    MemoryLimitError
        If not even the smallest tiles fit; the message says what they take.
    ArgumentError
        If the strategy is not known, or is not for this product.
    """
    scope, given = scope or Scope(), rates
    count, quick = scope.count, scope.quick
    # What brings and takes the matrices is shared by all; every device has links of its own.
    rates = dataclasses.replace(given, source=given.source / count, sink=given.sink / count)
    if strategy is not None and strategy not in STRATEGIES:
        raise ArgumentError(f"strategy={strategy!r} is not known; {remedy_for(strategy, STRATEGIES)}")
    if symmetric and strategy in (FIVE_BUFFERS, PANELS):
        symmetric = False
    if strategy == RESIDENT and not symmetric:
        raise ArgumentError(
            f"strategy {RESIDENT!r} is for a matrix times its own transpose; leave it out, or take {C_STATIONARY!r}"
        )
    wanted = (strategy,) if strategy else (C_STATIONARY, RESIDENT if symmetric else PANELS)
    every = {name: _candidates(name, product, sum_dtype, memory, symmetric, rates, scope) for name in wanted}
    # A disk has little of narrow parts: plans that are far behind with them would not be tried without.
    ramps = (1, 1, 1) if rates.one_disk and rates.staged_line else RAMPS
    fitting = {
        name: sorted(
            (
                dataclasses.replace(plan, ramps=ramps) if ramps != RAMPS else plan
                for plan in dict.fromkeys(plans)
                if plan.device_bytes <= memory
            ),
            key=lambda plan: _estimate(plan, rates, count),
        )
        for name, plans in every.items()
    }
    most = _QUICK if quick else _FINALISTS
    found = {
        name: sorted((_predicted_plan(plan, rates, count) for plan in _finalists(plans, count, most)), key=_key)
        for name, plans in fitting.items()
        if plans
    }
    least = min((ranked[0][0][0] for ranked in found.values()), default=0.0)
    for ranked in found.values():
        # What is far behind does not come to the front.
        if quick or ranked[0][0][0] > _NEAR * least:
            continue
        for variants in (_beginnings, _endings, _diagonals):
            ranked += [
                _predicted_plan(plan, rates, count) for _, first, _ in ranked[:_REFINED] for plan in variants(first)
            ]
            ranked.sort(key=_key)
    best = {name: ranked[0] for name, ranked in found.items()}
    if not best and symmetric and strategy != RESIDENT and product.out.block_shape != (1, 1):
        # Tiles that are whole blocks in one direction alone may be smaller.
        return choose_plan(product, sum_dtype, memory, given, strategy=strategy, scope=scope)
    if not best:
        least = least_memory(product, sum_dtype, symmetric=symmetric, strategy=strategy, widest=scope.widest)
        raise MemoryLimitError(
            f"device memory of {format_bytes(memory)} is too small for this product; it takes at least "
            f"{format_bytes(least, up=True, like=memory)} of buffers; {at_least('device_memory', least, memory)}"
        )
    by_time = sorted(best, key=lambda name: _key(best[name]))
    others = tuple((name, best[name][2].seconds) for name in by_time[1:])
    _, plan, prediction = best[by_time[0]]
    if not quick and is_long(plan, count):
        prediction = expected(plan, rates, count)
    return Chosen(plan, prediction, rates, memory, others, count)


def least_memory(
    product: Product,
    sum_dtype: AnyDType,
    *,
    symmetric: bool = False,
    strategy: str | None = None,
    widest: int | None = None,
) -> int:
    """Return the fewest bytes of device memory for which there is a plan."""
    plans = _smallest(product, sum_dtype, symmetric, strategy, widest)
    return min(plan.device_bytes for plan in plans)


def least_width(product: Product, sum_dtype: AnyDType, *, symmetric: bool = False, strategy: str | None = None) -> int:
    """Return the fewest columns that leave the device together in any plan."""
    return min(plan.result_width for plan in _smallest(product, sum_dtype, symmetric, strategy, None))


def _smallest(
    product: Product, sum_dtype: AnyDType, symmetric: bool, strategy: str | None, widest: int | None
) -> Iterator[DevicePlan]:
    if strategy in (FIVE_BUFFERS, PANELS):
        symmetric = False
    names = (strategy,) if strategy else (C_STATIONARY, RESIDENT if symmetric else PANELS)
    for name in names:
        yield from candidates(name, product, sum_dtype, 0, symmetric, widest=widest)


def _candidates(
    strategy: str,
    product: Product,
    sum_dtype: AnyDType,
    memory: int,
    symmetric: bool,
    rates: Rates,
    scope: Scope,
) -> Iterator[DevicePlan]:
    """Yield plans for the product; for several devices also those that cut each one's rows, or columns, alike."""
    count, within = scope.count, (sum_dtype, memory, symmetric, rates.waves, scope.widest)
    for plan in candidates(strategy, product, *within, rates.stairs):
        yield plan if count == 1 else dataclasses.replace(plan, devices=count)
    if count == 1 or symmetric:
        return
    for side in ("m", "n"):
        extent = max(-(-getattr(product, side) // count), 1)
        band = dataclasses.replace(product, **{side: extent})
        for plan in candidates(strategy, band, *within):
            tile = f"tile_{side}"
            # Of tiles as high as they can be the last device would have a lower one.
            even = -(-extent // plan.grid["mn".index(side)] // _TIGHT) * _TIGHT
            height = min(even, getattr(plan, tile)) if extent >= 8 * _TIGHT else getattr(plan, tile)
            whole = dataclasses.replace(plan, product=product, devices=count, **{tile: height})
            # What is left over would make one device load a whole side for a sliver.
            if whole.tiles == count * plan.tiles:
                yield whole


def _predicted_plan(plan: DevicePlan, rates: Rates, count: int) -> _PredictedPlan:
    """Return a plan and its prediction, after its sort key."""
    prediction = predicted(plan, rates, count)
    # Of nearly equals the one that leaves most of the links: what is predicted for them is what is least sure.
    key = (prediction.seconds + _SLACK * max(prediction.h2d_s, prediction.source_s), prediction.seconds)
    return key, plan, prediction


def _key(one: _PredictedPlan) -> tuple[float, float]:
    return one[0]


def _beginnings(plan: DevicePlan) -> Iterator[DevicePlan]:
    """Yield the plan with other ramps, whose narrow parts have short lines, and with fewer panels that stay first."""
    if plan.strategy == C_STATIONARY:
        for share in (1, 2, 4, 8, 16, 32):
            yield dataclasses.replace(plan, ramps=(*RAMPS[:2], share))
    elif plan.strategy == PANELS:
        for rows, cols, opening in itertools.product((1, 4), (1, 4), (0, 1)):
            yield dataclasses.replace(plan, ramps=(rows, cols, RAMPS[2]), opening=opening)


def _endings(plan: DevicePlan) -> Iterator[DevicePlan]:
    """Yield the plan with fewer strips, which leave later and fill the device better."""
    for strips in (2, 4):
        if strips < plan.strips:
            yield dataclasses.replace(plan, strips=strips)


def _diagonals(plan: DevicePlan) -> Iterator[DevicePlan]:
    """Yield the plan with strips of other heights on the diagonal: low ones compute less twice, high ones are fewer."""
    for cut in strips_of(plan.product):
        if plan.cut and plan.cut != cut < plan.tile_m:
            yield dataclasses.replace(plan, cut=cut)


def _estimate(plan: DevicePlan, rates: Rates, count: int) -> float:
    """Return roughly what a plan takes: the part that works longest, and what nothing hides."""
    product = plan.product
    rows, cols, depth = plan.grid
    sides = min(plan.tile_m, product.m), min(plan.tile_n, product.n), min(plan.tile_k, product.k)
    each = rates.seconds(*sides, added=depth > 1, lanes=plan.lanes) / max(math.prod(sides), 1)
    area, products = plan.computed
    compute = each * area * product.k
    lines = plan.host_lines
    a_s = rates.arriving(product.m * product.k * product.a.itemsize, lines["a"])
    b_s = rates.arriving(product.k * product.n * product.b.itemsize, lines["b"])
    if plan.strategy == RESIDENT:
        moved = a_s
    elif plan.strategy == PANELS:
        stays, passes = (a_s, b_s) if plan.stationary == "a" else (b_s, a_s)
        panels, held = (rows, plan.slots[0]) if plan.stationary == "a" else (cols, plan.slots[1])
        moved = stays + passes * -(-panels // max(held - (held < panels), 1))
    else:
        moved = (a_s * cols + b_s * rows) / (2 if plan.symmetric else 1)
    results = rates.departing(product.m * product.n * product.out.itemsize, lines["out"])
    added = product.m * product.n * product.c.itemsize / rates.arrival if product.c else 0.0
    tile = rates.departing(plan.tile_m * plan.tile_n * product.out.itemsize, lines["out"])
    ends = tile * (1 / plan.strips + (plan.c_tiles == 1) * max(plan.tiles - 1, 0))
    ends += plan.tile_k * (plan.tile_m * product.a.itemsize + plan.tile_n * product.b.itemsize) / rates.arrival / 16
    if product.c:
        ends += plan.tile_m * plan.tile_n * product.c.itemsize / rates.arrival
    # How long a tile's buffer is taken.
    taken = (compute + added + results) / plan.c_tiles if plan.strategy == C_STATIONARY else 0.0
    launches = products * max(depth, 1) * rates.launch
    # Where tiles are many their shares are even.
    share = largest_share(plan, count) if plan.tiles <= _MOST_SHARED else 1 / count
    return share * (max(compute, moved + added, results, taken) + launches) + ends


def _finalists(plans: list[DevicePlan], count: int, most: int) -> Iterator[DevicePlan]:
    """Yield the first plan, and the next ones as far as simulating them takes no long time."""
    left = _MOST_PRODUCTS
    for number, plan in enumerate(plans[: max(most // count, 4)]):
        left -= min(plan.computed[1] * max(plan.grid[2], 1), MOST)
        if number and left < 0:
            return
        yield plan
