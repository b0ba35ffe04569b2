"""The choice of tiles: the plan that moves the least within a memory limit."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator

from ...core.errors import MemoryLimitError
from .memory_budget import at_least, format_bytes
from .plan import Operand, Product, StreamPlan, TileBytes, memory_needed, parts

#: Smallest tile that is planned: below it nearly all time is overhead.
LEAST = 16
#: Extents of tile and slice that BLAS is fast with: once they fit, no thinner slices are tried.
DEEP = 256
#: Bytes whose transfer takes as long as one more read or write call.
CALL_BYTES = 16384
#: Bytes moved in memory, for each element of a tile, by adding one more slice to its sum.
ADD_BYTES = 12
#: Factor on the first reads and the last write, which no computing hides.
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
    memory : int
        Limit for all buffers together, in bytes.
    tile_bytes : callable
        Scratch of the executor for a sum over (m, k) and (k, n) slices, in bytes.
    symmetric : bool
        Whether B is the transpose of A, and no matrix is added: then half of it is computed, if that fits.

    Raises
    ------
    MemoryLimitError
        If not even the smallest tiles fit; the message gives their bytes.
    """
    search = _Search(product, memory, tile_bytes, symmetric)
    for tile_k in _depths(product.k):
        if search.tile is not None and tile_k < min(DEEP, product.k) and min(search.tile[:2]) >= DEEP:
            break
        if product.m and product.n and search.is_hopeless((1, 1, parts(product.k, tile_k)), True, True):
            # More slices move more.
            break
        for by_rows in (True, False):
            # With one slice, two slots hold all that keeping would.
            for keep in (True, False) if parts(product.k, tile_k) > 1 else (True,):
                search.try_tiles(tile_k, by_rows, keep)
    plan = search.plan()
    if plan is None and symmetric:
        return plan_product(product, memory, tile_bytes)
    if plan is None:
        least = least_memory(product, tile_bytes)
        raise _too_small(product, memory, least, least)
    return plan


def plan_within(product: Product, memory: int, tile_bytes: TileBytes, *, symmetric: bool = False) -> StreamPlan:
    """Return the plan of `plan_product`, and refuse a tiny budget that is expected to take far too long.

    Raises
    ------
    MemoryLimitError
        If not even the smallest tiles fit, or if the time would go into their number: twice the time of a larger
        budget. The message gives the least sufficient one.
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
            f"memory limit {format_bytes(memory)} cuts this product into {plan.tiles} tiles of {plan.grid[2]} k-tiles, "
            f"which takes over twice as long as need be; {at_least('memory', serving, memory)}",
            serving,
        )
    return plan


def _too_small(product: Product, memory: int, least: int, serving: int) -> MemoryLimitError:
    # Tiles are whole chunks of a store.
    smaller = ", or smaller chunks of the result" if max(product.out.block_shape) > LEAST else ""
    slow = ", with which it would take over twice as long as need be" if serving > least else ""
    return MemoryLimitError(
        f"memory limit {format_bytes(memory)} is too small for this product; its buffers take at least "
        f"{format_bytes(least, up=True, like=memory)}{slow}; {at_least('memory', serving, memory)}{smaller}",
        serving,
    )


def _serving(plan: StreamPlan, memory: int, plan_for: Callable[[int], StreamPlan]) -> int:
    """Return the budget, or the next larger one that does not take far longer than need be."""
    if memory >= TINY_BUDGET or _tiny_cost(plan) <= SECONDS_BYTES:
        return memory
    product = plan.product
    size = max(_multiplied(product.a), _multiplied(product.b))
    multiplying = MULTIPLY_BYTES * product.m * product.n * product.k * size / (1 + plan.symmetric)
    needed = multiplying + WRITTEN_BYTES * product.m * product.n * product.out.itemsize
    most = max(SLOWEST * (needed + _plan_cost(plan_for(sys.maxsize))) - needed, SECONDS_BYTES)
    if _tiny_cost(plan) <= most:
        return memory
    # In steps of an eighth of a power of two.
    budgets = [
        math.ceil(memory * 2 ** (step / 8)) for step in range(math.ceil(8 * math.log2(TINY_BUDGET / memory)) + 1)
    ]
    low, high = 0, len(budgets) - 1
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _tiny_cost(plan_for(budgets[middle])) <= most else (middle, high)
    return budgets[high]


def _multiplied(operand: Operand) -> int:
    """Return the bytes of the real numbers that a multiply-add of such elements multiplies."""
    kind, size = operand.dtype.kind, operand.itemsize
    if kind == "c":
        return 2 * size
    # Wide integers are multiplied in parts, as float64.
    return 8 * size if kind in "iu" and size >= 4 else max(size, 4)


def _plan_cost(plan: StreamPlan) -> float:
    """Return the traffic of a plan in bytes."""
    return _cost(plan.product, (plan.tile_m, plan.tile_n, plan.tile_k), plan.by_rows, plan.keep)


def _tiny_cost(plan: StreamPlan) -> float:
    """Return the cost of a plan within a tiny budget, without multiplying, in bytes."""
    overheads = _overheads(plan.product, (plan.tile_m, plan.tile_n, plan.tile_k), plan.symmetric)
    return _plan_cost(plan) + overheads


def least_memory(product: Product, tile_bytes: TileBytes) -> int:
    """Return the smallest limit in bytes for which there is a plan."""
    block_m, block_n = product.out.block_shape
    tile = _least(product.m, block_m), _least(product.n, block_n), _least(product.k)
    return min(
        memory_needed(product, tile, by_rows=by_rows, keep=False, tile_bytes=tile_bytes) for by_rows in (True, False)
    )


class _Search:
    """The cheapest plan found so far for a product within a memory limit.

    Candidates that cost at least as much as the best one are dropped before their memory is computed.
    """

    def __init__(self, product: Product, memory: int, tile_bytes: TileBytes, symmetric: bool) -> None:
        self.tile: tuple[int, int, int] | None = None
        self._product, self._memory, self._tile_bytes, self._symmetric = product, memory, tile_bytes, symmetric
        self._order = (True, True)
        self._cost = math.inf
        whole = max(product.m, 1), max(product.n, 1), max(product.k, 1)
        # No tiles take more than four times the buffers of one tile that is the whole product.
        self._ample = 4 * self._needed(whole, True, True) <= memory
        block_m, block_n = product.out.block_shape
        self._least_m = _least(product.m, block_m)
        self._widths = list(_widths(product.n, product.out.square_block if symmetric else block_n))

    def plan(self) -> StreamPlan | None:
        """Return the best plan; None if none fits."""
        if self.tile is None:
            return None
        return StreamPlan(
            self._product, *self.tile, *self._order, self._needed(self.tile, *self._order), symmetric=self._symmetric
        )

    def is_hopeless(self, grid: tuple[int, int, int], by_rows: bool, keep: bool) -> bool:
        """Return whether no plan with such a grid, or a finer one, costs less than the best."""
        return float(_moved(self._product, grid, by_rows, keep)) >= self._cost

    def try_tiles(self, tile_k: int, by_rows: bool, keep: bool) -> None:
        """Try tiles of every width: the tallest that fits and a few lower ones, or squares, which go by rows."""
        if self._symmetric and not by_rows:
            return
        product = self._product
        depth = parts(product.k, tile_k)
        for tile_n in self._widths:
            rows = parts(product.m, tile_n) if self._symmetric else min(product.m, 1)
            if self.is_hopeless((rows, parts(product.n, tile_n), depth), by_rows, keep):
                # Narrower tiles move more.
                return
            if self._symmetric:
                self._try((tile_n, tile_n, tile_k), by_rows, keep)
                continue
            tallest = self._tallest(tile_n, tile_k, by_rows, keep)
            for share in (1, 2, 4, 8) if tallest else ():
                tile_m = _even(product.m, max(tallest // share, self._least_m), product.out.block_shape[0])
                self._try((tile_m, tile_n, tile_k), by_rows, keep)

    def _tallest(self, tile_n: int, tile_k: int, by_rows: bool, keep: bool) -> int:
        """Return the height of the tallest tile of a width that fits; 0 if none does."""
        low, high = self._least_m, max(self._product.m, 1)
        if self._ample:
            return high
        if self._needed((low, tile_n, tile_k), by_rows, keep) > self._memory:
            return 0
        while low < high:
            middle = (low + high + 1) // 2
            fits = self._needed((middle, tile_n, tile_k), by_rows, keep) <= self._memory
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def _try(self, tile: tuple[int, int, int], by_rows: bool, keep: bool) -> None:
        """Make such tiles the best plan if they cost less and fit."""
        cost = _cost(self._product, tile, by_rows, keep)
        if self._memory < TINY_BUDGET:
            cost += _overheads(self._product, tile, self._symmetric)
        if cost < self._cost and (self._ample or self._needed(tile, by_rows, keep) <= self._memory):
            self.tile, self._order, self._cost = tile, (by_rows, keep), cost

    def _needed(self, tile: tuple[int, int, int], by_rows: bool, keep: bool) -> int:
        return memory_needed(
            self._product, tile, by_rows=by_rows, keep=keep, tile_bytes=self._tile_bytes, symmetric=self._symmetric
        )


def _grid(product: Product, tile: tuple[int, int, int]) -> tuple[int, int, int]:
    return -(-product.m // tile[0]), -(-product.n // tile[1]), -(-product.k // tile[2])


def _cost(product: Product, tile: tuple[int, int, int], by_rows: bool, keep: bool) -> float:
    """Return the cost of a plan in bytes: files, calls, packing and adding, and what nothing hides."""
    tile_m, tile_n, tile_k = tile
    ends = tile_m * tile_n * product.out.dtype.itemsize + tile_k * (
        tile_m * product.a.dtype.itemsize + tile_n * product.b.dtype.itemsize
    )
    return float(_moved(product, _grid(product, tile), by_rows, keep) + EXPOSED * ends)


def _moved(product: Product, grid: tuple[int, int, int], by_rows: bool, keep: bool) -> int:
    """Return the traffic of such a grid of tiles and k-tiles in bytes, whether or not computing hides it."""
    rows, cols, depth = grid
    a_bytes = product.m * product.k * product.a.dtype.itemsize
    b_bytes = product.k * product.n * product.b.dtype.itemsize
    a_passes = 1 if by_rows and keep else cols
    b_passes = 1 if keep and not by_rows else rows
    calls = (
        a_passes * _calls(product.a, (product.m, product.k), (rows, depth))
        + b_passes * _calls(product.b, (product.k, product.n), (depth, cols))
        + _calls(product.out, (product.m, product.n), (rows, cols))
        + (_calls(product.c, (product.m, product.n), (rows, cols)) if product.c else 0)
    )
    packing = a_bytes * cols + b_bytes * rows
    adding = product.m * product.n * max(depth - 1, 0) * ADD_BYTES
    return a_bytes * a_passes + b_bytes * b_passes + calls * CALL_BYTES + packing + adding


def _overheads(product: Product, tile: tuple[int, int, int], symmetric: bool) -> float:
    """Return the cost of the tiles and k-tiles of a plan by themselves, in bytes."""
    rows, cols, depth = _grid(product, tile)
    tiles = rows * (rows + 1) // 2 if symmetric else rows * cols
    return float(tiles * (TILE_BYTES + depth * SLICE_BYTES))


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


def _widths(extent: int, block: int) -> Iterator[int]:
    """Yield widths of a tile, widest first, each cutting the extent evenly."""
    count = 1.0
    least = _least(extent, block)
    while True:
        width = _even(extent, max(int(-(-extent // count)), least), block)
        yield width
        if width <= least:
            return
        count = max(count * 1.2, parts(extent, width) + 1)


def _even(extent: int, part: int, block: int = 1) -> int:
    """Return the smallest part that cuts `extent` into as many pieces as `part` does, but at least the least tile.

    It is a multiple of `block`, or the whole extent, and not larger than `part`, which holds the least tile.
    """
    if not extent:
        return 1
    if part < extent:
        part -= part % block
    even = -(-extent // parts(extent, part))
    return min(max(even + -even % block, _least(extent, block)), extent)


def _least(extent: int, block: int = 1) -> int:
    """Return the smallest part of `extent` that is planned: a multiple of `block`, or all of it."""
    return max(min(extent, LEAST + -LEAST % block), 1)
