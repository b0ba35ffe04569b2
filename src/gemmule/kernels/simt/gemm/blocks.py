"""Products of blocks of 4 rows by 4 columns by 4 k, of fragments that are read as soon as their registers are free."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import cutlass
from cutlass import Float32, Int32, cute

from gemmule.core.dataclass import dataclass
from gemmule.kernels.simt.config import VECTOR

#: Blocks of rows that a thread holds: one is multiplied, the other read.
_ROWS_HELD = 2


class Fragment(NamedTuple):
    """A block of an operand: 4 rows (of A, or columns of B) by 4 k."""

    operand: int  #: 0 for A, 1 for B.
    block: int  #: Which rows of the thread tile.
    four: int  #: Which four k of the k-tile; those of the next one follow.
    slot: int  #: Which registers.


class Step(NamedTuple):
    """Products of a block, and the fragments that are read after them."""

    a: Fragment
    b: Fragment
    read: tuple[Fragment, ...]  #: Of this k-tile.
    read_next: tuple[Fragment, ...]  #: Of the next k-tile.


@dataclass(frozen=True)
class BlockOrder:
    """Order of a k-tile's products: blocks of rows pass, and columns stay until a block's last product.

    Attributes
    ----------
    rows, cols : int
        Blocks of a thread tile.
    fours : int
        Times 4 k of a k-tile, an even number.
    """

    rows: int
    cols: int
    fours: int

    @property
    def slots(self) -> tuple[int, int]:
        """Blocks of A and of B in registers."""
        return _ROWS_HELD, max(self.cols, 2)

    def fragments(self, number: int) -> Iterator[tuple[Fragment, Fragment]]:
        """Yield the operands of the products of a k-tile, the first of which is 0."""
        for four, i, place in itertools.product(range(self.fours), range(self.rows), range(self.cols)):
            # The columns whose last products were first come first.
            j = place if (i + four) % 2 == 0 else self.cols - 1 - place
            every = number * self.fours + four
            slot = j if self.cols > 1 else every % 2
            yield Fragment(0, i, every, (every * self.rows + i) % _ROWS_HELD), Fragment(1, j, every, slot)

    def first(self) -> list[Fragment]:
        """Return the fragments that are read before the first product."""
        found: dict[tuple[int, int], Fragment] = {}
        for one in itertools.chain.from_iterable(self.fragments(0)):
            found.setdefault((one.operand, one.slot), one)
        return list(found.values())

    def steps(self) -> list[Step]:
        """Return the products of a k-tile, and what is read after each."""
        own, after = list(self.fragments(0)), list(self.fragments(1))
        every = own + after
        read = collections.defaultdict[int, list[Fragment]](list)
        for index, pair in enumerate(own):
            for one in pair:
                later = [x for two in every[index + 1 :] for x in two if (x.operand, x.slot) == (one.operand, one.slot)]
                if later[0] != one:
                    read[index].append(later[0])
        return [
            Step(
                *pair,
                tuple(one for one in read[index] if one.four < self.fours),
                tuple(one for one in read[index] if one.four >= self.fours),
            )
            for index, pair in enumerate(own)
        ]


@cute.jit
def multiply_block(a: cute.Tensor, b: cute.Tensor, rC: cute.Tensor, i0: cutlass.Constexpr[int], j0):
    """Add the products of a block, in serpentine order: successive FMAs share an operand, which is read once."""
    for k in cutlass.range_constexpr(VECTOR):
        for i in cutlass.range_constexpr(VECTOR):
            for place in cutlass.range_constexpr(VECTOR):
                j = cutlass.const_expr(place if (i + k) % 2 == 0 else VECTOR - 1 - place)
                rC[i0 + i, j0 + j] += a[i, k] * b[j, k]


@cute.jit
def read_after(accumulator, address, zero):
    """Return an address that the compiler does not know before an accumulator; `zero` is 0, which it does not know."""
    bits = cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[Int32], read_only_args=[accumulator])
    return address ^ (bits & zero)


def registers(k_major: bool) -> Any:
    """Return registers of a block, (row, k)."""
    stride = (VECTOR, 1) if k_major else (1, VECTOR)
    return cute.make_rmem_tensor(cute.make_layout((VECTOR, VECTOR), stride=stride), Float32)
