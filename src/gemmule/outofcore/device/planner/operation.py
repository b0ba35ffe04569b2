"""Operations of a streamed product, and the streams that they run on."""

from __future__ import annotations

from gemmule.core.block_triangle import BlockTriangle
from gemmule.core.dataclass import dataclass

#: The streams, as the timeline names them.
C_IN, AB_IN, COMPUTE, C_OUT = "C in", "A, B in", "compute", "C out"
STREAMS = (C_IN, AB_IN, COMPUTE, C_OUT)
#: Prefix of the streams that compute, in plans of several.
LANES = (COMPUTE, "second compute", "third compute", "fourth compute")
#: Those that only the last tile uses, where others need two: they fill idle SMs.
LAST = LANES[2:]
#: The stream that transposes what is finished, before products that others have queued.
MIRRORING = "mirror compute"

Part = tuple[int, int]


def length(part: Part) -> int:
    """Return how many rows, columns or steps of K a part has."""
    return part[1] - part[0]


@dataclass(frozen=True)
class Op:
    """One operation on one stream."""

    number: int  #: Its place in the order.
    stream: str  #: Its stream; it runs after all earlier operations of that stream.
    after: tuple[int, ...]  #: Operations of other streams that must be done first.


@dataclass(frozen=True)
class Load(Op):
    """A piece of a matrix comes to the device."""

    operand: str  #: ``a``, ``b`` or ``c``.
    #: rows, cols: Which part of the matrix.
    rows: Part
    cols: Part
    slot: int  #: The buffer of that operand that it goes to.
    nbytes: int  #: Bytes that cross the link.


@dataclass(frozen=True)
class Slice:
    """A slice on the device: its buffer, and which rows (of B columns) it has."""

    slot: int
    outer: Part


@dataclass(frozen=True)
class TileOp(Op):
    """An operation on the tile (i, j), or on a part of it: ranges of rows and columns of the result."""

    tile: tuple[int, int]
    rows: Part
    cols: Part


@dataclass(frozen=True)
class Multiply(TileOp):
    """Slices are multiplied, and added to the sum of a tile, or to a strip of it."""

    inner: Part  #: Part of K.
    #: a, b: The operands. Where the plan is symmetric both are slices of A.
    a: Slice
    b: Slice
    target: int  #: Buffer of the sum.
    #: first, last: Whether the sum begins and ends here.
    first: bool
    last: bool
    needed: BlockTriangle | None = None  #: Needed elements, if not all.

    @property
    def shape(self) -> tuple[int, int, int]:
        """The extents m, n and k."""
        return length(self.rows), length(self.cols), length(self.inner)

    @property
    def flop(self) -> int:
        """Multiplications and additions."""
        m, n, k = self.shape
        return 2 * (m * n if self.needed is None else self.needed.tiles(m, n)) * k


@dataclass(frozen=True)
class Convert(TileOp):
    """A finished sum is rounded into the type of the result, in another buffer."""

    source: int
    target: int


@dataclass(frozen=True)
class Mirror(TileOp):
    """A finished tile, which it is taken from, is transposed into another buffer: the other side of the diagonal."""

    source: int  #: The buffer of the tile: of results, where the plan has separate ones for results and sums.
    target: int  #: The buffer of the transpose.


@dataclass(frozen=True)
class Reflect(TileOp):
    """Transpose the part of a finished strip below the diagonal to above it, in a tile on the diagonal."""

    buffer: int  #: The buffer of the tile: of results, where the plan has separate ones for results and sums.


@dataclass(frozen=True)
class Store(TileOp):
    """A tile, or a strip of it, leaves the device."""

    source: int  #: The buffer: of results, where the plan has separate ones for results and sums.
    nbytes: int  #: Bytes that cross the link.
    final: bool  #: Whether this is the last of its tile.
    #: Whether this is a tile's transpose, which lies in a buffer of its own: `source` is that one, and `rows` and
    #: `cols` are where it goes.
    mirrored: bool
