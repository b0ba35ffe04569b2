"""8-bit floats with scales: what products of both kinds, of matrices and of groups, ask of them."""

from __future__ import annotations

from typing import Any

from gemmule.core.errors import DTypeError
from gemmule.runtime.arrays.array_specs import is_spec

FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
#: Types that `quantize` takes.
QUANTIZED = ("float32", "float16", "bfloat16")
_EXPONENTS = "float8_e8m0fnu"


def name_of(x: Any) -> str:
    """Return the name of an array's type."""
    return str(getattr(x, "dtype", "")).removeprefix("torch.")


def check_factors(**factors: Any) -> None:
    """Refuse factors of a scaled product that are no 8-bit floats; messages have the names that they are given by."""
    for role, x in factors.items():
        if name_of(x) not in FLOAT8:
            name = name_of(x) or type(x).__name__
            remedy = (
                "convert it with gemmule.quantize" if name in QUANTIZED else "convert it to float32, and quantise that"
            )
            raise DTypeError(f"{role} is {name}; scaled products take {' or '.join(FLOAT8)}; {remedy}")


def as_read(role: str, scale: Any) -> Any:
    """Return scales as kernels read them, in float32; those of 8 bits are converted by their library."""
    name = name_of(scale)
    if name == "float32":
        return scale
    if name != _EXPONENTS:
        raise DTypeError(f"{role} is {name or type(scale).__name__}; scales are float32 or {_EXPONENTS}; convert them")
    if is_spec(scale) and not type(scale).__module__.startswith("torch"):
        return type(scale)(scale.shape, "float32")
    return scale.float() if type(scale).__module__.startswith("torch") else scale.astype("float32")
