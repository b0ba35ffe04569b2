"""The section on profiles: the tables of `gemmule profile`, by file and product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..profile.tables import SIZES_TITLE, TIME_TABLES, sizes, times
from .sources import Machine, Source
from .views import Section, TableView, table_view

Record = Mapping[str, Any]
#: Kinds of rows that are many, and that few look for.
_FOLDED = ("call",)
_PARAGRAPH = (
    "Where the time of a product of host arrays goes. Each time is of one row's spans; shares of two tables do not add "
    "up, since a call on the host waits for kernels. A profile is no benchmark: the GPU is not warm, and each record "
    "costs time."
)


def profiles(machine: Machine, name: str) -> Section | str:
    """Return the section, or nothing if no file has a profile."""
    profiled = [
        (source, product)
        for source in machine.sources
        for product in dict.fromkeys(_product(one) for one in source.records if one["record"] == "profile")
    ]
    if not profiled:
        return ""
    files = {source.name for source, _ in profiled}
    found: list[TableView] = []
    for number, (source, product) in enumerate(profiled):
        found += _tables(source, product, f"{name}-profile-{number}", named=len(files) > 1)
    return Section(f"{name}-profile", "Profiles", (_PARAGRAPH,), tables=tuple(found))


def _product(record: Record) -> tuple[int, int, int, str]:
    return record["m"], record["n"], record["k"], record["dtype"]


def _tables(source: Source, product: tuple[int, int, int, str], name: str, *, named: bool) -> list[TableView]:
    """Return the tables of one product; where several files have profiles, they name theirs."""
    of_product: Sequence[Record] = [
        one for one in source.records if one["record"] == "profile" and _product(one) == product
    ]
    m, n, k, dtype = product
    head, file = f"{m} x {n} x {k}, {dtype}", f" ({source.name})" if named else ""
    found = [
        table_view(f"{name}-{kind}", f"{head}: {title}{file}", table, texts=texts, folded=kind in _FOLDED)
        for kind, title, texts in TIME_TABLES
        if (table := times(of_product, kind))[1]
    ]
    moved = sizes(of_product)
    if moved[1]:
        found.append(table_view(f"{name}-sizes", f"{head}: {SIZES_TITLE}{file}", moved))
    return found
