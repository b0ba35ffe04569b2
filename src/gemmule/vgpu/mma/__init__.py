"""mma.sync: D = A B + C of a warp, on the words of its registers."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...core.errors import ArgumentError, ShapeError, UnsupportedError
from .block import block_sums, to_float32_towards_zero
from .double import ordered_products
from .formats import FORMATS, Format, values
from .fragments import places_in_accumulator, places_of_a, places_of_accumulator, places_of_b

__all__ = ["mma_sync", "registers"]

Mode = Literal["exact", "hopper"]
Words = NDArray[Any]
Values = NDArray[np.float64]

# (rows of A, k) that each type of A comes in; D has 8 columns always.
_SHAPES = {
    "f16": ((16, 8), (16, 16)),
    "bf16": ((16, 8), (16, 16)),
    "tf32": ((16, 4), (16, 8)),
    "e4m3": ((16, 16), (16, 32)),
    "e5m2": ((16, 16), (16, 32)),
    "s8": ((8, 16), (16, 16), (16, 32)),
    "u8": ((8, 16), (16, 16), (16, 32)),
    "f64": ((8, 4), (16, 4), (16, 8), (16, 16)),
}
# Types of C and D that go with one of A, and of B beside A's own.
_ACCUMULATORS = {"f16": "f32 f16", "e4m3": "f32 f16", "e5m2": "f32 f16", "bf16": "f32", "tf32": "f32"} | {
    "s8": "s32",
    "u8": "s32",
    "f64": "f64",
}
_PARTNERS = {"e4m3": "e5m2", "e5m2": "e4m3", "s8": "u8", "u8": "s8"}

_DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "s32": np.dtype(np.int32),
    "f64": np.dtype(np.float64),
}
_NAN_BITS = {"f32": 0x7FFFFFFF, "f16": 0x7FFF}

# Hopper's block FMA: bits below the largest exponent, the exponent of the smallest normal C, the floor of the largest.
_FRACTION_BITS = 25
_SMALLEST = {"f32": -126, "f16": -14}
_FLOOR = {"f32": -133, "f16": -21}

# Warps at a time: temporary arrays that are larger cost more in page faults than the arithmetic.
_WARPS = 96


def registers(
    shape: tuple[int, int, int], a_type: str, b_type: str, c_type: str, d_type: str
) -> tuple[int, int, int, int]:
    """Return how many registers a lane gives for A, B, C and D: 32-bit ones, or 64-bit ones for f64.

    Raises
    ------
    UnsupportedError
        If there is no such mma.sync.
    """
    rows, columns, k = shape
    known = columns == 8 and (rows, k) in _SHAPES.get(a_type, ()) and b_type in (a_type, _PARTNERS.get(a_type))
    if not known or c_type != d_type or d_type not in _ACCUMULATORS[a_type].split():
        raise UnsupportedError(
            f"mma.sync.aligned.m{rows}n{columns}k{k}.row.col.{d_type}.{a_type}.{b_type}.{c_type} is not modelled"
        )
    in_lane = 32 * FORMATS[a_type].per_register
    accumulators = rows // 4 // (2 if d_type == "f16" else 1)
    return rows * k // in_lane, 8 * k // in_lane, accumulators, accumulators


def mma_sync(
    shape: tuple[int, int, int],
    a_type: str,
    b_type: str,
    c_type: str,
    d_type: str,
    a: Words,
    b: Words,
    c: Words,
    *,
    mode: Mode = "exact",
    satfinite: bool = False,
) -> Words:
    """Return D of ``mma.sync.aligned.mMnNkK.row.col.dtype.atype.btype.ctype``, for any number of warps.

    Parameters
    ----------
    shape : tuple of int
        (M, N, K).
    a_type, b_type, c_type, d_type : str
        Types as in PTX: f16, bf16, tf32, e4m3, e5m2, s8, u8 or f64 for A; f32, f16, s32 or f64 for D; C's is D's.
    a, b, c : numpy.ndarray
        Registers, (warps, 32, registers of a lane), of uint32; of uint64 for f64.
    mode : str
        ``exact``: exact products, added with C in float64 and rounded to nearest once. The float64 sum is exact while
        its terms span no more than 53 bits, as they do for factors of like size; otherwise it is within (K + 1) 2**-53
        of the sum of the terms' sizes, and its last bits depend on the order in which this machine's BLAS adds.

        ``hopper``: what an H100 computes. For 16-bit floats and tf32, one block FMA of the K products and C (see
        `block`). There is no such instruction for 8-bit floats in sm_90 (only wgmma multiplies them, and cuts at 13
        bits): ptxas 13.0 unpacks them into f16, adds the products with k mod 4 < 2 in one block FMA that starts from 0
        and the others in a second, and then adds C with an ordinary addition.

        Integers and f64 are the same in both: integers exact, f64 by fused multiply-adds for k = 0, 1, ... starting
        from C, as Xie et al. (MMA-Sim, arXiv 2511.10909) found.
    satfinite : bool
        Clamp s32 results; otherwise they wrap.

    Returns
    -------
    numpy.ndarray
        Registers of D, (warps, 32, registers of a lane).

    Raises
    ------
    UnsupportedError
        If there is no such mma.sync.
    ShapeError
        If there are too few or too many registers.

    Notes
    -----
    NaN is 0x7FFFFFFF in f32 and 0x7FFF in f16, whatever NaN came in; which NaN it is in f64 is not defined. A sum of
    zero is +0 in f32 and f16, and in mode 'hopper' one that underflows to zero too.
    """
    if mode not in ("exact", "hopper"):
        raise ArgumentError(f"mode={mode!r} is neither 'exact' nor 'hopper'")
    counts = registers(shape, a_type, b_type, c_type, d_type)
    warps = len(a)
    for name, words, count in zip("abc", (a, b, c), counts, strict=False):
        if words.shape != (warps, 32, count):
            raise ShapeError(f"{name} has the shape {words.shape}; {warps} warps need {(warps, 32, count)}")
    rows, formats, d_dtype = shape[0], (FORMATS[a_type], FORMATS[b_type]), _DTYPES[d_type]
    along_k = shape[2] // formats[0].per_register
    d = np.empty((warps, 32, counts[3]), c.dtype)
    for start in range(0, warps, _WARPS):
        part = slice(start, start + _WARPS)
        a_rows = _taken(a[part], places_of_a(rows, along_k))
        b_columns = _taken(b[part], places_of_b(along_k))
        matrix = _taken(np.ascontiguousarray(c[part]).view(d_dtype), places_of_accumulator(rows))
        if formats[0].kind == "int":
            product = _integers(a_rows, b_columns, matrix, formats, satfinite)
        elif formats[0].kind == "double":
            product = ordered_products(a_rows.view(np.float64), b_columns.view(np.float64), matrix)
        else:
            product = _floats(a_rows, b_columns, matrix, formats, d_type, mode)
        d[part] = _taken(product, places_in_accumulator(rows)).view(d.dtype)
    return d


def _taken(elements: NDArray[Any], places: NDArray[np.intp]) -> NDArray[Any]:
    return elements.reshape(len(elements), -1).take(places, axis=1)


def _integers(a: Words, b: Words, c: Words, formats: tuple[Format, Format], satfinite: bool) -> Words:
    # Sums of 32 products of 8-bit integers stay below 2**24: float32 is exact, and BLAS multiplies it.
    a_values = a.view(formats[0].stored).astype(np.float32)
    b_values = b.view(formats[1].stored).astype(np.float32)
    total = (a_values @ b_values.swapaxes(1, 2)).astype(np.int64) + c
    return (np.clip(total, -(2**31), 2**31 - 1) if satfinite else total).astype(np.int32)


def _floats(a: Words, b: Words, c: Words, formats: tuple[Format, Format], d_type: str, mode: Mode) -> Words:
    a_values, b_values = values(a, formats[0]), values(b, formats[1])
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        if mode == "exact":
            total = a_values @ np.ascontiguousarray(b_values.swapaxes(1, 2))
            total += c
            d = total.astype(c.dtype)
        elif formats[0].stored.itemsize == 1:
            d = np.zeros_like(c)
            for half in (0, 1):
                d = _block_fma(_halves(a_values, half), _halves(b_values, half), d, formats, d_type)
            d += c
        else:
            d = _block_fma(a_values, b_values, c, formats, d_type)
    if (nan := np.isnan(d)).any():
        d.view(f"u{d.itemsize}")[nan] = _NAN_BITS[d_type]
    return d


def _halves(x: Values, half: int) -> Values:
    """Return the elements in one 16-bit half of each register of four."""
    return x.reshape(*x.shape[:2], -1, 2, 2)[:, :, :, half].reshape(*x.shape[:2], -1)


def _block_fma(a: Values, b: Values, c: Words, formats: tuple[Format, Format], d_type: str) -> Words:
    sums = block_sums(
        a,
        b,
        c.astype(np.float64),
        smallest=(formats[0].min_exponent, formats[1].min_exponent, _SMALLEST[d_type]),
        fraction_bits=_FRACTION_BITS,
        floor=_FLOOR[d_type],
    )
    rounded: Words = to_float32_towards_zero(sums) if d_type == "f32" else sums.astype(np.float16)
    rounded += rounded.dtype.type(0)  # no -0
    return rounded
