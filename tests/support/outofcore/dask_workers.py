"""Dask workers for tests: a pause for each slice, and a log of the tiles that they journal."""

from __future__ import annotations

import collections
import contextlib
import os

import pytest

from gemmule.host.tiles import HostTileSum

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


@contextlib.contextmanager
def started(folder, pause):
    """Start two workers, processes of their own."""
    distributed = pytest.importorskip("distributed")
    # Dask sets variables in this process, such as OPENBLAS_NUM_THREADS, which later subprocesses would inherit.
    before = dict(os.environ)
    try:
        with distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, memory_limit=0, dashboard_address=None,
            preload=[preload(folder, HostTileSum, pause)], silence_logs=50,
        ) as cluster:  # fmt: skip
            yield cluster
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@pytest.fixture
def cluster(tmp_path):
    """Return a function that starts workers, which note their tiles in the test's folder."""
    with contextlib.ExitStack() as stack:
        yield lambda pause: stack.enter_context(started(tmp_path, pause))
