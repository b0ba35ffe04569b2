"""Places of tiles in the buffers on a device."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from ....executor.streams import DeviceMatrix, DeviceProduct, DeviceStreams
from ..planner.operation import Convert, Mirror, Multiply, Reflect, Slice, Store
from ..planner.plan import DevicePlan
from .staging import Part

#: Factors, target, alpha, beta and what is added.


#: Kinds of buffers of which one is allocated before anything else: the first copies would be slower during it.
FIRST = ("a", "b", "sum")


class _Kind:
    """Buffers of one size. Each is allocated at its first use: most of that overlaps with products."""

    def __init__(self, device: DeviceStreams, count: int, nbytes: int) -> None:
        self._device, self._nbytes = device, nbytes
        self._found: list[Any] = [None] * count
        self._lock = threading.Lock()

    def __getitem__(self, slot: int) -> Any:
        with self._lock:
            if self._found[slot] is None:
                self._found[slot] = self._device.allocate(self._nbytes)
            return self._found[slot]


class Buffers:
    """The buffers of a plan, and the matrices in them."""

    def __init__(self, plan: DevicePlan, device: DeviceStreams) -> None:
        self.plan = plan
        self._whole = device.whole
        self.buffers = {name: _Kind(device, *sizes) for name, sizes in plan.buffers.items()}
        for name in FIRST:
            if plan.buffers[name][0]:
                _ = self.buffers[name][0]

    def order(self, operand: str) -> str:
        product = self.plan.product
        found = {"a": product.a, "b": product.b, "c": product.c}[operand]
        assert found is not None
        return found.order

    def products(self, op: Multiply, alpha: float | int, beta: float | int) -> Iterator[DeviceProduct]:
        """Yield the products that an operation is made of.

        Rows and columns beyond the end of a matrix are computed too where the buffers have room for them, so that
        kernels work on whole tiles: nobody looks at what becomes of them. A depth that is not whole is cut in two, but
        where the sum is rounded into the type of the result, which happens once.
        """
        rows, cols = self.tile(op)
        target = self.whole_tile("sum", op.target, op).part(rows, cols)
        beta, c = (1, target) if not op.first else (beta, None)
        if op.first and self.plan.product.c is not None:
            separate = "c" in self.buffers
            c = (self.whole_tile("c", 0, op) if separate else self.whole_tile("sum", op.target, op)).part(rows, cols)
        if c is None:
            beta = 0
        if op.inner[0] == op.inner[1]:
            alpha = 0
        name = "a" if self.plan.symmetric else "b"
        a = self._operand("a", op.a, op.rows, op.inner)
        b = self._operand(name, op.b, op.cols, op.inner)
        b = b.T if self.plan.symmetric else b
        m = _grown(rows, self.plan.rows(op.tile[0]), self.plan.tile_m, self._whole[0])
        n = _grown(cols, self.plan.cols(op.tile[1]), self.plan.tile_n, self._whole[1])
        if op.needed is not None and op.needed.first + m > n:
            m = target.rows
        target = target.shaped(m, n)
        # The strips of a tile take the kernel of the whole.
        like = (self.plan.tile_m, self.plan.tile_n) if self.plan.in_strips(op.tile) else None
        depth = op.inner[1] - op.inner[0]
        cut = depth - depth % self._whole[2] if target.dtype == self.plan.sum_dtype else 0
        for start, end in ((0, cut), (cut, depth)) if 0 < cut < depth else ((0, depth),):
            inner = slice(start, end)
            yield DeviceProduct(
                a.part(slice(0, a.rows), inner).shaped(m, end - start),
                b.part(inner, slice(0, b.cols)).shaped(end - start, n),
                target, alpha, 1 if start else beta, target if start else c and c.shaped(m, n), like, op.needed,
            )  # fmt: skip

    def _operand(self, name: str, held: Slice, outer: Part, inner: Part) -> DeviceMatrix:
        """Return the part of a slice that an operation takes."""
        whole = held.outer if self.plan.product.k else outer
        rows, cols = (whole, inner) if name == "a" else (inner, whole)
        matrix = self.piece(name, held.slot, rows, cols)
        along, depth = slice(outer[0] - whole[0], outer[1] - whole[0]), slice(0, inner[1] - inner[0])
        return matrix.part(along, depth) if name == "a" else matrix.part(depth, along)

    def tile(self, op: Multiply | Convert | Mirror | Reflect | Store) -> tuple[slice, slice]:
        """Return the part of a tile that an operation works on, within the tile."""
        top, left = self.plan.rows(op.tile[0]).start, self.plan.cols(op.tile[1]).start
        return slice(op.rows[0] - top, op.rows[1] - top), slice(op.cols[0] - left, op.cols[1] - left)

    def whole_tile(self, name: str, slot: int, op: Multiply | Convert | Mirror | Reflect | Store) -> DeviceMatrix:
        """Return a whole tile in a buffer."""
        plan = self.plan
        rows, cols = plan.rows(op.tile[0]), plan.cols(op.tile[1])
        out = plan.product.out.dtype
        dtype = {"out": out, "sum": plan.sum_dtype if plan.grid[2] > 1 else out}.get(name)
        if dtype is None:
            assert plan.product.c is not None
            dtype = plan.product.c.dtype
        buffer = self.buffers[name][slot]
        order = self.order("c") if name == "c" else "C"
        whole = DeviceMatrix.compact(buffer, dtype, plan.tile_m, plan.tile_n, order)
        return whole.shaped(rows.stop - rows.start, cols.stop - cols.start)

    def stored(self, op: Store) -> DeviceMatrix:
        """Return the source of a copy of a part of the result."""
        if op.mirrored:
            return self._mirror(op.source, op.rows, op.cols)
        rows, cols = self.tile(op)
        return self._finished(op, op.source).part(rows, cols)

    def mirrored(self, op: Mirror) -> tuple[DeviceMatrix, DeviceMatrix]:
        """Return where the transpose of a finished tile goes, and the tile."""
        return self._mirror(op.target, op.cols, op.rows), self._finished(op, op.source)

    def reflected(self, op: Reflect) -> tuple[DeviceMatrix, DeviceMatrix]:
        """Return where the transpose of a part of a tile on the diagonal goes, and the part."""
        rows, cols = self.tile(op)
        whole = self._finished(op, op.buffer)
        return whole.part(cols, rows), whole.part(rows, cols)

    def _mirror(self, slot: int, rows: Part, cols: Part) -> DeviceMatrix:
        plan, buffer = self.plan, self.buffers["mirror"][slot]
        whole = DeviceMatrix.compact(buffer, plan.product.out.dtype, plan.tile_n, plan.tile_m)
        return whole.shaped(rows[1] - rows[0], cols[1] - cols[0])

    def _finished(self, op: Mirror | Reflect | Store, slot: int) -> DeviceMatrix:
        """Return the tile in the type of the result."""
        return self.whole_tile("out" if self.plan.converts_results else "sum", slot, op)

    def piece(self, operand: str, slot: int, rows: tuple[int, int], cols: tuple[int, int]) -> DeviceMatrix:
        """Return a loaded piece in its buffer."""
        product = self.plan.product
        name = operand if operand in self.buffers else "sum"
        dtype = {"a": product.a, "b": product.b, "c": product.c}[operand]
        assert dtype is not None
        plan = self.plan
        sides = {"a": (plan.tile_m, plan.tile_k), "b": (plan.tile_k, plan.tile_n)}
        whole = sides.get(operand, (plan.tile_m, plan.tile_n))
        matrix = DeviceMatrix.compact(self.buffers[name][slot], dtype.dtype, *whole, self.order(operand))
        return matrix.shaped(rows[1] - rows[0], cols[1] - cols[0])


def _grown(part: slice, own: slice, side: int, unit: int) -> int:
    """Return the length of a part of a tile, rounded up to a multiple of `unit` if nothing of the tile follows.

    The buffer must have room for it: `side` is the buffer's extent, `own` the tile's place in the result.
    """
    length = int(part.stop - part.start)
    grown = -(-length // unit) * unit
    return grown if part.stop == own.stop - own.start and part.start + grown <= side else length
