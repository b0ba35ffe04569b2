"""Options that take one of several names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from ..core.name_suggestions import did_you_mean, similar_names


class NameChoice(click.Choice[str]):
    """One of several names, with a suggestion for a misspelled one."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name, or raise a usage error with similar names, or all if none is similar."""
        if value not in self.choices and (near := similar_names(str(value), self.choices)):
            self.fail(f"{value!r} is not known; {did_you_mean(near)}", param, ctx)
        return super().convert(value, param, ctx)
