"""A tile in the mainloop of the float32 GEMM: copies of its operands, and a thread's registers."""

from __future__ import annotations

from typing import Any

from gemmule.core.dataclass import dataclass
from gemmule.kernels.parts.stage_copies import MaskedCopies


@dataclass(frozen=True)
class Operand:
    """Copies of one operand of a tile.

    Attributes
    ----------
    copies : MaskedCopies
        The copies.
    gmem : Tensor
        The matrix.
    target : Int32
        Address of this thread's first piece in the first stage.
    stride : Int64
        Bytes from one k-tile to the next in device memory.
    inside, last : Int32
        Masks of the copies that are inside the matrix: of k-tiles that are inside it in K, and of the one that is not.
    loaded : Tensor or None
        Vectors of the next k-tile, of an operand that passes through registers.
    slots, matrices : Int32 or None
        Addresses in the first stage, of an operand that passes through slots: of this thread's first slot, and of what
        it reads of its warp's first matrices.
    """

    copies: MaskedCopies
    gmem: Any
    target: Any
    stride: Any
    inside: Any
    last: Any
    loaded: Any
    slots: Any = None
    matrices: Any = None


@dataclass(frozen=True)
class Tile:
    """A tile's operands, and a thread's registers.

    Attributes
    ----------
    a, b : Operand
        Copies of A and of B.
    full, k_tiles : Int32
        k-tiles of this CTA that are inside the matrices in K, and all of them.
    start_a, start_b : Int32
        Address of this thread's first vector in the first stage.
    fragments_a, fragments_b : Tensor
        Vectors of rows and of columns of two k: one is read while the other is multiplied.
    accumulators : Tensor
        Accumulators, (rows, columns).
    """

    a: Operand
    b: Operand
    full: Any
    k_tiles: Any
    start_a: Any
    start_b: Any
    fragments_a: Any
    fragments_b: Any
    accumulators: Any
