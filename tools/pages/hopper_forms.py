"""Forms of Hopper's instructions on a GPU and on the virtual one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .markdown import markdown

Record = Mapping[str, Any]


def forms_table(records: Sequence[Record]) -> str:
    """Return a row for each group: how many gave equal memory, how many both refuse, elements and equal ones."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        if record["record"] == "form":
            groups.setdefault(record["group"], []).append(record)
    rows = []
    for group, forms in groups.items():
        compared = [form for form in forms if "elements" in form]
        elements, equal = (sum(form[name] for form in compared) for name in ("elements", "equal"))
        whole = sum(form["elements"] == form["equal"] for form in compared)
        refused = sum("virtual_error" in form and "hardware_error" in form for form in forms)
        rows.append([group, str(len(forms)), str(whole), str(refused or ""), f"{elements:,}", f"{equal:,}"])
    header = ["group", "forms", "with equal memory", "refused by both", "elements compared", "with equal bits"]
    return markdown(header, rows)
