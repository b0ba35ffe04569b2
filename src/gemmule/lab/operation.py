"""The description of an operation that kernels are measured at; bench, records and tables are written once for all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from gemmule.core.chip import Chip

Record = Mapping[str, Any]
P = TypeVar("P")


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table of figures: its header, and the cell of a timed kernel's record."""

    header: str
    cell: Callable[[Record], str]


@dataclasses.dataclass(frozen=True)
class Operation(Generic[P]):
    """An operation: its problems, their work, and its figures."""

    kind: str  #: Kind of the records of timed kernels.
    field: str  #: Field that the records of this operation alone have.
    size: str  #: Header of a column of sizes, e.g. ``M x N x K``.
    fields: Callable[[P], dict[str, Any]]  #: Gives the fields that name a problem in a record.
    text: Callable[[P], str]  #: Gives a problem in words.
    #: Gives the fields of the rate: of a problem in so many seconds, with the chip's facts or None.
    rate: Callable[[P, float, Chip | None], dict[str, Any]]
    size_text: Callable[[Record], str]  #: Gives the size of a record's problem in words.
    #: Returns further properties that distinguish problems of one size; empty if none.
    layout_text: Callable[[Record], str]
    #: Gives the columns of the records' figures behind their times; of paired ratios or of ratios of medians.
    columns: Callable[[Sequence[Record], bool], list[Column]]

    @property
    def timed(self) -> tuple[str, ...]:
        """Kinds of records that have times."""
        return self.kind, "yardstick"

    def of(self, records: Iterable[Record]) -> list[Record]:
        """Return the records of this operation: checks may be of tests, and skipped ones of another operation."""
        kinds = ("yardstick", "skipped", "failed", "check")
        return [one for one in records if one["record"] == self.kind or (one["record"] in kinds and self.field in one)]


def percent(share: float | None) -> str:
    """Return a share as a percentage; nothing of one that is absent."""
    return "" if share is None else f"{100 * share:.1f} %"


def ratio_of(record: Record, *, paired: bool) -> float:
    """Return the median of the ratios of paired times if `paired` and there is one; else the ratio of the medians.

    The latter may be outside of the interval of the paired ratios.
    """
    ratio: float = record.get("paired_ratio", record["ratio"]) if paired else record["ratio"]
    return ratio


def interval_text(record: Record, *, paired: bool) -> str:
    """Return a ratio, and the interval of its paired ratios."""
    low, high = record["paired_ratio_low"], record["paired_ratio_high"]
    return f"{ratio_of(record, paired=paired):.3f} ({low:.3f} to {high:.3f})"
