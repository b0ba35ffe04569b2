"""The types that kernels of `mma.sync` take: A and B of one, float32 only as TF32, C as the output."""

from __future__ import annotations

from collections.abc import Mapping

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT32, DType, Precision
from gemmule.core.problem import OperandTypes


def refuse_types(types: OperandTypes, outputs: Mapping[DType, tuple[DType, ...]], arch: Arch) -> str | None:
    """Say why a kernel cannot take such types, or None where it can.

    Parameters
    ----------
    types : OperandTypes
        Those of a product.
    outputs : mapping
        Types that C and D may have for each type of A and B.
    """
    a, b, c, d, precision = types
    if a not in outputs or b != a:
        known = ", ".join(map(str, outputs))
        return f"A is {a} and B is {b}; this kernel takes both of one type among {known}"
    if a == FLOAT32 and precision is not Precision.TF32:
        return "A and B are float32; this kernel rounds them to TF32, for precision='tf32'"
    if d not in outputs[a]:
        return f"the output is {d}; from {a} this kernel makes {' and '.join(map(str, outputs[a]))}"
    if c is not None and c != d:
        return f"C is {c} and the output {d}; this kernel takes both of one type"
    return arch.why_not_float8((), d)
