"""Suggestions for unknown names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# A letter and a number at the beginning, such as g7 or g07.
_NUMBERED = re.compile(r"([a-z]+)0*(\d+)")
# More would be a list to read instead of a suggestion.
_MOST_SUGGESTED = 3
#: Least similarity of a suggestion: float8 has 0.6 of fast.
_SIMILAR = 0.65


def unknown_name(kind: str, name: str, known: Iterable[str], listed: str = "") -> str:
    """Return the message for an unknown name, with similar names, or the remedy if none is similar.

    Parameters
    ----------
    kind : str
        Noun for the named object, e.g. ``kernel``.
    name : str
        The unknown name.
    known : iterable of str
        The known names.
    listed : str
        Remedy where none is similar, for names too many to list; by default the message lists all.
    """
    names = list(known)
    near = similar_names(name, names)
    remedy = did_you_mean(near) if near else listed or f"choose one of {', '.join(names)}"
    return f"{kind} {name!r} is not known; {remedy}"


def remedy_for(value: object, known: Iterable[str], otherwise: str = "") -> str:
    """Return the remedy for an unknown value: similar names, or all of them, quoted as in Python.

    Parameters
    ----------
    value : object
        The unknown value; one that is no string is similar to no name.
    known : iterable of str
        The known names.
    otherwise : str
        Follows the list of all names, e.g. ``, or pass a function``.
    """
    names = list(known)
    near = similar_names(value, names) if isinstance(value, str) else ()
    return did_you_mean([*map(repr, near)]) if near else f"choose one of {', '.join(map(repr, names))}{otherwise}"


def did_you_mean(names: Sequence[str]) -> str:
    """Return the question for one or more suggested names."""
    *others, last = names
    return f"did you mean {' or '.join([', '.join(others), last] if others else [last])}?"


def similar_names(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return at most three of the known names that are similar to a name, the most similar first.

    No more than three known names have no similar ones: the whole list is as short as a suggestion.
    """
    # Imported for an error message only.
    import difflib

    names = list(known)
    if len(names) <= _MOST_SUGGESTED:
        return ()
    folded = {candidate.casefold(): candidate for candidate in names}
    near = [candidate for candidate in names if (number := _number(name)) and number == _number(candidate)]
    matches = difflib.get_close_matches(name.casefold(), folded, n=_MOST_SUGGESTED, cutoff=_SIMILAR)
    near += [folded[match] for match in matches]
    # A part of the name that begins a word of it, such as g03; a letter is in most.
    near += [one for one in names if len(name) > 1 and f"_{name}".casefold() in f"_{one}".casefold()]
    return tuple(dict.fromkeys(near))[:_MOST_SUGGESTED]


def _number(name: str) -> tuple[str, str] | None:
    found = _NUMBERED.match(name.casefold())
    return (found[1], found[2]) if found else None
