"""The plan of a large product: tiles, slices, order, buffers and traffic. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from gemmule.core.dataclass import dataclass

from ..stores.matrix import AnyDType, Finished
from .slots import Slots

#: Host memory that an executor takes for a sum of (m, k) by (k, n) slices, in bytes.
TileBytes = Callable[[int, int, int], int]


@dataclass(frozen=True)
class Operand:
    """An input or output as the plan sees it."""

    dtype: AnyDType  #: Element type.
    order: str = "C"  #: ``C`` where rows are contiguous, ``F`` where columns are.
    #: Bytes of an element as it is stored, where another type is stored than the one that is multiplied.
    stored: int | None = None
    block_shape: tuple[int, int] = (1, 1)  #: Rows and columns that the store reads or writes as a whole.

    @property
    def itemsize(self) -> int:
        """Bytes of an element in memory."""
        return self.dtype.itemsize

    @property
    def square_block(self) -> int:
        """Side of the smallest square of whole blocks: such tiles may be written transposed, too."""
        return math.lcm(*self.block_shape)

    @property
    def stored_itemsize(self) -> int:
        """Bytes of an element in its store."""
        return self.dtype.itemsize if self.stored is None else self.stored


@dataclass(frozen=True)
class Product:
    """The product to plan: C (m, n) = alpha * A (m, k) @ B (k, n) + beta * C0."""

    #: m, n, k: Extents; k is 0 where A and B are not read.
    m: int
    n: int
    k: int
    #: a, b: The operands.
    a: Operand
    b: Operand
    out: Operand  #: The result.
    c: Operand | None = None  #: The matrix that is added; None where none is read.


@dataclass(frozen=True)
class Step:
    """One slice of one tile: the sum of tile (i, j) takes A[rows, inner] @ B[inner, cols]."""

    i: int
    j: int
    s: int


@dataclass(frozen=True)
class StreamPlan:
    """A streamed product: each tile of the result stays in memory while slices of A and B are read."""

    product: Product  #: The product.
    #: tile_m, tile_n, tile_k: Extents of a tile of the result, and depth of a slice. The last ones may be smaller.
    tile_m: int
    tile_n: int
    tile_k: int
    by_rows: bool  #: Whether tiles follow each other along a row of tiles; else along a column.
    keep: bool  #: Whether the slices of A for a row of tiles (of B for a column) stay in memory until the next one.
    memory_bytes: int  #: All buffers together, those of the executor included.
    #: Whether B is the transpose of A, and no matrix is added: square tiles on and below the diagonal are computed, and
    #: mirrored.
    symmetric: bool = False

    @property
    def grid(self) -> tuple[int, int, int]:
        """Tiles along m and n, and slices along k."""
        product = self.product
        return parts(product.m, self.tile_m), parts(product.n, self.tile_n), parts(product.k, self.tile_k)

    @property
    def tiles(self) -> int:
        """Tiles of the result that are computed."""
        rows, cols, _ = self.grid
        return rows * (rows + 1) // 2 if self.symmetric else rows * cols

    @property
    def slots(self) -> tuple[int, int]:
        """Slices of A and of B that are in memory together."""
        return _slots(self.grid, self.by_rows, self.keep)

    @property
    def out_buffers(self) -> int:
        """Output tiles in memory together: one is written while the next one is computed."""
        return _out_buffers(self.grid, self.symmetric)

    def flaw(self, current: StreamPlan) -> str | None:
        """Say why no planner gives this plan for its product; None where it may. `current` is one for it.

        Whether a symmetric plan suits the inputs is not checked.
        """
        del current
        product = self.product
        sides = ("tile_m", product.m, product.out.block_shape[0]), ("tile_n", product.n, product.out.block_shape[1])
        for name, extent, block in (*sides, ("tile_k", product.k, 1)):
            value = getattr(self, name)
            if not 1 <= value <= max(extent, 1) or (value % block and value != extent):
                return f"{name} is {value}, of {extent} in blocks of {block}"
        if self.symmetric and (product.m != product.n or product.c or not product.k or self.tile_m != self.tile_n):
            return "symmetric is True, but the product, or its tiles, are not"
        least = memory_needed(
            product, (self.tile_m, self.tile_n, self.tile_k), by_rows=self.by_rows, keep=self.keep,
            tile_bytes=lambda *_: 0, symmetric=self.symmetric,
        )  # fmt: skip
        return f"memory_bytes is {self.memory_bytes}, less than {least}" if self.memory_bytes < least else None

    def rows(self, i: int) -> slice:
        """Rows of the tiles in row `i` of tiles."""
        return _part(i, self.tile_m, self.product.m)

    def cols(self, j: int) -> slice:
        """Columns of the tiles in column `j` of tiles."""
        return _part(j, self.tile_n, self.product.n)

    def inner(self, s: int) -> slice:
        """Depth that slice `s` covers."""
        return _part(s, self.tile_k, self.product.k)

    def order(self, finished: Finished | None = None) -> Iterator[tuple[int, int]]:
        """Yield the tiles (i, j) in the order of computing: back and forth, so that turns find slices in memory.

        Tiles in `finished` are left out.
        """
        rows, cols, _ = self.grid
        outer, inner = (rows, cols) if self.by_rows else (cols, rows)
        for band in range(outer):
            for position in range(inner) if band % 2 == 0 else range(inner - 1, -1, -1):
                i, j = (band, position) if self.by_rows else (position, band)
                if self.symmetric and i < j:
                    continue
                if finished is None or not self._there(i, j, finished):
                    yield i, j

    def _there(self, i: int, j: int, finished: Finished) -> bool:
        mirrored = not self.symmetric or finished(self.cols(j), self.rows(i))
        return finished(self.rows(i), self.cols(j)) and mirrored

    def steps(self, finished: Finished | None = None) -> Iterator[Step]:
        """Yield every slice of every tile in the order of computing; slices of a tile always ascend."""
        for i, j in self.order(finished):
            for s in range(self.grid[2]):
                yield Step(i, j, s)

    def bytes_read(self, finished: Finished | None = None) -> int:
        """Return the bytes that will be read, found by going through all steps."""
        product = self.product
        slots = [Slots(count) for count in self.slots]
        total = 0
        if product.c:
            total = sum(self.area(i, j) for i, j in self.order(finished)) * product.c.stored_itemsize
        for step in self.steps(finished):
            depth = _length(self.inner(step.s))
            if not slots[0].claim((step.i, step.s))[1]:
                total += depth * _length(self.rows(step.i)) * product.a.stored_itemsize
            if not slots[1].claim((step.s, step.j))[1]:
                total += depth * _length(self.cols(step.j)) * product.b.stored_itemsize
        return total

    def bytes_written(self, finished: Finished | None = None) -> int:
        """Return the bytes that will be written, headers aside."""
        areas = (self.area(i, j) * (2 if self.symmetric and i != j else 1) for i, j in self.order(finished))
        return sum(areas) * self.product.out.itemsize

    def area(self, i: int, j: int) -> int:
        """Return the elements of tile (i, j)."""
        return _length(self.rows(i)) * _length(self.cols(j))


def memory_needed(
    product: Product,
    tile: tuple[int, int, int],
    *,
    by_rows: bool,
    keep: bool,
    tile_bytes: TileBytes,
    symmetric: bool = False,
) -> int:
    """Return the bytes of all buffers that a plan with such tiles takes, those of the executor included."""
    tile_m, tile_n, tile_k = tile
    grid = parts(product.m, tile_m), parts(product.n, tile_n), parts(product.k, tile_k)
    a_slots, b_slots = _slots(grid, by_rows, keep)
    return (
        a_slots * tile_m * tile_k * product.a.itemsize
        + b_slots * tile_k * tile_n * product.b.itemsize
        + _out_buffers(grid, symmetric) * tile_m * tile_n * product.out.itemsize
        + (tile_m * tile_n * product.c.itemsize if product.c else 0)
        + tile_bytes(tile_m, tile_n, tile_k)
    )


def _out_buffers(grid: tuple[int, int, int], symmetric: bool) -> int:
    """Return how many tiles of the result are in memory together: a mirrored one has a buffer of its own."""
    return min(2 + symmetric, grid[0] * grid[1])


def _slots(grid: tuple[int, int, int], by_rows: bool, keep: bool) -> tuple[int, int]:
    """Return the slots of A and B: one spare slot takes the next slice while the current one is used."""
    rows, cols, depth = grid
    outer, inner = (rows, cols) if by_rows else (cols, rows)
    retained = min(outer * depth, depth + 1) if keep else min(outer * depth, 2)
    streamed = min(inner * depth, 2)
    return (retained, streamed) if by_rows else (streamed, retained)


def parts(extent: int, part: int) -> int:
    """Return how many parts of that length, the last one perhaps shorter, cover `extent`."""
    return -(-extent // part) if extent else 0


def _part(index: int, part: int, extent: int) -> slice:
    return slice(index * part, min((index + 1) * part, extent))


def _length(part: slice) -> int:
    return int(part.stop - part.start)
