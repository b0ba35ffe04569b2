"""The choice of strategy, tiles and slices: the plan that is expected to be done first within a device's memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

from ...core.errors import ArgumentError, MemoryLimitError
from ..budget import format_bytes
from ..matrix import AnyDType
from ..plan import Product
from .plan import C_STATIONARY, PANELS, PAPER, RESIDENT, STRATEGIES, DevicePlan, edges
from .rates import Rates
from .simulate import Prediction, simulate

#: Smallest side of a tile and depth of a slice that is planned.
LEAST = 16
#: Sides are multiples of the first of these that is at most an eighth of them, so that kernels work on whole tiles.
_UNITS = (256, 128, 64, 32, 16)
#: Depths of a slice that are tried.
_DEPTHS = (8192, 4096, 2048, 1024, 512, 256, 64, LEAST)
#: Plans whose time is simulated, of those that the formulae put first: so many, while their products are so few in all.
_FINALISTS, _MOST_PRODUCTS = 24, 6_000
#: Widths of tiles that are tried of those that fit, the widest ones.
_MOST_WIDTHS = 12
#: Most buffers of panels of one side.
_MOST_PANELS = 128
_STRIPS = 8
#: How many seconds of a link's work count as one of the product's.
_SLACK = 0.02


@dataclasses.dataclass(frozen=True)
class Chosen:
    """A plan, what it is expected to take, and what it was chosen over.

    Attributes
    ----------
    plan : DevicePlan
        The plan.
    prediction : Prediction
        What it is expected to take.
    rates : Rates
        The rates that it was predicted with.
    memory : int
        Device memory that it was to keep to.
    others : tuple of (str, float)
        Best of each other strategy, and the seconds that it would take.
    """

    plan: DevicePlan
    prediction: Prediction
    rates: Rates
    memory: int
    others: tuple[tuple[str, float], ...] = ()


def choose_plan(
    product: Product,
    sum_dtype: AnyDType,
    memory: int,
    rates: Rates,
    *,
    symmetric: bool = False,
    strategy: str | None = None,
) -> Chosen:
    """Return the plan that is expected to be done first, its buffers within `memory` bytes of the device.

    Parameters
    ----------
    product : Product
        What is computed.
    sum_dtype : dtype
        Type that slices are summed in.
    memory : int
        Device memory in bytes for all buffers.
    rates : Rates
        How fast the device computes and matrices come and go.
    symmetric : bool
        Whether B is the transpose of A, and no matrix is added.
    strategy : str, optional
        The strategy to take; the best one otherwise, among all but that of the paper.

    Raises
    ------
    MemoryLimitError
        If not even the smallest tiles fit; the message says what they take.
    ArgumentError
        If the strategy is not known, or is not for this product.
    """
    if strategy is not None and strategy not in STRATEGIES:
        raise ArgumentError(f"strategy {strategy!r} is not known; choose one of {', '.join(STRATEGIES)}")
    if symmetric and strategy in (PAPER, PANELS):
        symmetric = False
    if strategy == RESIDENT and not symmetric:
        raise ArgumentError(
            f"strategy {RESIDENT!r} is for a matrix times its own transpose; leave it out, or take {C_STATIONARY!r}"
        )
    wanted = (strategy,) if strategy else (C_STATIONARY, RESIDENT if symmetric else PANELS)
    fitting = {
        name: sorted(
            (plan for plan in _candidates(name, product, sum_dtype, memory, symmetric) if plan.device_bytes <= memory),
            key=lambda plan: _estimate(plan, rates),
        )
        for name in wanted
    }
    best: dict[str, tuple[float, float, DevicePlan, Prediction]] = {}
    for name, plans in fitting.items():
        for plan in _finalists(plans):
            prediction, _ = simulate(plan, rates)
            # Of nearly equals the one that leaves most of the links: what is predicted for them is what is least sure.
            key = (prediction.seconds + _SLACK * max(prediction.h2d_s, prediction.source_s), prediction.seconds)
            if name not in best or key < best[name][:2]:
                best[name] = (*key, plan, prediction)
    if not best:
        least = least_memory(product, sum_dtype, symmetric=symmetric, strategy=strategy)
        raise MemoryLimitError(
            f"device memory of {format_bytes(memory)} is too small for this product; it takes at least {least} bytes "
            f"({format_bytes(least, up=True)}) of buffers; raise --device-memory"
        )
    ranked = sorted(best, key=lambda name: best[name][:2])
    others = tuple((name, best[name][1]) for name in ranked[1:])
    _, _, plan, prediction = best[ranked[0]]
    return Chosen(plan, prediction, rates, memory, others)


def least_memory(product: Product, sum_dtype: AnyDType, *, symmetric: bool = False, strategy: str | None = None) -> int:
    """Return the fewest bytes of device memory for which there is a plan."""
    names = (strategy,) if strategy else (C_STATIONARY, RESIDENT if symmetric else PANELS)
    return min(plan.device_bytes for name in names for plan in _candidates(name, product, sum_dtype, 0, symmetric))


def _candidates(
    strategy: str, product: Product, sum_dtype: AnyDType, memory: int, symmetric: bool
) -> Iterator[DevicePlan]:
    """Yield plans that may fit, among them always the one that takes least."""
    if strategy == PANELS:
        yield from _panels(product, sum_dtype, memory)
        return
    if strategy == RESIDENT:
        yield from _resident(product, sum_dtype, memory)
        return
    for depth in _depths(product.k):
        for c_tiles in (1,) if strategy == PAPER else (2, 1):

            def made(tile_m: int, tile_n: int, depth: int = depth, c_tiles: int = c_tiles) -> DevicePlan:
                tiles = len(edges(product.m, tile_m)) * len(edges(product.n, tile_n))
                tile = _blocks(product, tile_m, tile_n)
                strips = 1 if strategy == PAPER else _strips(product)
                return DevicePlan(
                    product, sum_dtype.name, strategy, *tile, depth, min(c_tiles, tiles),
                    (4, 0) if symmetric else (2, 2), symmetric=symmetric, strips=strips,
                )  # fmt: skip

            yield from _tallest(product, made, memory, square=symmetric)


def _tallest(
    product: Product, made: Callable[[int, int], DevicePlan], memory: int, *, square: bool
) -> Iterator[DevicePlan]:
    """Yield, for tiles of several widths, the plan with the tallest ones that fit, and the smallest of all."""
    yield made(_least(product.m), _least(product.n))
    fitting = 0
    for width in _sides(product.n):
        if square:
            yield made(width, width)
            continue
        if fitting == _MOST_WIDTHS:
            return
        low, high = _least(product.m), max(product.m, 1)
        if made(low, width).device_bytes > memory:
            continue
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if made(middle, width).device_bytes <= memory else (low, middle - 1)
        fitting += 1
        yield made(_whole(low), width)
        yield made(_even(product.m, low), width)
        yield made(_even(product.m, max(low // 2, 1)), width)


def _panels(product: Product, sum_dtype: AnyDType, memory: int) -> Iterator[DevicePlan]:
    """Yield plans in which panels of one side stay; the whole depth is one slice."""
    depth = max(product.k, 1)

    def made(tile_m: int, tile_n: int, slots: tuple[int, int], stationary: str) -> DevicePlan:
        tile = _blocks(product, tile_m, tile_n)
        return DevicePlan(
            product, sum_dtype.name, PANELS, *tile, depth, 2, slots, stationary, strips=_strips(product)
        )  # fmt: skip

    yield made(_least(product.m), _least(product.n), (1, 1), "a")
    for side in (8192, 4096, 2048, 1024, 512, 256, 128, 64, LEAST):
        tile_m, tile_n = (_even(extent, min(side, max(extent, 1))) for extent in (product.m, product.n))
        small = made(tile_m, tile_n, (2, 2), "a")
        if small.device_bytes > memory:
            continue
        sizes = {name: size for name, (_, size) in small.buffers.items()}
        free = (memory - small.device_bytes) // max(sizes["a"], sizes["b"])
        grid = small.grid
        for stationary in ("a", "b"):
            outer, inner = grid[:2] if stationary == "a" else grid[1::-1]
            for passing in {2, 3, 4, 6, 8, free // 4 + 2, free // 2 + 2}:
                stays = min(outer, free + 4 - passing, _MOST_PANELS)
                passes = min(passing, inner)
                if stays >= 1:
                    slots = (stays, passes) if stationary == "a" else (passes, stays)
                    yield made(tile_m, tile_n, slots, stationary)


def _resident(product: Product, sum_dtype: AnyDType, memory: int) -> Iterator[DevicePlan]:
    """Yield plans in which all tiles on and below the diagonal stay."""
    for depth in _depths(product.k):
        sides = set(_sides(product.m)) | {max(product.m, 1)}
        for side in sorted(sides, reverse=True):
            count = len(edges(product.m, side)) - 1
            if count <= 64:
                plan = DevicePlan(
                    product, sum_dtype.name, RESIDENT, side, side, depth, max(count * (count + 1) // 2, 1),
                    (2 * max(count, 1), 0), symmetric=True, strips=_STRIPS,
                )  # fmt: skip
                if plan.device_bytes <= memory or memory == 0:
                    yield plan


def _estimate(plan: DevicePlan, rates: Rates) -> float:
    """Return roughly what a plan takes: the part that works longest, and what nothing hides."""
    product = plan.product
    rows, cols, depth = plan.grid
    sides = min(plan.tile_m, product.m), min(plan.tile_n, product.n), min(plan.tile_k, product.k)
    each = rates.seconds(*sides, added=depth > 1) / max(math.prod(sides), 1)
    compute = each * product.m * product.n * product.k * (plan.tiles / max(rows * cols, 1))
    a_bytes = product.m * product.k * product.a.itemsize
    b_bytes = product.k * product.n * product.b.itemsize
    if plan.strategy == RESIDENT:
        moved = float(a_bytes)
    elif plan.strategy == PANELS:
        stays, passes = (a_bytes, b_bytes) if plan.stationary == "a" else (b_bytes, a_bytes)
        count, held = (rows, plan.slots[0]) if plan.stationary == "a" else (cols, plan.slots[1])
        moved = float(stays + passes * -(-count // max(held - (held < count), 1)))
    else:
        moved = (a_bytes * cols + b_bytes * rows) / (2 if plan.symmetric else 1)
    results = product.m * product.n * product.out.itemsize
    added = product.m * product.n * product.c.itemsize if product.c else 0
    tile = plan.tile_m * plan.tile_n * product.out.itemsize
    ends = tile / rates.departure * (1 / plan.strips + (plan.c_tiles == 1) * max(plan.tiles - 1, 0))
    ends += plan.tile_k * (plan.tile_m * product.a.itemsize + plan.tile_n * product.b.itemsize) / rates.arrival / 16
    launches = plan.tiles * max(depth, 1) * rates.launch
    return max(compute, (moved + added) / rates.arrival, results / rates.departure) + ends + launches


def _finalists(plans: list[DevicePlan]) -> Iterator[DevicePlan]:
    """Yield the first plan, and the next ones as far as simulating them takes no long time."""
    left = _MOST_PRODUCTS
    for number, plan in enumerate(plans[:_FINALISTS]):
        left -= plan.tiles * max(plan.grid[2], 1)
        if number and left < 0:
            return
        yield plan


def _depths(extent: int) -> list[int]:
    """Return the depths of a slice that are tried, each at most the extent."""
    return sorted({min(depth, max(extent, 1)) for depth in _DEPTHS}, reverse=True)


def _sides(extent: int) -> Iterator[int]:
    """Yield sides of a tile, longest first, each cutting the extent evenly."""
    count = 1.0
    while True:
        side = _even(extent, max(math.ceil(extent / count), _least(extent)))
        yield side
        if side <= _least(extent):
            return
        count = max(count * 1.2, len(edges(extent, side)))


def _even(extent: int, side: int) -> int:
    """Return the shortest side that cuts `extent` into as many parts as `side` does, a multiple of a unit if it can."""
    if extent == 0:
        return 1
    shortest = max(-(-extent // -(-extent // side)), _least(extent))
    unit = next((unit for unit in _UNITS if unit * 8 <= shortest), 1)
    return -(-shortest // unit) * unit


def _blocks(product: Product, tile_m: int, tile_n: int) -> tuple[int, int]:
    """Return a tile that is made of whole blocks of the store that the result goes to."""
    sides = zip((tile_m, tile_n), product.out.grain, strict=True)
    tall, wide = (-(-side // grain) * grain for side, grain in sides)
    return tall, wide


def _strips(product: Product) -> int:
    return _STRIPS if product.out.grain == (1, 1) else 1


def _whole(side: int) -> int:
    """Return the side, cut down to a multiple of a unit if it has one."""
    return side - side % next((unit for unit in _UNITS if unit * 8 <= side), 1)


def _least(extent: int) -> int:
    return max(min(extent, LEAST), 1)
