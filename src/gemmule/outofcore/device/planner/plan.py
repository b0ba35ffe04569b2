"""The plan of a product through a device: tiles, slices, buffers. Pure arithmetic."""

from __future__ import annotations

import collections
import functools
import itertools
import math
from collections.abc import Container, Iterator

from gemmule.core.block_triangle import STEP, BlockTriangle
from gemmule.core.dataclass import dataclass

from ....core.dtype import numpy_dtype
from ....executor.streams import matrix_bytes
from ...stores.matrix import AnyDType
from ...tiles.plan import Product, parts
from .operation import LANES
from .panel_order import panel_order
from .part_edges import edges, ramped

#: Strategies, by the matrix that stays on the device while the others are streamed.
FIVE_BUFFERS, C_STATIONARY, PANELS, RESIDENT = "five-buffers", "c-stationary", "panels", "resident-c"
STRATEGIES = (FIVE_BUFFERS, C_STATIONARY, PANELS, RESIDENT)
#: The first panel of rows, that of columns, and the first slice are cut into parts that double from one in so many on,
#: so that computing begins early. Every part of a panel takes a whole buffer.
RAMPS = (4, 4, 16)


@dataclass(frozen=True)
class Step:
    """One product on the device: the sum of tile (i, j) takes A[rows of i, inner] @ B[inner, columns of j]."""

    i: int
    j: int
    inner: tuple[int, int]
    first: bool
    last: bool


@dataclass(frozen=True)
class DevicePlan:
    """A product's plan through a device."""

    product: Product  #: The product.
    sums: str  #: Type that slices are summed in.
    #: ``five-buffers``: one tile of C and two slices of A and B, tiles by rows. ``c-stationary``: tiles of C stay while
    #: slices pass by, back and forth. ``panels``: panels of A (or of B) with the whole depth stay while panels of the
    #: other pass by. ``resident-c``: all tiles of C stay, and each slice comes once.
    strategy: str
    #: tile_m, tile_n, tile_k: Extents of a tile of C and depth of a slice; the last ones may be smaller.
    tile_m: int
    tile_n: int
    tile_k: int
    c_tiles: int  #: Tiles of C on the device together.
    #: Slices (or panels) of A and of B on the device together; where `symmetric`, those of the one matrix, and 0.
    slots: tuple[int, int]
    stationary: str = "a"  #: For panels: ``a`` or ``b``, whichever stays.
    #: Whether B is the transpose of A: only tiles on and below the diagonal are computed, and mirrored.
    symmetric: bool = False
    #: Parts in which the last tile is finished, so that the first of them leave while the others are computed.
    strips: int = 1
    #: Smallest part of the first panel of rows, of the first panel of columns, and of the first slice: one in so many.
    ramps: tuple[int, int, int] = RAMPS
    #: Panels that stay first, fewer than later: the others are loaded while there is something to compute. 0 for as
    #: many as later.
    opening: int = 0
    #: Devices that share the tiles: slices of the first tile of each come in parts, whoever computes it.
    devices: int = 1
    #: Height of the strips that a symmetric plan's tiles on the diagonal are computed in, each as wide as the triangle
    #: is there; 0 for whole tiles.
    cut: int = 0
    #: Streams that compute concurrently: products of different parts of the result, so that one fills what another
    #: one leaves idle at its end.
    lanes: int = 1
    #: Block size of kernels that compute the block lower triangle only; else 0. Then a tile on
    #: the diagonal is one product, but the last slice of the last tile, whose strips leave one after another.
    stairs: int = 0

    def __post_init__(self) -> None:
        # A plan that comes out of a journal has lists.
        object.__setattr__(self, "slots", tuple(self.slots))
        object.__setattr__(self, "ramps", tuple(self.ramps))

    def flaw(self, current: DevicePlan) -> str | None:
        """Say why no planner gives this plan for its product; None where it may. `current` is one for it.

        Whether a symmetric plan suits the inputs is not checked.
        """
        for name, allowed in self._allowed(current).items():
            value = getattr(self, name)
            if value not in allowed:
                return f"{name} is {value!r}"
        product, (a_slots, b_slots) = self.product, self.slots
        square = product.m == product.n and product.c is None and product.k > 0 and self.tile_m == self.tile_n
        if self.symmetric and not square:
            return "symmetric is True, but the product, or its tiles, are not"
        for side, extent, block in zip(
            (self.tile_m, self.tile_n), (product.m, product.n), product.out.block_shape, strict=True
        ):
            if side % block and side < extent:
                return f"tiles of {self.tile_m} x {self.tile_n} cut through blocks of {product.out.block_shape}"
        if self.strategy == RESIDENT:
            enough = self.c_tiles >= self.tiles and a_slots >= 2 * self.grid[0] and b_slots == 0
        elif self.strategy == PANELS:
            enough = self.tile_k >= product.k and min(self.slots) >= 1
        else:
            enough = self.slots == ((2 if self.tiles == 1 else 4, 0) if self.symmetric else (2, 2))
        return (
            None if enough else f"its buffers (slots are {self.slots}, c_tiles is {self.c_tiles}) are too few or many"
        )

    def _allowed(self, current: DevicePlan) -> dict[str, Container[object]]:
        """Return the values that each field may have where `current` is a plan of the same product."""
        triangle = (C_STATIONARY, RESIDENT)
        shares = list(itertools.product([1 << power for power in range(7)], repeat=3))
        most = range(1, 1 << 40)
        block_shape = self.product.out.block_shape
        return {
            "sums": (current.sums,),
            "strategy": triangle if self.symmetric else (FIVE_BUFFERS, C_STATIONARY, PANELS),
            **dict.fromkeys(("tile_m", "tile_n", "tile_k", "c_tiles"), most),
            "stationary": ("a", "b"),
            "strips": range(1, 257 if block_shape == (1, 1) else 2),
            "ramps": shares,
            "opening": range(1 << 20),
            "devices": range(1, 1 << 16),
            "cut": range(0, self.tile_m, block_shape[0]) if self.symmetric else (0,),
            "lanes": range(1, len(LANES) + 1),
            "stairs": (0, STEP, current.stairs),
        }

    @functools.cached_property
    def sum_dtype(self) -> AnyDType:
        """Type that slices are summed in."""
        return numpy_dtype(self.sums)

    @functools.cached_property
    def row_edges(self) -> tuple[int, ...]:
        """Rows at which tiles begin, and the end."""
        return self._edges(self.product.m, self.tile_m, self.ramps[0])

    @functools.cached_property
    def col_edges(self) -> tuple[int, ...]:
        """Columns at which tiles begin, and the end."""
        return self._edges(self.product.n, self.tile_n, self.ramps[1])

    @functools.cached_property
    def inner_edges(self) -> tuple[int, ...]:
        """Depths at which slices begin, and the end."""
        return edges(self.product.k, self.tile_k)

    def _edges(self, extent: int, part: int, share: int) -> tuple[int, ...]:
        # Stores that are written in blocks take tiles that are multiples of them.
        ramp = self.strategy == PANELS and self.product.out.block_shape == (1, 1)
        return ramped(edges(extent, part), share if ramp else 1)

    @functools.cached_property
    def grid(self) -> tuple[int, int, int]:
        """Tiles along m and n, and slices along k."""
        product = self.product
        if self.strategy == PANELS:
            return len(self.row_edges) - 1, len(self.col_edges) - 1, parts(product.k, self.tile_k)
        # Plans that are compared are many: not all of them need to know where their tiles begin.
        return parts(product.m, self.tile_m), parts(product.n, self.tile_n), parts(product.k, self.tile_k)

    @property
    def tiles(self) -> int:
        """Tiles of C that are computed."""
        rows, cols, _ = self.grid
        return rows * (rows + 1) // 2 if self.symmetric else rows * cols

    @property
    def converts_results(self) -> bool:
        """Whether sums and results have different types, so that a finished tile is converted into another buffer."""
        return self.sum_dtype != self.product.out.dtype and self.grid[2] > 1

    @property
    def serpentine(self) -> bool:
        """Whether tiles and slices go back and forth."""
        return self.strategy != FIVE_BUFFERS

    def rows(self, i: int) -> slice:
        """Rows of the tiles in row `i` of tiles."""
        return slice(self.row_edges[i], self.row_edges[i + 1])

    def cols(self, j: int) -> slice:
        """Columns of the tiles in column `j` of tiles."""
        return slice(self.col_edges[j], self.col_edges[j + 1])

    @functools.cached_property
    def buffers(self) -> dict[str, tuple[int, int]]:
        """Number and bytes of the device's buffers, by content."""
        product, (a_slots, b_slots) = self.product, self.slots
        sums = self.sum_dtype if self.grid[2] > 1 else product.out.dtype
        c_in = product.c.dtype if product.c else sums
        found = {
            "a": (a_slots, matrix_bytes(self.tile_m, self.tile_k, product.a.itemsize, product.a.order)),
            "b": (b_slots, matrix_bytes(self.tile_k, self.tile_n, product.b.itemsize, product.b.order)),
            "sum": (self.c_tiles, matrix_bytes(self.tile_m, self.tile_n, sums.itemsize)),
        }
        if self.converts_results:
            size = matrix_bytes(self.tile_m, self.tile_n, product.out.itemsize)
            found["out"] = (min(2, self.tiles), size)
        if product.c and (c_in != sums or product.c.order == "F"):
            found["c"] = (1, matrix_bytes(self.tile_m, self.tile_n, c_in.itemsize, product.c.order))
        if self.symmetric and self.tiles > 1:
            # Tiles that all stay are finished close together.
            size = matrix_bytes(self.tile_n, self.tile_m, product.out.itemsize)
            found["mirror"] = (2 if self.strategy == RESIDENT and self.tiles > 3 else 1, size)
        return found

    @property
    def result_width(self) -> int:
        """Most columns that a part of the result has when it leaves the device."""
        return min(max(self.tile_n, self.tile_m if self.symmetric else 0), self.product.n)

    @functools.cached_property
    def host_lines(self) -> dict[str, float]:
        """Bytes of the lines that a whole piece of each matrix has in host memory; infinite where they join."""
        product = self.product
        found = {}
        for name, operand, across, along in (
            ("a", product.a, (self.tile_m, product.m), (self.tile_k, product.k)),
            ("b", product.b, (self.tile_k, product.k), (self.tile_n, product.n)),
            ("out", product.out, (self.tile_m, product.m), (self.tile_n, product.n)),
        ):
            length, extent = along if operand.order == "C" else across
            found[name] = math.inf if length >= extent else float(length * operand.itemsize)
        return found

    @property
    def memory_bytes(self) -> int:
        """Device memory of all buffers, under the name that a plan without a device has for its memory."""
        return self.device_bytes

    @property
    def device_bytes(self) -> int:
        """Device memory of all buffers."""
        return sum(count * size for count, size in self.buffers.values())

    def order(self) -> Iterator[tuple[int, int]]:
        """Yield the tiles in the order in which they are begun."""
        if self.strategy == PANELS:
            by_rows = self.stationary == "a"
            sides = [
                [end - start for start, end in itertools.pairwise(one)] for one in (self.row_edges, self.col_edges)
            ]
            outer, inner = sides if by_rows else sides[::-1]
            held = self.slots if by_rows else self.slots[::-1]
            for stays, passes in panel_order(outer, inner, *held, self.opening):
                yield (stays, passes) if by_rows else (passes, stays)
            return
        for i in range(self.grid[0]):
            for j in self._line(i):
                yield i, j

    def _line(self, i: int) -> range:
        """Return the columns of the tiles of row `i` in the order in which they are begun, where tiles go by rows."""
        rows, cols, _ = self.grid
        # The last tile of a symmetric plan is on the diagonal: a mirrored one leaves only when it is complete.
        odd = (rows - 1) % 2 if self.symmetric else 0
        line = range(i + 1) if self.symmetric else range(cols)
        return line[::-1] if self.serpentine and i % 2 != odd else line

    def steps(self) -> Iterator[Step]:
        """Yield every product in order."""
        if self.strategy == RESIDENT:
            yield from self._slice_by_slice()
            return
        regular = list(itertools.pairwise(self.inner_edges)) or [(0, 0)]
        back = False
        for i, j in self.order():
            if (i, j) in self.first_tiles:
                slices, back = self.first_slices(), False
            else:
                slices = regular[::-1] if back else regular
            back = not back and self.serpentine
            for place, inner in enumerate(slices):
                yield Step(i, j, inner, place == 0, place == len(slices) - 1)

    @functools.cached_property
    def first_tiles(self) -> frozenset[tuple[int, int]]:
        """Tiles that a device begins with, whose first slice comes in parts."""
        if self.strategy != C_STATIONARY:
            return frozenset()
        # A candidate may have millions of tiles: only rows of tiles in which a device's share begins are gone through.
        areas = [self._line_area(i) for i in range(self.grid[0])]
        total, before, last = sum(areas), 0, -1
        found = []
        for i, whole in enumerate(areas):
            end, line = before + whole, self._line(i)
            final = i, line[-1] if line else 0
            if not line or self._device(end - self.area(final), final, self.devices, total) == last:
                before = end
                continue
            for tile in zip(itertools.repeat(i), line):
                device = self._device(before, tile, self.devices, total)
                if device != last:
                    found.append(tile)
                last, before = device, before + self.area(tile)
        return frozenset(found)

    @functools.cached_property
    def last_tiles(self) -> frozenset[tuple[int, int]]:
        """Tiles that the plan's devices end with, each the last one of a share."""
        if self.devices == 1:
            return frozenset(collections.deque(self.order(), maxlen=1))
        return frozenset(share[-1] for share in self.shares(self.devices) if share)

    def shares(self, count: int, done: Container[tuple[int, int]] = ()) -> list[list[tuple[int, int]]]:
        """Return the tiles of each of several devices in order: runs of areas as even as whole tiles allow.

        Parameters
        ----------
        count : int
            Devices.
        done : container of tuple of int
            Tiles that are there already; what is left is shared.
        """
        left = [tile for tile in self.order() if tile not in done]
        total = sum(self.area(tile) for tile in left)
        found: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        before = 0
        for tile in left:
            found[self._device(before, tile, count, total)].append(tile)
            before += self.area(tile)
        return found

    def _device(self, before: int, tile: tuple[int, int], count: int, total: int) -> int:
        """Return the device that a tile belongs to, by its middle; `before` elements precede it, of `total`."""
        return min((2 * before + self.area(tile)) * count // (2 * max(total, 1)), count - 1)

    def _line_area(self, i: int) -> int:
        """Return the elements that are computed of row `i` of tiles."""
        rows = self.rows(i)
        if not self.symmetric:
            return int(rows.stop - rows.start) * self.product.n
        return int(rows.stop - rows.start) * int(rows.start) + self.area((i, i))

    def area(self, tile: tuple[int, int]) -> int:
        """Return the elements of a tile that are computed."""
        rows, cols = self.rows(tile[0]), self.cols(tile[1])
        if self.in_strips(tile):
            if self.stairs:
                return BlockTriangle(0, self.stairs).tiles(rows.stop - rows.start, cols.stop - cols.start)
            return sum((stop - start) * (stop - int(rows.start)) for start, stop in self.diagonal(tile[0]))
        return int((rows.stop - rows.start) * (cols.stop - cols.start))

    def in_strips(self, tile: tuple[int, int]) -> bool:
        """Whether a tile lies on the diagonal and is computed in strips."""
        return bool(self.cut) and self.symmetric and tile[0] == tile[1]

    def diagonal(self, i: int) -> list[tuple[int, int]]:
        """Return the rows of the strips of tile (i, i), the last strip first.

        A strip's rows are whole once those below it are mirrored: so they leave one after another, in whole lines.
        """
        rows = self.rows(i)
        if self.stairs and i < self.grid[0] - 1:
            return [(int(rows.start), int(rows.stop))]
        # Whole steps of the staircase that other slices have.
        height = math.lcm(self.cut, max(self.stairs, 1))
        tops = range(int(rows.start), int(rows.stop), height)
        return [(top, min(top + height, int(rows.stop))) for top in reversed(tops)]

    @functools.cached_property
    def computed(self) -> tuple[int, int]:
        """Elements of the result that are computed, and the products that each slice takes for them."""
        rows, cols, _ = self.grid
        if not self.symmetric:
            return self.product.m * self.product.n, rows * cols
        if not rows:
            return 0, 0
        # All tiles on the diagonal but the last one are alike: a plan that is tried may have thousands.
        side, last = (int(own.stop - own.start) for own in (self.rows(0), self.rows(rows - 1)))
        area = side * side * (rows - 1) * (rows - 2) // 2 + last * side * (rows - 1)
        products = rows * (rows - 1) // 2
        for i, count in ((0, rows - 1), (rows - 1, 1)):
            area += count * self.area((i, i))
            products += count * (len(self.diagonal(i)) if self.in_strips((i, i)) and not self.stairs else 1)
        return area, products

    def below(self, i: int, rows: tuple[int, int]) -> BlockTriangle | None:
        """Return the needed part of those rows of tile (i, i); None where all of a strip is computed."""
        return BlockTriangle(rows[0] - int(self.rows(i).start), self.stairs) if self.stairs else None

    def first_slices(self) -> list[tuple[int, int]]:
        """Return the slices of a tile that a device begins with: the first one in parts."""
        # A depth that is not cut at all is not summed in the accumulator's type.
        cut = self.grid[2] > 1 or self.sum_dtype == self.product.out.dtype
        return list(itertools.pairwise(ramped(self.inner_edges, self.ramps[2] if cut else 1))) or [(0, 0)]

    def _slice_by_slice(self) -> Iterator[Step]:
        slices = self.first_slices()
        for place, inner in enumerate(slices):
            for i, j in self.order():
                yield Step(i, j, inner, place == 0, place == len(slices) - 1)
