"""mma.sync: D = A B + C of a warp, on the words of its registers."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...core.errors import ArgumentError, ShapeError, UnsupportedError
from .block import FLOOR, FRACTION_BITS, SMALLEST, block_sums, to_float32_towards_zero
from .double import ordered_products
from .formats import ACCUMULATORS, FORMATS, PARTNERS, Format, canonical, integer_sums, values
from .fragments import places_in_accumulator, places_of_a, places_of_accumulator, places_of_b

__all__ = ["MmaForm", "mma_sync"]

Mode = Literal["exact", "hopper"]
Words = NDArray[Any]
Values = NDArray[np.float64]

# (rows of A, k) for each type of A; D has 8 columns always.
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
# Types of C and D that go with one of A.
_ACCUMULATORS = {"f16": "f32 f16", "e4m3": "f32 f16", "e5m2": "f32 f16", "bf16": "f32", "tf32": "f32"} | {
    "s8": "s32",
    "u8": "s32",
    "f64": "f64",
}
# Warps at a time: temporary arrays that are larger cost more in page faults than the arithmetic.
_WARPS = 96


@dataclasses.dataclass(frozen=True)
class MmaForm:
    """A form of ``mma.sync.aligned.mMnNkK.row.col.dtype.atype.btype.ctype``.

    Raises
    ------
    UnsupportedError
        If there is no such mma.sync.
    """

    shape: tuple[int, int, int]  #: (M, N, K).
    #: a_type, b_type, c_type, d_type: Types as in PTX: f16, bf16, tf32, e4m3, e5m2, s8, u8 or f64 for A; f32, f16, s32
    #: or f64 for D; C's is D's.
    a_type: str
    b_type: str
    c_type: str
    d_type: str
    satfinite: bool = False  #: Clamp s32 results; otherwise they wrap.

    def __post_init__(self) -> None:
        (rows, columns, k), a_type, b_type = self.shape, self.a_type, self.b_type
        known = columns == 8 and (rows, k) in _SHAPES.get(a_type, ()) and b_type in (a_type, PARTNERS.get(a_type))
        if not known or self.c_type != self.d_type or self.d_type not in _ACCUMULATORS[a_type].split():
            types = f"{self.d_type}.{a_type}.{b_type}.{self.c_type}"
            raise UnsupportedError(f"mma.sync.aligned.m{rows}n{columns}k{k}.row.col.{types} is not modelled")

    @property
    def registers(self) -> tuple[int, int, int, int]:
        """Registers of a lane for A, B, C and D: 32-bit ones, or 64-bit ones for f64."""
        rows, _, k = self.shape
        in_lane = 32 * FORMATS[self.a_type].per_register
        accumulators = rows // 4 // (2 if self.d_type == "f16" else 1)
        return rows * k // in_lane, 8 * k // in_lane, accumulators, accumulators


def mma_sync(form: MmaForm, a: Words, b: Words, c: Words, *, mode: Mode = "exact") -> Words:
    """Return D of an mma.sync, for any number of warps.

    Parameters
    ----------
    form : MmaForm
        The instruction.
    a, b, c : numpy.ndarray
        Registers, (warps, 32, registers of a lane), of uint32; of uint64 for f64.
    mode : str
        ``exact``: exact products, added with C in float64 and rounded to nearest once. The float64 sum is exact while
        its terms span no more than 53 bits, as they do for operands of like size; otherwise it is within (K + 1) 2**-53
        of the sum of the terms' magnitudes, and its last bits depend on the order in which this machine's BLAS adds.

        ``hopper``: what an H100 computes. For 16-bit floats and tf32, one block FMA of the K products and C (see
        `block`). There is no such instruction for 8-bit floats in sm_90 (only wgmma multiplies them, and cuts at 13
        bits): ptxas 13.0 unpacks them into f16, adds the products with k mod 4 < 2 in one block FMA that starts from 0
        and the others in a second, and then adds C with an ordinary addition.

        Integers and f64 are the same in both: integers exact, f64 by fused multiply-adds for k = 0, 1, ... starting
        from C, as Xie et al. (MMA-Sim, arXiv 2511.10909) found.

    Returns
    -------
    numpy.ndarray
        Registers of D, (warps, 32, registers of a lane).

    Raises
    ------
    ShapeError
        If there are too few or too many registers.

    Notes
    -----
    NaN is 0x7FFFFFFF in f32 and 0x7FFF in f16, whatever NaN the operands hold; in f64 the NaN is not defined. A sum of
    zero is +0 in f32 and f16, and in mode 'hopper' one that underflows to zero too.
    """
    if mode not in ("exact", "hopper"):
        raise ArgumentError(f"mode={mode!r} is neither 'exact' nor 'hopper'")
    counts, warps = form.registers, len(a)
    for name, words, count in zip("abc", (a, b, c), counts, strict=False):
        if words.shape != (warps, 32, count):
            raise ShapeError(f"{name} has the shape {words.shape}; {warps} warps need {(warps, 32, count)}")
    rows, formats, d_dtype = form.shape[0], (FORMATS[form.a_type], FORMATS[form.b_type]), ACCUMULATORS[form.d_type]
    along_k = form.shape[2] // formats[0].per_register
    d = np.empty((warps, 32, counts[3]), c.dtype)
    for start in range(0, warps, _WARPS):
        part = slice(start, start + _WARPS)
        a_rows = _taken(a[part], places_of_a(rows, along_k))
        b_columns = _taken(b[part], places_of_b(along_k))
        matrix = _taken(np.ascontiguousarray(c[part]).view(d_dtype), places_of_accumulator(rows))
        if formats[0].kind == "int":
            a_values, b_values = (
                x.view(y.stored).astype(np.float32) for x, y in zip((a_rows, b_columns), formats, strict=True)
            )
            product = integer_sums(a_values, b_values.swapaxes(1, 2), matrix, form.satfinite)
        elif formats[0].kind == "double":
            product = ordered_products(a_rows.view(np.float64), b_columns.view(np.float64), matrix)
        else:
            product = _floats(a_rows, b_columns, matrix, formats, form.d_type, mode)
        d[part] = _taken(product, places_in_accumulator(rows)).view(d.dtype)
    return d


def _taken(elements: NDArray[Any], places: NDArray[np.intp]) -> NDArray[Any]:
    return elements.reshape(len(elements), -1).take(places, axis=1)


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
    return canonical(d, d_type)


def _halves(x: Values, half: int) -> Values:
    """Return the elements in one 16-bit half of each register of four."""
    return x.reshape(*x.shape[:2], -1, 2, 2)[:, :, :, half].reshape(*x.shape[:2], -1)


def _block_fma(a: Values, b: Values, c: Words, formats: tuple[Format, Format], d_type: str) -> Words:
    sums = block_sums(
        a,
        b,
        c.astype(np.float64),
        smallest=(formats[0].min_exponent, formats[1].min_exponent, SMALLEST[d_type]),
        fraction_bits=FRACTION_BITS,
        floor=FLOOR[d_type],
    )
    rounded: Words = to_float32_towards_zero(sums) if d_type == "f32" else sums.astype(np.float16)
    rounded += rounded.dtype.type(0)  # no -0
    return rounded
