"""Distribution of one plan's tiles over several devices, and its predicted time."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Container

from .long_plans import MOST_OF_CHOSEN, extrapolated, is_long
from .plan import DevicePlan
from .rates import Rates
from .simulation import Prediction, simulated
from .traffic import bytes_in, bytes_out, roughly_in

Tile = tuple[int, int]

#: Tiles of a plan whose bytes are counted tile by tile.
_MOST_COUNTED = 20_000


def shares(plan: DevicePlan, count: int, done: Container[Tile] = ()) -> list[frozenset[Tile]]:
    """Return the tiles of each device: runs of the plan's order, of areas as even as whole tiles allow.

    Parameters
    ----------
    count : int
        Devices.
    done : container of tuple of int
        Tiles that are there already; what is left is shared.
    """
    return [frozenset(share) for share in plan.shares(count, done)]


def largest_share(plan: DevicePlan, count: int) -> float:
    """Return the share of the result that the device with most of it computes."""
    if count == 1:
        return 1.0
    whole = sum(plan.area(tile) for tile in plan.order())
    if not whole:
        return 1.0
    return max(sum(plan.area(tile) for tile in share) for share in shares(plan, count)) / whole


@functools.lru_cache(maxsize=4096)
def predicted(plan: DevicePlan, rates: Rates, count: int) -> Prediction:
    """Return the prediction of a plan on several devices: the slowest one's time, and the traffic of all.

    Plans of very many operations are simulated in part. Searches within several budgets try the same plans: each is
    simulated once in a process.
    """
    if rates.duplex_shares != (1.0, 1.0):
        rates = rates.duplex(roughly_in(plan), bytes_out(plan))
    return extrapolated(plan, rates, count) if is_long(plan, count) else _slowest(plan, rates, count)


def _slowest(plan: DevicePlan, rates: Rates, count: int) -> Prediction:
    if count == 1:
        return simulated(plan, rates)
    every = set(plan.order())
    each = [simulated(plan, rates, every - share) for share in shares(plan, count) if share]
    if not each:
        return simulated(plan, rates)
    slowest = max(each, key=lambda one: one.seconds)
    return dataclasses.replace(
        slowest,
        bytes_in=sum(one.bytes_in for one in each),
        bytes_out=sum(one.bytes_out for one in each),
        flop=sum(one.flop for one in each),
    )


def expected(plan: DevicePlan, rates: Rates, count: int, most: int = MOST_OF_CHOSEN) -> Prediction:
    """Return the prediction of `predicted`, from all operations of longer plans too, if they are `most` or fewer.

    Bytes are those of the operations, and a bound only for several devices or a symmetric plan of very many tiles.
    """
    if rates.duplex_shares != (1.0, 1.0):
        rates = rates.duplex(roughly_in(plan), bytes_out(plan))
    if not is_long(plan, count, most):
        return _slowest(plan, rates, count)
    prediction = extrapolated(plan, rates, count)
    if plan.tiles > _MOST_COUNTED and (count > 1 or plan.symmetric):
        return prediction
    every = set(plan.order()) if count > 1 else set()
    parts = [every - share for share in shares(plan, count) if share] if count > 1 else [()]
    moved = sum(bytes_in(plan, part) for part in parts)
    share = moved / max(prediction.bytes_in, 1)
    return dataclasses.replace(
        prediction, bytes_in=moved, h2d_s=prediction.h2d_s * share, source_s=prediction.source_s * share
    )
