"""printf of host code and of kernels: texts formatted as C does it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

_CONVERSION = re.compile(r"%(?P<flags>[-+ #0]*\d*(?:\.\d+)?)(?P<length>hh|h|ll|l|z|j|t)?(?P<kind>[diuxXocsfFeEgGp%])")


def formatted(text: str, values: Sequence[Any], text_at: Callable[[int], str]) -> str:
    """Format as C's printf does; `text_at` returns the text at an address, for ``%s``."""
    rest = iter(values)

    def replaced(match: re.Match[str]) -> str:
        kind, flags = match["kind"], match["flags"]
        if kind == "%":
            return "%"
        value = next(rest, 0)
        if kind == "s":
            return f"%{flags}s" % text_at(value)
        if kind == "p":
            return f"{value % (1 << 64):#x}"
        if kind in "uxXo" and isinstance(value, int) and value < 0:
            value += 1 << (32 if value >= -(1 << 31) else 64)
        return f"%{flags}{'d' if kind == 'u' else kind}" % value

    return _CONVERSION.sub(replaced, text)


def argument_types(text: str) -> tuple[str, ...]:
    """Return how a kernel passes the argument of each conversion: ``i4``, ``i8`` or ``f8``, by kind and bytes."""
    found = []
    for match in _CONVERSION.finditer(text):
        kind, length = match["kind"], match["length"] or ""
        if kind == "%":
            continue
        wide = kind in "sp" or length in ("ll", "l", "z", "j", "t")
        found.append("f8" if kind in "fFeEgG" else "i8" if wide else "i4")
    return tuple(found)
