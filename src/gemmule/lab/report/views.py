"""The page's contents in order: sections of text, figures and tables. The template only sets them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from .drawings import Drawing


@dataclasses.dataclass(frozen=True)
class TableView:
    """A table."""

    name: str  #: Its id.
    caption: str  #: Caption.
    header: tuple[str, ...]  #: Heads of the columns.
    rows: tuple[tuple[str, ...], ...]  #: Cells; the first of each row is its head.
    texts: int = 1  #: Columns of text, flush left; the others hold numbers.
    folded: bool = False  #: Whether it is opened by a click.
    #: Further columns of text, counted from 0. One that is headed ``note`` is text anyway.
    more_texts: tuple[int, ...] = ()

    def is_text(self, column: int) -> bool:
        """Whether a column, counted from 0, holds text."""
        return column < self.texts or column in self.more_texts or self.header[column] == "note"


def table_view(
    name: str,
    caption: str,
    table: tuple[Sequence[str], Sequence[Sequence[str]]],
    *,
    texts: int = 1,
    folded: bool = False,
) -> TableView:
    """Return a table of a header and rows."""
    header, rows = table
    return TableView(name, caption, tuple(header), tuple(map(tuple, rows)), texts, folded)


@dataclasses.dataclass(frozen=True)
class FigureView:
    """A figure, drawn for wide and for narrow screens."""

    name: str  #: Its id.
    title: str  #: Title, which the text alternative begins with.
    caption: str  #: Legend.
    #: wide, narrow: How each is drawn.
    wide: Drawing
    narrow: Drawing
    data: TableView  #: The same figures as a table.
    folded: bool = False  #: Whether it is opened by a click.


@dataclasses.dataclass(frozen=True)
class Section:
    """A section on a machine: paragraphs, then figures, then tables, then notes."""

    name: str
    title: str
    paragraphs: tuple[str, ...] = ()
    figures: tuple[FigureView, ...] = ()
    tables: tuple[TableView, ...] = ()
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Conditions of a file's measurement: its name, and pairs of quantity and value."""

    file: str
    facts: tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True)
class MachineView:
    """The report on one kind of GPU."""

    #: name, title: Its id, and its name.
    name: str
    title: str
    sections: tuple[Section, ...]  #: Sections, by kind of record.
    absent: tuple[str, ...]  #: A line for each section that they do not hold.
    common: tuple[tuple[str, str], ...]  #: Conditions common to all files.
    experiments: tuple[Experiment, ...]  #: Further conditions of each file.


def drawings(machines: Iterable[MachineView]) -> list[Drawing]:
    """Return the drawings of a page."""
    figures = [figure for machine in machines for section in machine.sections for figure in section.figures]
    return [drawing for figure in figures for drawing in (figure.wide, figure.narrow)]
