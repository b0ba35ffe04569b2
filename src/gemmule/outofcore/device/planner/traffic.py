"""Bytes that a plan moves, without its operations: exactly what they move, and quickly where they are very many."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Container, Iterable, Iterator

from ...tiles.slots import Slots
from .panel_order import panel_groups
from .plan import PANELS, RESIDENT, DevicePlan

Tile = tuple[int, int]

#: Rows of tiles that are gone through: the first one begins in its own way, and they go back and forth.
_ROWS = 5


def bytes_in(plan: DevicePlan, done: Container[Tile] = ()) -> int:
    """Return the bytes that cross the link to the device; tiles that are `done` are left out."""
    product = plan.product
    added = product.c.itemsize if product.c else 0
    if done == () and (plan.devices == 1 or not product.k):
        found = product.m * product.n * added
        if not product.k:
            return found
        if plan.strategy == RESIDENT:
            return found + product.m * product.k * product.a.itemsize
        if plan.strategy == PANELS:
            return found + _by_panels(plan)
        if not plan.symmetric:
            return found + _by_rows(plan)
    tiles = [tile for tile in plan.order() if tile not in done]
    found = sum(_extent(plan.rows(i)) * _extent(plan.cols(j)) for i, j in tiles) * added
    if not product.k:
        return found
    if plan.strategy == RESIDENT:
        # Each slice comes once for every row of tiles that is left, or column.
        return found + sum(_extent(plan.rows(i)) for i in set(itertools.chain(*tiles))) * product.k * product.a.itemsize
    return found + sum(a + b for a, b in _loads(plan, plan.order(), done))


def roughly_in(plan: DevicePlan) -> int:
    """Return at least what crosses the link to one device: exactly that, where it is quickly counted."""
    if not plan.symmetric or plan.strategy == RESIDENT:
        return bytes_in(dataclasses.replace(plan, devices=1))
    rows = plan.grid[0]
    heights = [_extent(plan.rows(i)) for i in range(rows)]
    # Each row meets those before it, and itself.
    lines = sum(height * (i + 1 + rows - 1 - i) for i, height in enumerate(heights))
    return lines * plan.product.k * plan.product.a.itemsize


def bytes_out(plan: DevicePlan, done: Container[Tile] = ()) -> int:
    """Return the bytes that cross the link from the device."""
    size = plan.product.out.itemsize
    if done == ():
        return plan.product.m * plan.product.n * size
    return size * sum(
        _extent(plan.rows(i)) * _extent(plan.cols(j)) * (1 + (plan.symmetric and i != j))
        for i, j in plan.order()
        if (i, j) not in done
    )


def flop(plan: DevicePlan, done: Container[Tile] = ()) -> int:
    """Return the operations that are computed."""
    area = plan.computed[0] if done == () else sum(plan.area(tile) for tile in plan.order() if tile not in done)
    return 2 * area * plan.product.k


def _by_rows(plan: DevicePlan) -> int:
    """Return the loads of A and B: from some row of tiles on, every second one needs the same k-tiles."""
    rows, cols, _ = plan.grid
    shown = min(rows, _ROWS + rows % 2)
    loads = list(_loads(plan, itertools.islice(plan.order(), shown * cols)))
    each = [loads[start : start + cols] for start in range(0, len(loads), cols)]
    a = [sum(one for one, _ in row) for row in each]
    b = [sum(one for _, one in row) for row in each]
    total = sum(a) + sum(b)
    for i in range(shown, rows):
        like = shown - 2 + (i - shown) % 2
        total += b[like] + a[like] // _extent(plan.rows(like)) * _extent(plan.rows(i))
    return total


def _by_panels(plan: DevicePlan) -> int:
    """Return the loads where panels of one side stay: all of them once, and the others for every group of them."""
    product, by_rows = plan.product, plan.stationary == "a"
    size = {"a": product.a.itemsize, "b": product.b.itemsize}
    stays, passes = ((product.m, "a"), (product.n, "b"))[:: 1 if by_rows else -1]
    lengths = plan.row_edges, plan.col_edges
    outer, edges = (len(lengths[0]) - 1, lengths[1]) if by_rows else (len(lengths[1]) - 1, lengths[0])
    outer_held, inner_held = plan.slots if by_rows else plan.slots[::-1]
    held = min(inner_held, len(edges) - 1)
    total = stays[0] * size[stays[1]]
    for number in range(panel_groups(outer, outer_held, plan.opening)):
        # They come from the other end each time: the last ones of the time before are there.
        there = 0 if not number else edges[-1] - edges[-1 - held] if number % 2 else edges[held]
        total += (passes[0] - there) * size[passes[1]]
    return total * product.k


def _loads(plan: DevicePlan, tiles: Iterable[Tile], done: Container[Tile] = ()) -> Iterator[tuple[int, int]]:
    """Yield what each tile loads of A and of B, in bytes; all tiles from the first one on are given."""
    product = plan.product
    a_slots, b_slots = Slots(plan.slots[0]), Slots(plan.slots[1])
    # The buffers hold the last slices: the others are loaded again.
    ends = 2 * max(plan.slots) + 2
    regular = list(itertools.pairwise(plan.inner_edges))
    backwards = regular[::-1]
    back = False
    for i, j in tiles:
        if (i, j) in plan.first_tiles:
            slices, back = plan.first_slices(), False
        else:
            slices = backwards if back else regular
        back = not back and plan.serpentine
        if (i, j) in done:
            continue
        height, width = _extent(plan.rows(i)), _extent(plan.cols(j))
        shown, between = slices, 0
        if len(slices) > 2 * ends:
            shown = slices[:ends] + slices[-ends:]
            # They are neighbours, ascending or descending: there may be thousands for each tile.
            first, last = slices[ends], slices[-ends - 1]
            between = max(first[1], last[1]) - min(first[0], last[0])
        a = b = between
        if plan.symmetric and i == j:
            b = 0
        for inner in shown:
            depth = inner[1] - inner[0]
            if not a_slots.claim((plan.row_edges[i], plan.row_edges[i + 1], inner))[1]:
                a += depth
            slots = a_slots if plan.symmetric else b_slots
            if not slots.claim((plan.col_edges[j], plan.col_edges[j + 1], inner))[1]:
                b += depth
        yield (
            a * height * product.a.itemsize,
            b * width * (product.a.itemsize if plan.symmetric else product.b.itemsize),
        )


def _extent(part: slice) -> int:
    return int(part.stop - part.start)
