"""How many moduli the kernels of Ozaki scheme II are specialised for, and device code for a number of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cutlass import Int32, cute

from .guard import MODULI_CHOICES, SCALE_STEPS


def counts_of(types: Mapping[str, str]) -> tuple[int, ...]:
    """Return the numbers of moduli that a kernel is specialised for: one, or those that the guard chooses among."""
    return MODULI_CHOICES if types["moduli"] == "guarded" else (int(types["moduli"]),)


@cute.jit
def scale_step(count: Any) -> Any:
    """Return by how much scales exceed those for the fewest moduli."""
    step = Int32(SCALE_STEPS[0])
    step = Int32(SCALE_STEPS[1]) if count == MODULI_CHOICES[1] else step
    return Int32(SCALE_STEPS[2]) if count == MODULI_CHOICES[2] else step
