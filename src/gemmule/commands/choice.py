"""Options that take one of several names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import click

from ..core.name_suggestions import did_you_mean, similar_names


class NameChoice(click.Choice[str]):
    """One of several names, with a suggestion for a misspelled one."""

    def __init__(self, names: Sequence[str], former: Mapping[str, str] = MappingProxyType({})) -> None:
        """Accept the `former` names too, each for the name that it maps to."""
        super().__init__(names)
        self._former = former

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name, or raise a usage error with similar names, or all if none is similar."""
        value = self._former.get(value, value)
        if value not in self.choices and (near := similar_names(str(value), self.choices)):
            self.fail(f"{value!r} is not known; {did_you_mean(near)}", param, ctx)
        return super().convert(value, param, ctx)
