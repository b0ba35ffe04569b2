"""wgmma: D = A B + D of a warpgroup, on matrices rather than on registers.

Rows 16 w to 16 w + 15 of A and D are those of warp w of the four, in the fragments of mma.sync of 16 rows; D's columns
are in groups of 8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import UnsupportedError
from .block import FLOOR, FRACTION_BITS, SMALLEST, block_sums, to_float32_towards_zero
from .formats import ACCUMULATORS, FORMATS, PARTNERS, canonical, integer_sums, values

Words = NDArray[Any]
Values = NDArray[np.float64]

ROWS = 64
#: Types of D that go with one of A.
_ACCUMULATORS = {
    "f16": ("f16", "f32"), "bf16": ("f32",), "tf32": ("f32",), "e4m3": ("f16", "f32"), "e5m2": ("f16", "f32"),
    "s8": ("s32",), "u8": ("s32",),
}  # fmt: skip

# The block FMA of 8-bit floats: bits below the largest exponent, and the exponents of the smallest normal numbers.
_FRACTION_BITS_8 = 13
_SMALLEST_8 = {"e4m3": -6, "e5m2": -14}


def check_types(n: int, k: int, a_type: str, b_type: str, d_type: str) -> None:
    """Refuse types and shapes that wgmma does not have.

    Raises
    ------
    UnsupportedError
        If there is no such instruction, or it is not modelled.
    """
    good = a_type in _ACCUMULATORS and d_type in _ACCUMULATORS[a_type] and b_type in (a_type, PARTNERS.get(a_type))
    if not good or k * FORMATS[a_type].stored.itemsize != 32 or n % 8 or not 8 <= n <= 256:
        raise UnsupportedError(f"wgmma m64n{n}k{k}.{d_type}.{a_type}.{b_type} is not modelled")
    if a_type in ("s8", "u8") and n not in (8, 24) and n % 16:
        raise UnsupportedError(f"wgmma of 8-bit integers has no n of {n}")


def operands(words: Words, kind: str) -> Words:
    """Return the elements of words of 32 bits, next to each other: float64, or float32 for integers."""
    form = FORMATS[kind]
    if form.kind == "int":
        return np.ascontiguousarray(words).view(form.stored).astype(np.float32)
    return values(words, form)


def multiply(
    a: Words, b: Words, c: Words, a_type: str, b_type: str, d_type: str, mode: str, satfinite: bool = False
) -> Words:
    """Return a @ b + c as the instruction adds.

    Parameters
    ----------
    a, b : array
        (warpgroups, 64, K) and (warpgroups, K, N), from `operands`.
    c : array
        (warpgroups, 64, N) of D's type.
    a_type, b_type, d_type : str
        Types as in PTX.
    mode : str
        ``exact``: exact products and C added in float64, rounded to D's type once. ``hopper``: one block FMA of the K
        products and C; for 8-bit floats of 13 bits, as D has.
    satfinite : bool
        Clamp s32 results.
    """
    if d_type == "s32":
        return integer_sums(a, b, c, satfinite)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        if mode == "exact":
            total = a @ b
            total += c
            d = total.astype(c.dtype)
        else:
            d = _block_fma(a, b, c, a_type, b_type, d_type)
    return canonical(d, d_type)


def _block_fma(a: Values, b: Values, c: Words, a_type: str, b_type: str, d_type: str) -> Words:
    narrow = a_type in _SMALLEST_8
    of_a, of_b = (_SMALLEST_8[kind] if narrow else FORMATS[kind].min_exponent for kind in (a_type, b_type))
    sums = block_sums(
        a,
        np.ascontiguousarray(b.swapaxes(1, 2)),
        c.astype(np.float64),
        smallest=(of_a, of_b, SMALLEST[d_type]),
        fraction_bits=_FRACTION_BITS_8 if narrow else FRACTION_BITS,
        floor=FLOOR[d_type],
    )
    if d_type == "f16":
        rounded: Words = sums.astype(np.float16)
    else:
        rounded = to_float32_towards_zero(sums)
        if narrow:
            # The sum has the significand of 13 bits that its terms were cut to.
            rounded.view(np.uint32)[np.isfinite(rounded)] &= np.uint32(0xFFFFFC00)
    rounded += rounded.dtype.type(0)  # no -0
    return rounded


def matrix_of(registers: Words, d_type: str) -> Words:
    """Return D from its registers: (registers, lanes) words to (warpgroups, 64, N)."""
    dtype = ACCUMULATORS[d_type]
    parts = registers.reshape(len(registers), -1, 4, 8, 4)
    if d_type == "f16":
        # Two adjacent elements of a row in a register.
        halves = np.ascontiguousarray(parts)[..., None].view(np.float16)
        halves = halves.reshape(-1, 2, *parts.shape[1:], 2)
        # (columns / 8, half, warpgroups, warps, rows, lanes of a row, 2)
        moved = halves.transpose(2, 3, 1, 4, 0, 5, 6)
    else:
        four = parts.view(dtype).reshape(-1, 2, 2, *parts.shape[1:])
        # (columns / 8, half, 2, warpgroups, warps, rows, lanes of a row)
        moved = four.transpose(3, 4, 1, 5, 0, 6, 2)
    return np.ascontiguousarray(moved).reshape(moved.shape[0], ROWS, -1)


def registers_of(matrix: Words, d_type: str) -> Words:
    """Return D's registers, (registers, lanes) words, from the matrix."""
    groups = len(matrix)
    # (warpgroups, warps, half, rows, columns / 8, lanes of a row, 2)
    parts = matrix.reshape(groups, 4, 2, 8, -1, 4, 2)
    if d_type == "f16":
        words = np.ascontiguousarray(parts.transpose(4, 2, 0, 1, 3, 5, 6)).view(np.uint32)
        return words.reshape(-1, groups * 128)
    words = np.ascontiguousarray(parts.transpose(4, 2, 6, 0, 1, 3, 5)).view(np.uint32)
    return words.reshape(-1, groups * 128)
