"""Copies of rows of a matrix, one for each CTA or cluster: what their sectors are told by."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from . import Form, Prepared, random_bits  # isort: skip
from support.ptx.copies import EXPECT, INIT, LOAD, SHARED, map_of, names, out_of_shared
from support.ptx.hopper import wait


@dataclasses.dataclass(frozen=True)
class Rows:
    """Eight rows of a matrix of bytes, 512 bytes apart, that one copy brings: what of them is there, and where.

    Attributes
    ----------
    width, column, row : int
        Bytes of a row of the box, and where the box begins.
    columns, rows : int
        Extents of the matrix.
    swizzle, promotion : int
        As of a tensor map.
    ctas : int
        CTAs of a cluster that get them.
    """

    width: int = 128
    column: int = 0
    row: int = 4
    columns: int = 512
    rows: int = 24
    swizzle: int = 0
    promotion: int = 256
    ctas: int = 1

    def prepare(self, random: np.random.RandomState) -> Prepared:
        """Let the first CTA of a cluster bring them for all."""
        source = random_bits(random, (self.rows, 512), np.dtype(np.int8))[:, : self.columns]
        size = 8 * self.width
        out = np.full((self.ctas, size), 77, np.uint8)
        copy = LOAD.format(rank=2, map=names("a", (self.column, self.row)))
        body = INIT + EXPECT.replace("BYTES", str(size))
        if self.ctas > 1:
            body += "barrier.cluster.arrive;\nbarrier.cluster.wait;\nmov.u32 %r3, %cluster_ctarank;\n"
            body += f"setp.eq.and.u32 %p3, %r3, 0, %p9;\nmov.u16 %h1, {2**self.ctas - 1};\n"
            copy = copy.replace("%p9", "%p3").replace("bytes [", "bytes.multicast::cluster [")
            copy = copy.replace("[%r1];", "[%r1], %h1;")
        body += copy + wait("%r1", 0)
        if self.ctas > 1:
            body += f"mul.wide.u32 %d1, %r3, {size};\nadd.u64 %p_out, %p_out, %d1;\n"
        body += out_of_shared("out", size)
        if self.ctas > 1:
            body += "barrier.cluster.arrive;\nbarrier.cluster.wait;\n"
        one = map_of("a", source, (self.width, 8), self.swizzle)
        one = dataclasses.replace(one, promotion=self.promotion)
        how = {"maps": (one,), "ctas": self.ctas, "cluster": self.ctas, "threads": 64, "shared": SHARED}
        return body, {"a": source, "out": out}, how

    def __str__(self) -> str:
        usual = Rows()
        changed = {name: value for name, value in vars(self).items() if value != getattr(usual, name)}
        return ", ".join(f"{name} {value}" for name, value in changed.items()) or "as usual"


def rows() -> Iterator[Rows]:
    """Yield what tells how copies ask for sectors."""
    for ctas, column in itertools.product((1, 2), (0, 16, 32, 48, 64, 80, 96, 112)):
        yield Rows(column=column, ctas=ctas)
    for ctas, inside in itertools.product((1, 2), (1, 16, 32, 40, 64, 96, 112)):
        yield Rows(column=256, columns=256 + inside, ctas=ctas)
    for ctas, row in itertools.product((1, 2), (-4, -8, -9, 20, 23, 24, 30)):
        yield Rows(row=row, ctas=ctas)
    for ctas, column in itertools.product((1, 2), (-16, -64, -96, -128, 496, 512, 608)):
        yield Rows(column=column, ctas=ctas)
    for width, column in itertools.product((16, 32, 48, 64, 96, 192, 256), (0, 16, 48)):
        yield Rows(width=width, column=column)
    for promotion, column in itertools.product((0, 64, 128), (0, 48)):
        yield Rows(promotion=promotion, column=column)
    for swizzle, column in itertools.product((32, 64, 128), (0, 48)):
        yield Rows(width=swizzle, swizzle=swizzle, column=column)


def forms() -> Iterator[Form]:
    """Yield them all."""
    for some in rows():
        yield Form("rows", str(some), some.prepare)
