"""Products of parts of fragments, each of which is read again as soon as its registers are free.

Vectors of a K-major stage are 4 k of a row, so that a thread needs 4 k of its rows at once. It multiplies parts of 4
rows by parts of 4 columns, 4 k of each, in an order in which a part's registers are free long before the next ones are
needed: one set of registers is enough for columns, and two parts for rows.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import cutlass
from cutlass import Float32, cute

from gemmule.core.dataclass import dataclass
from gemmule.kernels.simt.config import VECTOR

#: Parts of A that a thread holds: one is multiplied, the other read.
_HELD = 2


class Part(NamedTuple):
    """Rows (of A, or columns of B) of a thread tile, and the k of each four that a thread holds of them together."""

    row: int  #: The first row.
    rows: int  #: How many.
    k: int  #: The first k of four.
    ks: int  #: How many.


class Fragment(NamedTuple):
    """A part of an operand, of some four k."""

    operand: int  #: 0 of A, 1 of B.
    part: Part  #: Which part.
    four: int  #: Which four k of a k-tile; those of the next one follow.
    slot: int  #: Which registers.


class Step(NamedTuple):
    """Products of two fragments, and what is read after them."""

    a: Fragment
    b: Fragment
    reads: tuple[Fragment, ...]


def parts(extent: int, k_major: bool, halves: bool) -> tuple[Part, ...]:
    """Return the parts of an operand: 4 rows by 4 k, or half of the rows or of the k."""
    rows, ks = VECTOR, VECTOR
    if halves:
        rows, ks = (VECTOR // 2, VECTOR) if k_major else (VECTOR, VECTOR // 2)
    return tuple(Part(row, rows, k, ks) for row in range(0, extent, rows) for k in range(0, VECTOR, ks))


@dataclass(frozen=True)
class BlockOrder:
    """Order of a k-tile's products.

    Attributes
    ----------
    a, b : tuple of Part
        Parts of the operands.
    fours : int
        Times 4 k of a k-tile, an even number.
    """

    a: tuple[Part, ...]
    b: tuple[Part, ...]
    fours: int

    def products(self, number: int) -> list[tuple[Fragment, Fragment]]:
        """Return the operands of the products of a k-tile, of which the first is 0."""
        found = []
        for four, i, place in itertools.product(range(self.fours), range(len(self.a)), range(len(self.b))):
            # Columns whose last products were first come first; k are always in order.
            turned = (i + four) % 2 > 0 and self.b[0].k == self.b[-1].k
            j = len(self.b) - 1 - place if turned else place
            every = number * self.fours + four
            slot = (every * len(self.a) + i) % _HELD
            found.append((Fragment(0, self.a[i], every, slot), Fragment(1, self.b[j], every, j)))
        return found

    def first(self) -> tuple[Fragment, ...]:
        """Return the fragments that are read before the first product."""
        found: dict[tuple[int, int], Fragment] = {}
        for one in itertools.chain.from_iterable(self.products(0)):
            found.setdefault((one.operand, one.slot), one)
        return tuple(found.values())

    def steps(self) -> list[Step]:
        """Return the products of a k-tile, each with the fragments that take the place of one that it was the last of."""
        own = self.products(0)
        every = own + self.products(1)
        found = []
        for index, pair in enumerate(own):
            after = list(itertools.chain.from_iterable(every[index + 1 :]))
            later = [next(x for x in after if (x.operand, x.slot) == (one.operand, one.slot)) for one in pair]
            found.append(Step(*pair, tuple(x for x, one in zip(later, pair, strict=True) if x != one)))
        return found


def registers(part: Part, k_major: bool) -> Any:
    """Return registers of a part, (row, k), as vectors have them."""
    stride = (VECTOR, 1) if k_major else (1, VECTOR)
    return cute.make_rmem_tensor(cute.make_layout((part.rows, part.ks), stride=stride), Float32)


@cute.jit
def multiply_parts(rA: cute.Tensor, rB: cute.Tensor, rC: cute.Tensor, a: cutlass.Constexpr[Part], b):
    """Add products of two parts, in serpentine order: successive FMAs share an operand, which is read once."""
    ks = cutlass.const_expr((max(a.k, b.k), min(a.k + a.ks, b.k + b.ks)))
    for j in cutlass.range_constexpr(b.rows):
        for k in cutlass.range_constexpr(*ks):
            for place in cutlass.range_constexpr(a.rows):
                i = cutlass.const_expr(place if (j + k) % 2 == 0 else a.rows - 1 - place)
                rC[a.row + i, b.row + j] += rA[i, k - a.k] * rB[j, k - b.k]
