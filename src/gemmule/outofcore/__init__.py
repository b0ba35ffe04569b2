"""Products of matrices that do not fit into memory: planned, streamed by tiles, verified.

`matmul` multiplies files and arrays of any size; ``matmul.plan(…)`` plans a call with the same arguments.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemmule.outofcore.calls.arguments import Options
    from gemmule.outofcore.calls.matmul import matmul
    from gemmule.outofcore.calls.plan import Plan

    from .tiles.report import Report

__all__ = ["Options", "Plan", "Report", "matmul"]

#: Names by the module that has them, imported when one is first used: the rooms of this package do not need the API.
_LAZY = {
    "Options": "gemmule.outofcore.calls.arguments",
    "Plan": "gemmule.outofcore.calls.plan",
    "Report": "gemmule.outofcore.tiles.report",
    "matmul": "gemmule.outofcore.calls.matmul",
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a public name's module, and bind the name."""
        if name not in _LAZY:
            raise AttributeError(f"module 'gemmule.outofcore' has no attribute {name!r}")
        found: object = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
