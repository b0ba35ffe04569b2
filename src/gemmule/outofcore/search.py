"""The choice of tiles: the plan that moves the least within a memory limit."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator

from ..core.errors import MemoryLimitError
from .budget import amount, format_bytes
from .plan import Operand, Product, StreamPlan, TileBytes, memory_needed, parts

#: Smallest tile that is planned: below it nearly all time is overhead.
LEAST = 16
#: Extents of tile and slice that BLAS is fast with: once they fit, no thinner slices are tried.
DEEP = 256
#: Bytes whose transfer takes as long as one more read or write call.
CALL_BYTES = 16384
#: Bytes moved in memory, for each element of a tile, by adding one more slice to its sum.
ADD_BYTES = 12
#: How much dearer the first reads and the last write are, which no computing hides.
EXPOSED = 4
#: Budgets below this cut a product into many tiles and slices: then each tile, which is synced and journaled, and each
#: slice, which threads hand over, costs as much as moving so many bytes.
TINY_BUDGET = 2**24
TILE_BYTES, SLICE_BYTES = 2_000_000, 400_000
#: Bytes that are moved during a multiply-add, for each byte of a real number, and for each byte that is written and
#: synced.
MULTIPLY_BYTES, WRITTEN_BYTES = 0.05, 4
#: Costs of a product under a tiny budget, compared with any other budget, above which it takes twice as long: reading,
#: writing and computing overlap. Bytes that are moved in two seconds, which are never worth refusing.
SLOWEST, SECONDS_BYTES = 2.5, 8e9


def plan_product(product: Product, memory: int, tile_bytes: TileBytes, *, symmetric: bool = False) -> StreamPlan:
    """Return the plan with the least traffic whose buffers fit into `memory` bytes.

    Parameters
    ----------
    product : Product
        What is computed.
    memory : int
        Limit for all buffers together, in bytes.
    tile_bytes : callable
        What the executor takes for a sum over (m, k) and (k, n) slices.
    symmetric : bool
        Whether B is the transpose of A, and no matrix is added: then half of it is computed, if that fits.

    Raises
    ------
    MemoryLimitError
        If not even the smallest tiles fit; it says what they take.
    """
    best: tuple[float, StreamPlan] | None = None
    for tile_k in _depths(product.k):
        if best is not None and tile_k < min(DEEP, product.k) and min(best[1].tile_m, best[1].tile_n) >= DEEP:
            break
        for by_rows in (True, False):
            # With one slice, two slots hold all that keeping would.
            for keep in (True, False) if parts(product.k, tile_k) > 1 else (True,):
                fitting = _square if symmetric else _fitting
                for plan in fitting(product, tile_k, by_rows, keep, memory, tile_bytes):
                    cost = _cost(plan) + (_overheads(plan) if memory < TINY_BUDGET else 0)
                    if best is None or cost < best[0]:
                        best = cost, plan
    if best is None and symmetric:
        return plan_product(product, memory, tile_bytes)
    if best is None:
        least = least_memory(product, tile_bytes)
        raise _too_small(product, memory, least, least)
    return best[1]


def plan_within(product: Product, memory: int, tile_bytes: TileBytes, *, symmetric: bool = False) -> StreamPlan:
    """Return what `plan_product` returns, and refuse a tiny budget that is expected to take far too long.

    Raises
    ------
    MemoryLimitError
        If not even the smallest tiles fit, or if the time would go into their number: twice the time of a larger
        budget. It says what would do.
    """

    def plan_for(budget: int) -> StreamPlan:
        return plan_product(product, budget, tile_bytes, symmetric=symmetric)

    try:
        plan = plan_for(memory)
    except MemoryLimitError:
        least = least_memory(product, tile_bytes)
        raise _too_small(product, memory, least, _serving(plan_for(least), least, plan_for)) from None
    serving = _serving(plan, memory, plan_for)
    if serving > memory:
        raise MemoryLimitError(
            f"memory limit {format_bytes(memory)} cuts this product into {plan.tiles} tiles of {plan.grid[2]} slices, "
            f"which takes over twice as long as need be; give memory='{amount(serving)}' or more"
        )
    return plan


def _too_small(product: Product, memory: int, least: int, serving: int) -> MemoryLimitError:
    # Tiles are whole chunks of a store.
    smaller = ", or smaller chunks of the result" if max(product.out.grain) > LEAST else ""
    return MemoryLimitError(
        f"memory limit {format_bytes(memory)} is too small for this product; it takes at least {least} bytes "
        f"of buffers; give memory='{amount(serving)}' or more{smaller}"
    )


def _serving(plan: StreamPlan, memory: int, plan_for: Callable[[int], StreamPlan]) -> int:
    """Return the budget, or the next larger one that does not take far longer than need be.

    Parameters
    ----------
    plan : StreamPlan
        The plan for `memory`.
    memory : int
        The budget, in bytes.
    plan_for : callable
        Returns the plan for another budget.
    """
    if memory >= TINY_BUDGET or _moved(plan) <= SECONDS_BYTES:
        return memory
    product = plan.product
    size = max(_multiplied(product.a), _multiplied(product.b))
    multiplying = MULTIPLY_BYTES * product.m * product.n * product.k * size / (1 + plan.symmetric)
    needed = multiplying + WRITTEN_BYTES * product.m * product.n * product.out.itemsize
    most = max(SLOWEST * (needed + _cost(plan_for(sys.maxsize))) - needed, SECONDS_BYTES)
    if _moved(plan) <= most:
        return memory
    # In steps of an eighth of a power of two.
    budgets = [
        math.ceil(memory * 2 ** (step / 8)) for step in range(math.ceil(8 * math.log2(TINY_BUDGET / memory)) + 1)
    ]
    low, high = 0, len(budgets) - 1
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _moved(plan_for(budgets[middle])) <= most else (middle, high)
    return budgets[high]


def _multiplied(operand: Operand) -> int:
    """Return the bytes of the real numbers that a multiply-add of such elements multiplies."""
    kind, size = operand.dtype.kind, operand.itemsize
    if kind == "c":
        return 2 * size
    # Wide integers are multiplied in parts, as float64.
    return 8 * size if kind in "iu" and size >= 4 else max(size, 4)


def _moved(plan: StreamPlan) -> float:
    """Return what a plan within a tiny budget costs, multiplying aside, in bytes."""
    return _cost(plan) + _overheads(plan)


def least_memory(product: Product, tile_bytes: TileBytes) -> int:
    """Return the smallest limit in bytes for which there is a plan."""
    grain_m, grain_n = product.out.grain
    tile = _least(product.m, grain_m), _least(product.n, grain_n), _least(product.k)
    return min(
        memory_needed(product, tile, by_rows=by_rows, keep=False, tile_bytes=tile_bytes) for by_rows in (True, False)
    )


def _fitting(
    product: Product, tile_k: int, by_rows: bool, keep: bool, memory: int, tile_bytes: TileBytes
) -> Iterator[StreamPlan]:
    """Yield plans that fit: for each width, the tallest tile and a few lower ones."""

    def needed(tile_m: int, tile_n: int) -> int:
        return memory_needed(product, (tile_m, tile_n, tile_k), by_rows=by_rows, keep=keep, tile_bytes=tile_bytes)

    grain_m, grain_n = product.out.grain
    for tile_n in _widths(product.n, grain_n):
        low, high = _least(product.m, grain_m), max(product.m, 1)
        if needed(low, tile_n) > memory:
            continue
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if needed(middle, tile_n) <= memory else (low, middle - 1)
        for share in (1, 2, 4, 8):
            tile_m = _even(product.m, max(low // share, _least(product.m, grain_m)), grain_m)
            total = needed(tile_m, tile_n)
            if total <= memory:
                yield StreamPlan(product, tile_m, tile_n, tile_k, by_rows, keep, total)


def _square(
    product: Product, tile_k: int, by_rows: bool, keep: bool, memory: int, tile_bytes: TileBytes
) -> Iterator[StreamPlan]:
    """Yield plans of square tiles that fit, by rows, of whole blocks in both directions."""
    for side in _widths(product.n, product.out.square_grain) if by_rows else ():
        total = memory_needed(
            product, (side, side, tile_k), by_rows=True, keep=keep, tile_bytes=tile_bytes, symmetric=True
        )
        if total <= memory:
            yield StreamPlan(product, side, side, tile_k, True, keep, total, symmetric=True)


def _cost(plan: StreamPlan) -> float:
    """Return what the plan moves, in bytes: files, calls, packing and adding, and what nothing hides."""
    product = plan.product
    rows, cols, depth = plan.grid
    a_bytes = product.m * product.k * product.a.itemsize
    b_bytes = product.k * product.n * product.b.itemsize
    a_passes = 1 if plan.by_rows and plan.keep else cols
    b_passes = 1 if plan.keep and not plan.by_rows else rows
    calls = (
        a_passes * _calls(product.a, (product.m, product.k), (rows, depth))
        + b_passes * _calls(product.b, (product.k, product.n), (depth, cols))
        + _calls(product.out, (product.m, product.n), (rows, cols))
        + (_calls(product.c, (product.m, product.n), (rows, cols)) if product.c else 0)
    )
    packing = a_bytes * cols + b_bytes * rows
    adding = product.m * product.n * max(depth - 1, 0) * ADD_BYTES
    ends = plan.tile_m * plan.tile_n * product.out.itemsize + plan.tile_k * (
        plan.tile_m * product.a.itemsize + plan.tile_n * product.b.itemsize
    )
    return float(a_bytes * a_passes + b_bytes * b_passes + calls * CALL_BYTES + packing + adding + EXPOSED * ends)


def _overheads(plan: StreamPlan) -> float:
    """Return what the tiles and slices of the plan cost by themselves, in bytes."""
    return float(plan.tiles * (TILE_BYTES + plan.grid[2] * SLICE_BYTES))


def _calls(operand: Operand, shape: tuple[int, int], grid: tuple[int, int]) -> int:
    """Return the reads or writes for going once through a matrix cut into such a grid of pieces."""
    lines, across = (shape[0], grid[1]) if operand.order == "C" else (shape[1], grid[0])
    return lines * across if across > 1 else grid[0] * grid[1]


def _depths(extent: int) -> Iterator[int]:
    """Yield depths of a slice, deepest first, each cutting the extent evenly."""
    depth = extent
    while True:
        yield max(_even(extent, depth), 1)
        if depth <= _least(extent):
            return
        depth = max(depth * 2 // 3, _least(extent))


def _widths(extent: int, grain: int) -> Iterator[int]:
    """Yield widths of a tile, widest first, each cutting the extent evenly."""
    count = 1.0
    least = _least(extent, grain)
    while True:
        width = _even(extent, max(int(-(-extent // count)), least), grain)
        yield width
        if width <= least:
            return
        count = max(count * 1.2, parts(extent, width) + 1)


def _even(extent: int, part: int, grain: int = 1) -> int:
    """Return the smallest part that cuts `extent` into as many pieces as `part` does, but at least the least tile.

    It is a multiple of `grain`, or the whole extent, and not larger than `part`, which holds the least tile.
    """
    if not extent:
        return 1
    if part < extent:
        part -= part % grain
    even = -(-extent // parts(extent, part))
    return min(max(even + -even % grain, _least(extent, grain)), extent)


def _least(extent: int, grain: int = 1) -> int:
    """Return the smallest part of `extent` that is planned: a multiple of `grain`, or all of it."""
    return max(min(extent, LEAST + -LEAST % grain), 1)
