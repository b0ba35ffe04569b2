"""Suggestions for unknown names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

# A letter and a number at the beginning, such as g7 or g07.
_NUMBERED = re.compile(r"([a-z]+)0*(\d+)")


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the message for an unknown name, with similar names, or all if none is similar.

    Parameters
    ----------
    kind : str
        Noun for the named object, e.g. ``kernel``.
    name : str
        The unknown name.
    known : iterable of str
        The known names.
    """
    names = list(known)
    folded = {candidate.casefold(): candidate for candidate in names}
    near = [candidate for candidate in names if (number := _number(name)) and number == _number(candidate)]
    near += [folded[match] for match in difflib.get_close_matches(name.casefold(), folded, n=4, cutoff=0.5)]
    # A part of the name, such as its beginning g03.
    near += [candidate for candidate in names if name and name.casefold() in candidate.casefold()]
    chosen = list(dict.fromkeys(near)) or names
    return f"{kind} {name!r} is not known; {'near' if near else 'known'} are {', '.join(chosen)}"


def _number(name: str) -> tuple[str, str] | None:
    found = _NUMBERED.match(name.casefold())
    return (found[1], found[2]) if found else None
