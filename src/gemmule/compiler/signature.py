"""A kernel's entry point and parameter list, read from its PTX."""

from __future__ import annotations

import re

from gemmule.core.dataclass import dataclass
from gemmule.core.errors import CompileError

_ENTRY = re.compile(r"\.visible\s+\.entry\s+(?P<name>\w+)\s*\((?P<params>.*?)\)", re.DOTALL)
_PARAM = re.compile(r"\.param\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>[a-z]\d+)\s+\w+(?:\[(?P<count>\d+)\])?")


@dataclass(frozen=True)
class ParamSlot:
    """One parameter of a compiled kernel: its size and alignment in bytes."""

    size: int
    alignment: int


def read_entry(ptx: str) -> tuple[str, tuple[ParamSlot, ...]]:
    """Return the kernel's name and its parameters in order.

    Raises
    ------
    CompileError
        If the PTX has not exactly one kernel.
    """
    entries = list(_ENTRY.finditer(ptx))
    if len(entries) != 1:
        names = ", ".join(entry["name"] for entry in entries) or "none"
        raise CompileError(f"the compiled module must have one kernel, but has {names}")
    slots = []
    for param in entries[0]["params"].split(","):
        match = _PARAM.search(param)
        if match is None:
            if param.strip():
                raise CompileError(f"the PTX parameter {param.strip()!r} is malformed")
            continue
        item = int(match["type"][1:]) // 8
        slots.append(ParamSlot(item * int(match["count"] or 1), int(match["align"] or item)))
    return entries[0]["name"], tuple(slots)
