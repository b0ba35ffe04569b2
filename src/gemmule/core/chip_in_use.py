"""The name of the chip that times are predicted for."""

from __future__ import annotations

_names = [""]


def use_chip(name: str) -> None:
    """Predict times for a chip, by the name that its driver gives it.

    The choice is the process's: with GPUs of several kinds, times are those of the last one named.
    """
    _names[0] = name


def chip_in_use() -> str:
    """Return the name of the chip, or an empty text where none was named."""
    return _names[0]
