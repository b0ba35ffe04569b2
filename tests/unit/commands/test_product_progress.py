"""What a terminal shows while a product is computed: tiles, rates and the time left."""

from __future__ import annotations

import contextlib
import io
import itertools
import re

import rich.progress

from gemmule.commands import progress
from gemmule.outofcore.calls.device_engine import _multiplications
from gemmule.outofcore.device.engine.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def text_of(terminal):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())


def test_a_product_through_a_device(monkeypatch):
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "200", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    # Every look at the clock is a second after the one before.
    seconds = itertools.count()
    left = []
    render = rich.progress.TimeRemainingColumn.render

    def rendered(self, task):
        left.append(task.time_remaining)
        return render(self, task)

    monkeypatch.setattr(rich.progress.TimeRemainingColumn, "render", rendered)
    monkeypatch.setattr(rich.progress.TimeRemainingColumn, "max_refresh", None)
    with (
        contextlib.redirect_stderr(Terminal()) as shown,
        progress.product_progress("A @ B", lambda: float(next(seconds))) as bar,
    ):
        told = _multiplications(bar)
        told(Progress(1, 8, 3_000_000_000, 24_000_000_000, 4_000_000_000, 1_000_000_000, 2.0))
        told(Progress(3, 8, 9_000_000_000, 24_000_000_000, 9_000_000_000, 3_000_000_000, 3.0))
    text = text_of(shown)
    assert "A @ B" in text
    # Two seconds after the start, 9 GFLOP were done.
    assert re.search(r"38%\s+4\.5 GFLOP/s, tile 3/8, in 3\.0 out 1\.0 GB/s", text), text
    assert left
    assert 0 < left[-1] < 1000


def test_without_a_terminal_nothing_is_told():
    with contextlib.redirect_stderr(io.StringIO()) as shown, progress.product_progress("A @ B") as told:
        assert told is None
    assert shown.getvalue() == ""


def test_a_process_without_streams():
    """Services and windows without a console start processes whose standard streams are closed."""
    with contextlib.redirect_stderr(None):
        with progress.product_progress("multiplying") as told:
            assert told is None
        with progress.steps_progress("measuring", 2) as step:
            step("one", 1)
