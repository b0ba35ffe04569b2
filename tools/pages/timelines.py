"""A recorded timeline for a page of the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gemmule.lab.explain.timeline_json import timeline_from, timeline_record
from gemmule.lab.explain.timeline_text import chart


def timeline_block(records: Sequence[Mapping[str, Any]], kernel: str) -> str:
    """Return the rows of a kernel's timeline, and what was run.

    Raises
    ------
    KeyError
        If the records have no timeline of the kernel.
    """
    one = timeline_record(records, kernel)
    found = timeline_from(one["timeline"])
    config = " ".join(f"{name}={value}" for name, value in one["config"].items())
    tiles = f"the first {found.tiles} tiles of a CTA" if found.tiles > 1 else "a tile"
    if found.ctas > found.multiprocessors:
        tiles = f"a tile of each of the {found.ctas // found.multiprocessors} CTAs of a multiprocessor"
    rules = found.rules
    return "\n".join(
        [
            f"{' x '.join(map(str, one['shape']))}, {one['dtype']}, {one['chip']}, {config}: {tiles}, cut to "
            f"{found.k_tiles} k-tiles. A step is a k-tile's products, {found.step:,.0f} clocks; {rules.copy_bytes:g} "
            f"bytes a clock for copies and {rules.copy_latency:g} clocks until the first one comes are assumed. By "
            "rule, not measured.",
            "",
            "```",
            chart(found),
            "```",
        ]
    )
