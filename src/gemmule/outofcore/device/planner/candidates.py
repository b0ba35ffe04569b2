"""Plans that may suit a product: strategies, tiles and slices that fit into a device's memory."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator

from ...stores.matrix import AnyDType
from ...tiles.plan import Product, parts
from .plan import FIVE_BUFFERS, PANELS, RESIDENT, DevicePlan

#: Rows and columns that a CTA computes, and how many run at a time; zeros where that is not known.
Waves = tuple[int, int, int]

#: Smallest side of a tile and depth of a slice that is planned.
LEAST = 16
#: Sides are multiples of the first of these that is at most an eighth of them, so that kernels work on whole tiles.
_UNITS = (256, 128, 64, 32, 16)
#: Depths of a slice that are tried.
_DEPTHS = (8192, 4096, 2048, 1024, 512, 256, 64, LEAST)
#: Deeper ones, with which sums in strips are fewer operations.
_DEEPER = (32768, 16384)
#: Widths of tiles that are tried of those that fit, the widest ones.
_MOST_WIDTHS = 12
#: A side of square tiles that nearly fill whole waves of the CTAs of large kernels, and more than one.
_WAVES = 4096
#: Most buffers of panels of one side.
_MOST_PANELS = 128
_STRIPS = 8
#: Heights of the strips that tiles on the diagonal are computed in, and streams that compute them concurrently.
_CUTS, _LANES = (2048, 1024, 512), 4
#: Two are enough where a tile on the diagonal is one product.
_FEW_LANES = 2


def candidates(
    strategy: str,
    product: Product,
    sum_dtype: AnyDType,
    memory: int,
    symmetric: bool,
    waves: Waves = (0, 0, 0),
    widest: int | None = None,
    stairs: int = 0,
) -> Iterator[DevicePlan]:
    """Yield plans that may fit, among them always the one that takes least.

    `waves` and `stairs` are those of `Rates`; of tiles wider than `widest` none is tried.
    """
    found = _candidates(strategy, product, sum_dtype, memory, symmetric, waves, widest, stairs)
    yield from (plan for plan in found if widest is None or plan.result_width <= widest)


def _candidates(
    strategy: str,
    product: Product,
    sum_dtype: AnyDType,
    memory: int,
    symmetric: bool,
    waves: Waves,
    widest: int | None,
    stairs: int,
) -> Iterator[DevicePlan]:
    if strategy == PANELS:
        yield from _panels(product, sum_dtype, memory, waves)
        return
    if strategy == RESIDENT:
        yield from _resident(product, sum_dtype, memory, stairs)
        return
    # One of three tiles arrives as addend while another one leaves.
    counts = (1,) if strategy == FIVE_BUFFERS else (3, 2, 1) if product.c else (2, 1)
    sums = sum_dtype.name
    for depth in _depths(product.k, _deep(product.k, stairs) if symmetric else ()):
        for c_tiles in counts:

            def made(tile_m: int, tile_n: int, depth: int = depth, c_tiles: int = c_tiles) -> DevicePlan:
                side = _square(product, tile_m)
                tile = (side, side) if symmetric else _blocks(product, tile_m, tile_n)
                tiles = (parts(product.m, tile_m) + 1) * (parts(product.n, tile_n) + 1)
                # A tile alone needs no buffers for others.
                alone = symmetric and side >= product.m
                tiles = 1 if alone else tiles
                strips = 1 if strategy == FIVE_BUFFERS else _strips(product)
                plan = DevicePlan(
                    product, sums, strategy, *tile, depth, min(c_tiles, tiles),
                    (2 if alone else 4, 0) if symmetric else (2, 2), symmetric=symmetric, strips=strips,
                )  # fmt: skip
                return _in_strips(plan, stairs)

            yield from _tallest(product, made, memory, widest, square=symmetric)


def _tallest(
    product: Product, made: Callable[[int, int], DevicePlan], memory: int, widest: int | None, *, square: bool
) -> Iterator[DevicePlan]:
    """Yield, for tiles of several widths, the plan with the tallest ones that fit, and the smallest of all."""
    yield made(_least(product.m), _least(product.n))
    fitting = 0
    for width in _sides(product.n):
        # Those count that fit into the host's buffers too.
        if widest is not None and width > widest:
            continue
        if square:
            yield made(width, width)
            continue
        if fitting == _MOST_WIDTHS:
            return
        low, high = _least(product.m), max(product.m, 1)
        if made(low, width).device_bytes > memory:
            continue
        if made(high, width).device_bytes <= memory:
            # As where the device has room for all: nothing is to be searched for.
            low = high
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if made(middle, width).device_bytes <= memory else (low, middle - 1)
        fitting += 1
        yield made(_whole(low), width)
        yield made(_even(product.m, low), width)
        for part in (2, 4, 8):
            yield made(_even(product.m, max(low // part, 1)), width)


def _panels(product: Product, sum_dtype: AnyDType, memory: int, waves: Waves) -> Iterator[DevicePlan]:
    """Yield plans in which panels of one side stay; the whole depth is one slice."""
    depth = max(product.k, 1)

    def made(tile_m: int, tile_n: int, slots: tuple[int, int], stationary: str) -> DevicePlan:
        tile = _blocks(product, tile_m, tile_n)
        return DevicePlan(
            product, sum_dtype.name, PANELS, *tile, depth, 2, slots, stationary, strips=_strips(product)
        )  # fmt: skip

    yield made(_least(product.m), _least(product.n), (1, 1), "a")
    for tile_m, tile_n in _panel_sides(product, waves):
        small = made(tile_m, tile_n, (2, 2), "a")
        if small.device_bytes > memory:
            continue
        a_size, b_size = (small.buffers[name][1] for name in "ab")
        grid = small.grid
        for stationary in ("a", "b"):
            outer, inner = grid[:2] if stationary == "a" else grid[1::-1]
            stay_size, pass_size = (a_size, b_size) if stationary == "a" else (b_size, a_size)
            free = memory - small.device_bytes + 2 * a_size + 2 * b_size
            most = (free - stay_size) // pass_size
            for passing in {2, 3, 4, 6, 8, most // 4 + 1, most // 2}:
                stays = min(outer, (free - passing * pass_size) // stay_size, _MOST_PANELS)
                if stays >= 1 and passing >= 1:
                    slots = (stays, min(passing, inner))
                    yield made(tile_m, tile_n, slots if stationary == "a" else slots[::-1], stationary)


def _panel_sides(product: Product, waves: Waves) -> Iterator[tuple[int, int]]:
    """Yield heights of panels of A and widths of panels of B.

    Wide panels of B (high ones of A, where its columns are contiguous) have longer lines to copy.
    """
    for side in (8192, 4096, 2048, 1024, 512, 256, 128, 64, LEAST):
        sides = [(side, side)]
        if side >= 1024:
            sides += [(side, 2 * side), (2 * side, side), (side, 4 * side), (4 * side, side)]
            # Whole lines, as files are read and written fastest.
            sides += [(side, product.n), (product.m, side)]
        for pair in sides:
            tile_m, tile_n = (
                _even(extent, min(one, max(extent, 1)))
                for extent, one in zip((product.m, product.n), pair, strict=True)
            )
            yield tile_m, tile_n
    for tall, wide in _whole_waves(waves):
        for across, along in itertools.product(range(1, 7), repeat=2):
            tile_m, tile_n = across * tall, along * wide
            if tile_m <= product.m and tile_n <= product.n and max(tile_m, tile_n) <= 4 * min(tile_m, tile_n):
                yield tile_m, tile_n


def _whole_waves(waves: Waves) -> list[tuple[int, int]]:
    """Return the sides of products that are one wave of CTAs, if not much longer than wide."""
    tall, wide, ctas = waves
    sides = [(rows * tall, ctas // rows * wide) for rows in range(1, ctas + 1) if ctas % rows == 0]
    return [(one, other) for one, other in sides if max(one, other) <= 3 * min(one, other)]


def _resident(product: Product, sum_dtype: AnyDType, memory: int, stairs: int) -> Iterator[DevicePlan]:
    """Yield plans in which all tiles on and below the diagonal stay."""
    for depth in _depths(product.k, _deep(product.k, stairs)):
        sides = set(_sides(product.m)) | {max(product.m, 1)} | {min(_WAVES, max(product.m, 1))}
        for side in sorted({_square(product, side) for side in sides}, reverse=True):
            count = parts(product.m, side)
            if count <= 64:
                plan = DevicePlan(
                    product, sum_dtype.name, RESIDENT, side, side, depth, max(count * (count + 1) // 2, 1),
                    (2 * max(count, 1), 0), symmetric=True, strips=_strips(product),
                )  # fmt: skip
                plan = _in_strips(plan, stairs)
                if plan.device_bytes <= memory or memory == 0:
                    yield plan


def _depths(extent: int, more: tuple[int, ...] = ()) -> list[int]:
    """Return the depths of a slice that are tried, each at most the extent."""
    return sorted({min(depth, max(extent, 1)) for depth in (*more, *_DEPTHS)}, reverse=True)


def _deep(extent: int, stairs: int) -> tuple[int, ...]:
    """Return further depths of a symmetric plan; with few products on the diagonal also those that cut K evenly."""
    even = [-(-extent // parts // _DEPTHS[-2]) * _DEPTHS[-2] for parts in (2, 3, 4, 6)] if stairs else []
    return (*_DEEPER, *(depth for depth in even if depth >= _DEPTHS[2]))


def _sides(extent: int) -> Iterator[int]:
    """Yield sides of a tile, longest first, each cutting the extent evenly."""
    count = 1.0
    while True:
        side = _even(extent, max(math.ceil(extent / count), _least(extent)))
        yield side
        if side <= _least(extent):
            return
        count = max(count * 1.2, parts(extent, side) + 1)


def _even(extent: int, side: int) -> int:
    """Return the shortest side that cuts `extent` into as many parts as `side` does, a multiple of a unit if it can."""
    if extent == 0:
        return 1
    shortest = max(-(-extent // -(-extent // side)), _least(extent))
    unit = next((unit for unit in _UNITS if unit * 8 <= shortest), 1)
    return -(-shortest // unit) * unit


def _square(product: Product, side: int) -> int:
    """Return the side of a square tile of whole blocks, also where it is written transposed; at most the whole."""
    block = product.out.square_block
    return min(-(-side // block) * block, max(product.m, 1)) if block > 1 else side


def _blocks(product: Product, tile_m: int, tile_n: int) -> tuple[int, int]:
    """Return a tile that is made of whole blocks of the store that the result goes to."""
    sides = zip((tile_m, tile_n), product.out.block_shape, strict=True)
    tall, wide = (-(-side // block) * block for side, block in sides)
    return tall, wide


def _in_strips(plan: DevicePlan, stairs: int) -> DevicePlan:
    """Return the plan with strips of the tiles on the diagonal, where it is symmetric and they would not be thin."""
    cut = next((cut for cut in strips_of(plan.product) if 4 * cut <= plan.tile_m), 0)
    if not (plan.symmetric and cut):
        return plan
    return dataclasses.replace(plan, cut=cut, lanes=_FEW_LANES if stairs else _LANES, stairs=stairs)


def strips_of(product: Product) -> list[int]:
    """Return the heights of strips that are tried, highest first: whole blocks of the store of the result."""
    block = product.out.block_shape[0]
    return [-(-cut // block) * block for cut in _CUTS]


def _strips(product: Product) -> int:
    return _STRIPS if product.out.block_shape == (1, 1) else 1


def _whole(side: int) -> int:
    """Return the side, cut down to a multiple of a unit if it has one."""
    return side - side % next((unit for unit in _UNITS if unit * 8 <= side), 1)


def _least(extent: int) -> int:
    return max(min(extent, LEAST), 1)
