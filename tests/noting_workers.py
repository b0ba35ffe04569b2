"""What tests of products on Dask workers share: workers that take a moment for each slice, and note their tiles."""

from __future__ import annotations

import collections

#: Runs in every worker as it starts, maybe twice.
_PRELOAD = """
import os, time
from gemmule.outofcore.journal.journal_file import Journal
from {module} import {sums} as sums
if not hasattr(Journal, "noted"):
    add, append = sums.add, Journal.append
def slow(self, a, b):
    time.sleep({pause})
    add(self, a, b)
def noted(self, tiles):
    tiles = dict(tiles)
    append(self, tiles.items())
    with open({log!r}, "ab", buffering=0) as file:
        for tile in tiles:
            file.write(f"{{os.getpid()}} {{tile[0]}} {{tile[1]}}\\n".encode())
if not hasattr(Journal, "noted"):
    sums.add, Journal.append, Journal.noted = slow, noted, True
"""


def preload(folder, sums, pause):
    """Write what workers load first; return its path.

    Each slice that is added to a tile of the class `sums` takes `pause` seconds more; tiles that the journal notes are
    written down in the folder.
    """
    path = folder / "preload.py"
    path.write_text(_PRELOAD.format(module=sums.__module__, sums=sums.__name__, pause=pause, log=str(folder / "log")))
    return str(path)


def noted(folder):
    """Return how often each tile was noted in that folder, and by which processes."""
    log = folder / "log"
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return collections.Counter((row, col) for _, row, col in lines), {pid for pid, _, _ in lines}
