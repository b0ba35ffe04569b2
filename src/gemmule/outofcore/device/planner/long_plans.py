"""Times of plans of very many operations: a part is simulated, and the rest extrapolated from it."""

from __future__ import annotations

import collections
import dataclasses
import math

from gemmule.core.block_triangle import BlockTriangle

from . import traffic
from .operation import Store, length
from .plan import PANELS, RESIDENT, DevicePlan
from .rates import Rates
from .schedule import operations
from .simulation import CONVERT_RATE, Model, Prediction, simulated

#: Operations of a plan that is simulated whole, and of a part of a longer one.
MOST, _PART = 3000, 500
#: Operations of a plan that is simulated whole once it is chosen.
MOST_OF_CHOSEN = 12_000
#: Slices of plans that are simulated in place of one of more slices; a tile's time grows evenly with them.
_FEW, _MORE = 5, 9
#: Share of the simulated tiles that belong to a product's start, before its steady state.
_BEGINNING = 3


def is_long(plan: DevicePlan, count: int = 1, most: int = MOST) -> bool:
    """Whether a plan has more than so many operations for each of `count` devices."""
    return operation_count(plan) > most * count


def operation_count(plan: DevicePlan) -> int:
    """Return roughly how many operations a plan has."""
    return 2 * plan.computed[1] * max(plan.grid[2], 1) + plan.tiles


def extrapolated(plan: DevicePlan, rates: Rates, count: int = 1) -> Prediction:
    """Return the prediction of a long plan: times extrapolated from its beginning, bytes in as of `roughly_in`."""
    depth = plan.grid[2]
    whole = _Whole(plan, rates)
    if depth > _MORE + 1 and plan.strategy != PANELS:
        few, more = (_whole_seconds(part, whole.like(part), rates, count) for part in _parts_of(plan))
        seconds = few + (more - few) / (_MORE - _FEW) * (depth - _FEW)
    else:
        seconds = _whole_seconds(plan, whole, rates, count)
    found = Prediction(
        seconds=seconds,
        compute_s=whole.compute / count,
        h2d_s=whole.bytes_in / rates.h2d / count,
        d2h_s=whole.bytes_out / rates.d2h / count,
        source_s=whole.bytes_in / rates.source / count,
        sink_s=whole.bytes_out / rates.sink / count,
        bytes_in=whole.bytes_in,
        bytes_out=whole.bytes_out,
        flop=traffic.flop(plan),
        files=rates.files,
    )
    least = max(found.best_s, found.source_s + found.sink_s if rates.one_disk else 0.0)
    return dataclasses.replace(found, seconds=max(seconds, least))


def _parts_of(plan: DevicePlan) -> list[DevicePlan]:
    return [_shallower(plan, slices) for slices in (_FEW, _MORE)]


def _shallower(plan: DevicePlan, slices: int) -> DevicePlan:
    """Return the plan of a product of fewer slices, the last one as deep as that of the whole."""
    edges = plan.inner_edges
    depth = edges[slices - 1] + edges[-1] - edges[-2]
    return dataclasses.replace(plan, product=dataclasses.replace(plan.product, k=depth))


def _whole_seconds(plan: DevicePlan, whole: _Whole, rates: Rates, count: int) -> float:
    """Return the prediction of all tiles of a plan, the first of which are simulated."""
    each = operation_count(plan) / max(plan.tiles, 1)
    most = max(int(_PART / each), 2 * _BEGINNING)
    if plan.strategy == RESIDENT or plan.tiles <= most * count:
        return simulated(plan, rates).seconds / (1 if plan.strategy == RESIDENT else count)
    model = Model(plan, rates)
    order = plan.order()
    weight = began = began_at = 0.0
    tiles = 0
    for op in operations(plan, most=most):
        model.run(op)
        if isinstance(op, Store) and op.final:
            tiles += 1
            weight += whole.weight(next(order))
            if tiles == max(most // _BEGINNING, 1):
                began, began_at = weight, model.seconds
    rate = (model.seconds - began_at) / max(weight - began, 1e-30)
    return model.seconds + rate * max(whole.total / count - weight, 0.0)


class _Whole:
    """Times of each part of a device for all tiles of a plan, and those that one tile adds."""

    def __init__(self, plan: DevicePlan, rates: Rates, bytes_in: int | None = None) -> None:
        self._plan, self._rates = plan, rates
        self._known: dict[tuple[int, int, bool], float] = {}
        self.bytes_in = traffic.roughly_in(plan) if bytes_in is None else bytes_in
        self.bytes_out = traffic.bytes_out(plan)
        area = max(plan.product.m * plan.product.n, 1)
        lines = plan.host_lines
        moved = (
            rates.arriving(self.bytes_in, min(lines["a"], lines["b"])),
            rates.departing(self.bytes_out, lines["out"]),
        )
        # For an element of the result; a tile and its mirror image are moved together.
        self._moving = (sum(moved) if rates.one_disk else max(moved)) / area
        self.compute = self.total = 0.0
        for tile, times in self._classes():
            self.compute += times * self._computing(tile)
            self.total += times * self.weight(tile)

    def like(self, part: DevicePlan) -> _Whole:
        """Return the same of a plan of fewer slices; less comes in as it is less deep: counting takes longer."""
        return _Whole(part, self._rates, self.bytes_in * part.product.k // self._plan.product.k)

    def _classes(self) -> list[tuple[tuple[int, int], int]]:
        """Return tiles of all shapes, and how many there are of each."""
        plan = self._plan
        rows, cols, _ = plan.grid
        if plan.symmetric:
            last = rows - 1
            counts = {(0, 0): last, (last, last): 1, (1, 0): last * (last - 1) // 2, (last, 0): last}
            return [(tile, times) for tile, times in counts.items() if times > 0 and max(tile) < rows]
        sides = []
        for count, part in ((rows, plan.rows), (cols, plan.cols)):
            shown: dict[int, int] = {}
            times: collections.Counter[int] = collections.Counter()
            for place in range(count):
                extent = int(part(place).stop - part(place).start)
                times[shown.setdefault(extent, place)] += 1
            sides.append(times)
        return [((i, j), one * other) for i, one in sides[0].items() for j, other in sides[1].items()]

    def weight(self, tile: tuple[int, int]) -> float:
        """Return the time of the part that a tile keeps busy longest."""
        plan = self._plan
        part, other = plan.rows(tile[0]), plan.cols(tile[1])
        area = int(part.stop - part.start) * int(other.stop - other.start)
        twice = 2 if plan.symmetric and tile[0] != tile[1] else 1
        products = len(plan.diagonal(tile[0])) if plan.in_strips(tile) else 1
        # A product, and the load before it; what leaves with the tile.
        queued = self._rates.issue * (2 * max(plan.grid[2], 1) + 2) * products
        return max(self._computing(tile), area * twice * self._moving, queued)

    def _computing(self, tile: tuple[int, int]) -> float:
        plan, rates = self._plan, self._rates
        part, cols = plan.rows(tile[0]), plan.cols(tile[1])
        shape = int(part.stop - part.start), int(cols.stop - cols.start)
        key = (*shape, plan.symmetric and tile[0] == tile[1])
        if key not in self._known:
            products: list[tuple[int, int, BlockTriangle | None]] = [(*shape, None)]
            if plan.in_strips(tile):
                products = [
                    (length(rows), rows[1] - int(cols.start), plan.below(tile[0], rows))
                    for rows in plan.diagonal(tile[0])
                ]
            depths = collections.Counter(
                end - start for start, end in zip(plan.inner_edges, plan.inner_edges[1:], strict=False)
            )
            took = 0.0
            for m, n, needed in products:
                for depth, times in (depths or {0: 1}).items():
                    product = rates.seconds(m, n, depth, added=plan.grid[2] > 1, lanes=plan.lanes, needed=needed)
                    took += times * (rates.launch + product)
            area = math.prod(shape)
            if plan.converts_results:
                took += rates.launch + area * (plan.sum_dtype.itemsize + plan.product.out.itemsize) / CONVERT_RATE
            if plan.symmetric and tile[0] != tile[1]:
                took += rates.launch + 2 * area * plan.product.out.itemsize / CONVERT_RATE
            self._known[key] = took
        return self._known[key]
