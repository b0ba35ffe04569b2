"""What is drawn of counts: a panel of bars for each of some figures, a bar for each kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from .counted import (
    Counted,
    Counts,
    Row,
    Shape,
    conflict_share,
    counted,
    dram_bytes,
    fma_share,
    issue_share,
    l2_bytes,
    occupancy_share,
    percent,
    scaled,
)
from .kernel_labels import labels
from .styles import Style, in_order, styles

#: The figures that are drawn; the table has all.
_DRAWN = (
    Row("bytes to and from device memory", dram_bytes, lambda value: f"{scaled(value)}B"),
    Row("bytes to and from the L2 cache", l2_bytes, lambda value: f"{scaled(value)}B"),
    Row("cycles in which a scheduler issues", issue_share, percent),
    Row("multiply-adds among instructions", fma_share, percent),
    Row("achieved occupancy", occupancy_share, percent),
    Row("wavefronts added by bank conflicts", conflict_share, percent),
)


@dataclasses.dataclass(frozen=True)
class Bar:
    """A kernel's value, its length and its text."""

    name: str
    style: Style
    value: float
    text: str


@dataclasses.dataclass(frozen=True)
class Panel:
    """A figure of every kernel that has it."""

    title: str
    bars: tuple[Bar, ...]


@dataclasses.dataclass(frozen=True)
class Panels:
    """The counts of one element type, size and layout.

    Attributes
    ----------
    name : str
        Part of ids and file names.
    dtype : str
        Element type.
    shape : tuple of int
        M, N and K, or rows and columns.
    layout : str
        How the operands lie in memory.
    columns : tuple of (str, mapping, mapping)
        Name of each kernel, and its counts by the hardware and by the virtual GPU.
    panels : tuple of Panel
        What is drawn.
    """

    name: str
    dtype: str
    shape: Shape
    layout: str
    columns: tuple[tuple[str, Counts, Counts], ...]
    panels: tuple[Panel, ...]


def panels(records: Sequence[Mapping[str, Any]]) -> list[Panels]:
    """Return the counts of every element type, size and layout, the kernels in the order of the ladder."""
    groups: dict[tuple[str, Shape, str], list[Counted]] = {}
    for one in counted(records):
        groups.setdefault((one.dtype, one.shape, one.layout), []).append(one)
    found = []
    for (dtype, shape, layout), unordered in groups.items():
        of_type = [r for r in records if r.get("dtype") == dtype]
        names, looks = labels(r for r in of_type if r["record"] == "counts"), styles(of_type)
        by_key = {one.key: one for one in unordered}
        group = [by_key[key] for key in in_order(by_key, looks)]
        drawn = []
        written = any("dram__bytes_write.sum" in one.hardware for one in group)
        for row in _DRAWN:
            bars = tuple(
                Bar(names[one.key], looks[one.key], value, row.written(value))
                for one in group
                if isinstance(value := row.of(one.hardware), float)
            )
            if bars:
                drawn.append(Panel(row.name if written else row.name.replace("to and from", "read from"), bars))
        columns = tuple((names[one.key], one.hardware, one.virtual) for one in group)
        name = f"counts-{dtype}-{layout}-{'x'.join(map(str, shape))}"
        found.append(Panels(name, dtype, shape, layout, columns, tuple(drawn)))
    return found
