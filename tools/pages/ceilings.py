"""Tables of what a kernel's main loop can reach, part by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .markdown import markdown

#: What the benchmark's parts are, in words.
_PARTS = {
    "products": "products alone, of fragments that stay in registers",
    "products_and_fragments": "and fragments from shared memory",
    "products_fragments_and_waits": "fragments, and a wait for each k-tile",
    "products_fragments_and_copies": "fragments and copies, without waits",
    "all_of_it": "fragments, copies and waits",
    "all_of_it_with_waits_split": "the same, warps saying one step before they wait that they are there",
}


def ceiling_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the rate of each part of a main loop, a clock and in long runs."""
    rows = [
        (
            _PARTS.get(record["part"], record["part"]),
            f"{record['clocks_per_slice']:.0f}",
            f"{record['flop_per_clock']:.0f}",
            f"{record['tflops']:.0f}",
            f"{record['clock_mhz']:.0f}" if "clock_mhz" in record else "",
            f"{record['power_w']:.0f}" if "power_w" in record else "",
        )
        for record in records
        if record["record"] == "ceiling"
    ]
    return markdown(("what a CTA does", "cycles per k-tile", "FLOP per cycle", "TFLOP/s", "MHz", "watts"), rows)
