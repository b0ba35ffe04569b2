"""Complex scalars as pairs of real and imaginary part."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute


@cute.jit
def is_used(alpha):
    """Return a number that is 0 only where alpha, a pair of parts, is."""
    return alpha[0] if alpha[0] != 0 else alpha[1]


@cute.jit
def scaled(scalar, real, imag):
    """Return the parts of a number times a scalar, a pair of parts; a real one multiplies each part alone."""
    scaled_real, scaled_imag = scalar[0] * real, scalar[0] * imag
    if scalar[1] != 0:
        scaled_real -= scalar[1] * imag
        scaled_imag += scalar[1] * real
    return scaled_real, scaled_imag


@cute.jit
def pair_at(mX: cute.Tensor, place, part: cutlass.Constexpr[Any]):
    """Return the two parts at a place in memory, of type `part`, aligned for one access."""
    start = (mX.iterator + cute.crd2idx(place, mX.layout)).toint()
    known = cute.make_ptr(part, start, cute.AddressSpace.gmem, assumed_align=2 * part.width // 8)
    return cute.make_tensor(known, cute.make_layout(2))


def fake_scalars(part: Any) -> tuple[Any, Any]:
    """Return fake values of alpha and beta, pairs of parts, for the compiler."""
    return (part(1), part(0)), (part(0), part(0))
