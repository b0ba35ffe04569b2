"""Quantities as text, with the unit prefix that keeps them short."""

from __future__ import annotations

import math

_PREFIXES = ["", "k", "M", "G", "T", "P", "E"]


def short_quantity(value: float, unit: str, digits: int = 4) -> str:
    """Return a quantity with an SI prefix, e.g. ``989.4 TFLOP/s``.

    Parameters
    ----------
    value : float
        The quantity, in the unit without a prefix.
    unit : str
        The unit, e.g. ``FLOP/s`` or ``B``.
    digits : int
        Significant digits, three at least.
    """
    if not math.isfinite(value) or value < 1:
        return f"{value:.{digits}g} {unit}"
    # Rounded first: 999.96 is 1000 in four digits, and takes the next prefix.
    rounded = float(f"{value:.{digits}g}")
    step = min(int(math.log10(rounded) + 1e-9) // 3, len(_PREFIXES) - 1)
    return f"{rounded / 1000**step:.{digits}g} {_PREFIXES[step]}{unit}"


def flop_rate(flop_per_second: float) -> str:
    """Return a rate of operations, e.g. ``989.4 TFLOP/s``."""
    return short_quantity(flop_per_second, "FLOP/s")


def duration(seconds: float) -> str:
    """Return a time in nanoseconds, microseconds, milliseconds or seconds, e.g. ``12.3 us``."""
    if 0 < seconds < 1e-7:
        return f"{seconds * 1e9:.3g} ns"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.4g} ms" if seconds < 1 else f"{seconds:.4g} s"
