"""Tables of a campaign of random problems: a row for each kernel, and what the problems were made of."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

from .markdown import markdown

Record = Mapping[str, Any]
_PREFIX = "fuzz "


def fuzz_block(records: Sequence[Record]) -> str:
    """Return what was checked of each kernel, and the problems by types, epilogues, layouts and the like."""
    found = [one for one in records if one["record"] == "check" and one["what"].startswith(_PREFIX)]
    total, wrong = (sum(one[name] for one in found) for name in ("problems", "wrong"))
    first = found[0]
    lines = [
        f"Seed {first['seed']}: {total} of {first['wanted']} problems checked, {wrong} wrong; "
        f"{first['kernels_compiled']} compiled kernels, {first['seconds']:.0f} s, "
        f"{first['prepared_s']:.0f} of them before the first problem."
    ]
    rows = [
        [one["what"].removeprefix(_PREFIX), str(one["problems"]), f"{100 * one['problems'] / max(total, 1):.1f} %",
         str(one["wrong"]), f"{one['worst_share']:.3f}"]
        for one in found
    ]  # fmt: skip
    lines.append(markdown(["kernel", "problems", "share", "wrong", "greatest error / bound"], rows))
    counts: dict[str, collections.Counter[str]] = {}
    for one in found:
        for what, names in one["by"].items():
            counts.setdefault(what, collections.Counter()).update(names)
    shares = [[what, ", ".join(f"{name} {n}" for name, n in of.most_common())] for what, of in counts.items()]
    lines.append(markdown(["by", "problems"], shares))
    return "\n\n".join(lines)
