"""Colours of figures and of the report, for a light and a dark page.

Series are told apart by mark and label as well, so that no colour carries anything alone. Colours are after Okabe and
Ito's set, which colour-blind people can tell apart, darkened for a light page and lightened for a dark one: every one
has a contrast of 3 or more to its page, and text one of 4.5 or more.
"""

from __future__ import annotations

import dataclasses

#: Marks of the series, in the order of the colours.
MARKS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h")


@dataclasses.dataclass(frozen=True)
class Theme:
    """Colours of a figure on one kind of page."""

    name: str  #: ``light`` or ``dark``.
    page: str  #: Background.
    #: ink, faint: Text and the baseline; text and lines that step back.
    ink: str
    faint: str
    grid: str  #: Lines of the grid.
    series: tuple[str, ...]  #: One for each kernel.

    @property
    def variables(self) -> dict[str, str]:
        """Name of a CSS variable by colour."""
        named = {self.page: "--page", self.ink: "--ink", self.faint: "--faint", self.grid: "--grid"}
        return named | {colour: f"--series-{number}" for number, colour in enumerate(self.series)}


LIGHT = Theme(
    name="light",
    page="#ffffff",
    ink="#1b1f24",
    faint="#57606a",
    grid="#e1e4e8",
    series=(
        "#0067a8", "#b84a00", "#00765a", "#a8327e", "#2a7fb0", "#8f6000", "#6e6e6e", "#7a4a3a", "#5b3fa0", "#00655c",
    ),
)  # fmt: skip
DARK = Theme(
    name="dark",
    page="#0d1117",
    ink="#e6edf3",
    faint="#9ba5b0",
    grid="#272d36",
    series=(
        "#6cb4ee", "#ff9e5e", "#4cc9a0", "#f092c6", "#a6dcff", "#f0c75e", "#b8b8b8", "#d9a78f", "#b9a2ff", "#5fd3c8",
    ),
)  # fmt: skip
THEMES = (LIGHT, DARK)
