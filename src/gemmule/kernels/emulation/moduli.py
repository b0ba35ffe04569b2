"""Numbers of moduli that the kernels of Ozaki scheme II are specialised for, and device code for a number of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cutlass
from cutlass import Int32, cute

from gemmule.core.dtype import dtype_named

from .guard import CHOICES, SCALE_STEPS


def counts_of(types: Mapping[str, str]) -> tuple[int, ...]:
    """Return the numbers of moduli that a kernel is specialised for: one, or those that the guard chooses among."""
    return CHOICES[dtype_named(real_of(types))] if types["moduli"] == "guarded" else (int(types["moduli"]),)


def real_of(types: Mapping[str, str]) -> str:
    """Return the type of the real numbers that a kernel is specialised for."""
    return types.get("real", "float64")


@cute.jit
def scale_step(count: Any, counts: cutlass.Constexpr[tuple[int, ...]]) -> Any:
    """Return by how much scales exceed those for the fewest moduli."""
    step = Int32(SCALE_STEPS[0])
    step = Int32(SCALE_STEPS[1]) if count == counts[1] else step
    return Int32(SCALE_STEPS[2]) if count == counts[2] else step
