"""Styles of kernels in figures: a kernel has the same colour and mark in all of them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from gemmule.dispatch.registry import LADDER

from .kernel_labels import NAMED, Key, key_of

#: There are so many colours, and as many marks.
COLOURS = 10
_FIELDS = re.compile(r"\[[^],]*,[^]]*\]")
_RUNG = re.compile(r"\b([a-z]+\d\d)_\w+")


@dataclasses.dataclass(frozen=True)
class Style:
    """A kernel's colour and mark, and the dashes of its configs."""

    colour: int = 0  #: Index of the theme's colour, and of the mark.
    #: Number of the config among those of the kernel that are shown: the first has a full mark, others hollow ones.
    config: int = 0


def styles(records: Iterable[Mapping[str, Any]]) -> dict[Key, Style]:
    """Return the style of every kernel and config in the records: rungs in their order, then the others."""
    configs: dict[str, dict[Key, None]] = {}
    for record in records:
        if record["record"] in NAMED and "config" in record:
            configs.setdefault(record["kernel"], {})[key_of(record)] = None
    rungs = {name: place for place, name in enumerate(LADDER)}
    ordered = sorted(configs, key=lambda name: rungs.get(name, len(rungs)))
    return {
        key: Style(place % COLOURS, number)
        for place, name in enumerate(ordered)
        for number, key in enumerate(configs[name])
    }


def in_order(keys: Iterable[Key], looks: Mapping[Key, Style]) -> list[Key]:
    """Return kernels as they are drawn: rungs in their order, a kernel's configs together."""
    return sorted(keys, key=lambda key: (looks[key].colour, looks[key].config))


def short(name: str) -> str:
    """Return a kernel's name as it labels a curve: of a rung its number, of two fields and more their values."""
    return _FIELDS.sub(lambda match: re.sub(r"\w+=", "", match[0]), _RUNG.sub(r"\1", name))
