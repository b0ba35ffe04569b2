"""Products of warpgroups (wgmma) that are under way, and when they take place.

The schedule says when: ``late``, at the wait for their group; ``eager``, at once; ``random``, at either.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from gemmule.vgpu.mma import descriptors, warpgroup
from gemmule.vgpu.mma.fragments import places_of_a

from .binder import SHARED_START
from .lanes import Lanes
from .types import Array

if TYPE_CHECKING:
    from .batch import Batch

#: Lanes and warps of a warpgroup.
LANES, WARPS = 128, 4


@dataclasses.dataclass(frozen=True)
class Form:
    """What one wgmma instruction multiplies.

    Attributes
    ----------
    n : int
        Columns of B and D.
    a_type, b_type, d_type : str
        Types as in PTX.
    d_rows : tuple of int
        Rows of the register file that hold D.
    a_rows : tuple of int
        Those that hold A; none where A is in shared memory.
    a_along_k, b_along_k : bool
        Whether the factors lie in shared memory along K.
    signs : tuple of int
        What the factors are multiplied with, 1 or -1.
    satfinite : bool
        Whether integers are clamped.
    """

    n: int
    a_type: str
    b_type: str
    d_type: str
    d_rows: tuple[int, ...]
    a_rows: tuple[int, ...]
    a_along_k: bool
    b_along_k: bool
    signs: tuple[int, int]
    satfinite: bool


@dataclasses.dataclass
class Product:
    """A wgmma of some warpgroups.

    Attributes
    ----------
    form : Form
        The instruction.
    lanes : array of int
        First lane of each warpgroup.
    group : array of int
        For each of them, which of its groups the product belongs to.
    a, b : array of int64 or None
        Rows of 16 bytes of the batch's shared memory that hold the factors: (warpgroups, …); None for A in registers.
    adds : array of bool
        For each warpgroup, whether D is added to.
    """

    form: Form
    lanes: Array
    group: Array
    a: Array | None
    b: Array
    adds: Array

    def part(self, mask: Array) -> Product:
        """Return the products of some of the warpgroups."""
        a = None if self.a is None else self.a[mask]
        return Product(self.form, self.lanes[mask], self.group[mask], a, self.b[mask], self.adds[mask])


class Warpgroups:
    """The products of a batch that are under way.

    Parameters
    ----------
    batch : Batch
        The CTAs.

    Attributes
    ----------
    committed : array of int
        For each warp, how many groups it has made.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._pending: list[Product] = []
        self.committed = np.zeros(batch.lane_count // 32, np.int64)
        self._schedule = batch.setting.schedule

    def issue(self, product: Product) -> None:
        """Begin a product; those of a warpgroup take place in order."""
        self._pending.append(product)
        if self._schedule == "eager" or (self._schedule == "random" and self._batch.random.random() < 0.3):
            done, self._pending = self._pending, []
            self._perform(done)

    def commit(self, lanes: Lanes) -> None:
        """Make the products since the last commit a group."""
        self.committed[np.unique(lanes.pick(self._batch.warp_of_lane))] += 1

    def wait(self, lanes: Lanes, left: int) -> None:
        """Complete all but the last `left` groups of these warps."""
        if not self._pending:
            return
        warps = np.unique(lanes.pick(self._batch.warp_of_lane))
        limit = np.full(len(self.committed), -1, np.int64)
        limit[warps] = self.committed[warps] - left - 1
        due_now, still = [], []
        for product in self._pending:
            first = product.lanes // 32
            due = np.asarray((product.group[:, None] <= limit[first[:, None] + np.arange(WARPS)]).any(axis=1))
            if due.any():
                due_now.append(product if due.all() else product.part(due))
            if not due.all():
                still.append(product if not due.any() else product.part(~due))
        self._pending = still
        self._perform(due_now)

    def finish(self) -> None:
        """Complete what nobody waited for."""
        done, self._pending = self._pending, []
        self._perform(done)

    def _perform(self, products: list[Product]) -> None:
        """Multiply, now; D stays a matrix until all are done or its registers are needed otherwise."""
        held: dict[tuple[tuple[int, ...], bytes], tuple[Product, Array]] = {}
        for product in products:
            form, key = product.form, (product.form.d_rows, product.lanes.tobytes())
            if key not in held:
                self._give_back(held, set(form.d_rows))
            if form.a_rows:
                self._give_back(held, set(form.a_rows), but=key)
            if key in held:
                matrix = held[key][1]
            else:
                matrix = warpgroup.matrix_of(self._registers(form.d_rows, product.lanes), form.d_type)
            if not product.adds.all():
                matrix[~product.adds] = 0
            a, b = self._factors(product)
            held[key] = (
                product,
                warpgroup.multiply(
                    a, b, matrix, form.a_type, form.b_type, form.d_type, self._batch.setting.mma, form.satfinite
                ),
            )
        self._give_back(held, None)

    def _give_back(
        self, held: dict[tuple[tuple[int, ...], bytes], tuple[Product, Array]], rows: set[int] | None,
        but: tuple[tuple[int, ...], bytes] | None = None,
    ) -> None:  # fmt: skip
        """Write matrices into their registers: those that use some of these rows, or all."""
        for key in list(held):
            if key == but or (rows is not None and rows.isdisjoint(key[0])):
                continue
            product, matrix = held.pop(key)
            words = warpgroup.registers_of(matrix, product.form.d_type)
            table, lanes = self._batch.file.rows[4], self._lanes(product.lanes)
            for row, values in zip(key[0], words, strict=True):
                table[row][lanes] = values

    @staticmethod
    def _lanes(first: Array) -> Array:
        found: Array = (first[:, None] + np.arange(LANES)).reshape(-1)
        return found

    def _registers(self, rows: tuple[int, ...], first: Array) -> Array:
        table, lanes = self._batch.file.rows[4], self._lanes(first)
        return np.stack([table[row].take(lanes) for row in rows])

    def _factors(self, product: Product) -> tuple[Array, Array]:
        form = product.form
        groups = len(product.lanes)
        if product.a is None:
            words = self._registers(form.a_rows, product.lanes)
            words = words.T.reshape(groups * WARPS, -1)
            ordered = words.take(places_of_a(16, len(form.a_rows) * 2), axis=1)
            a = warpgroup.factors(ordered.reshape(groups, warpgroup.ROWS, -1), form.a_type)
        else:
            a = self._matrix(product.a, form.a_type, form.a_along_k)
        b = self._matrix(product.b, form.b_type, form.b_along_k).swapaxes(1, 2)
        if form.signs[0] < 0:
            a = -a
        if form.signs[1] < 0:
            b = -b
        return a, b

    def _matrix(self, rows: Array, kind: str, along_k: bool) -> Array:
        """Return a factor as (warpgroups, extent, K)."""
        words = self._batch.shared_rows.take(rows, 0).reshape(*rows.shape[:2], -1).view(np.uint32)
        found = warpgroup.factors(words, kind)
        return found if along_k else found.swapaxes(1, 2)


def factor_rows(
    batch: Batch, first: Array, descriptor: Array, extent: int, along_k: bool
) -> tuple[Array, Array]:  # fmt: skip
    """Return the rows of 16 bytes that descriptors name, and for which warpgroups they cannot be read.

    Parameters
    ----------
    batch : Batch
        The CTAs.
    first : array of int
        First lane of each warpgroup.
    descriptor : array of uint64
        Of each of them.
    extent : int
        Rows of A or columns of B.
    along_k : bool
        Whether K is contiguous.
    """
    start, leading, stride, base_offset, swizzle = descriptors.fields(descriptor)
    kinds = np.stack([leading, stride, swizzle], axis=1)
    shape = (extent, 2) if along_k else (16, extent // 8)
    address = np.empty((len(first), *shape), np.int64)
    alike = bool((kinds == kinds[0]).all())
    for kind in kinds[:1] if alike else np.unique(kinds, axis=0):
        same = slice(None) if alike else (kinds == kind).all(axis=1)
        address[same] = descriptors.chunk_addresses(start[same], extent, along_k, *kind.tolist())
    bad = base_offset != 0
    low, high = address.min(axis=(1, 2)), address.max(axis=(1, 2))
    bad |= (low < SHARED_START) | (high + 16 > batch.shared_end)
    base = batch.cta_of_lane[first] * batch.shared_stride
    return (address + base[:, None, None]) // 16, bad
