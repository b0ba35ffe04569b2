"""Progress bars on stderr for long work."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from ..core.quantities import short_quantity


@contextlib.contextmanager
def product_progress(text: str, clock: Callable[[], float] = time.perf_counter) -> Iterator[Callable[..., None] | None]:
    """Show how many of the multiplications are done, the rate and the time left; nothing where stderr is no terminal.

    The rate is by the `clock`, in seconds.

    Yields
    ------
    callable or None
        To be called with the multiply-adds done, the total, and a text.
    """
    if not _is_terminal(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=None, rate="")
        start = clock()

        def advance(done: int, total: int, more: str = "") -> None:
            rate = short_quantity(2 * done / max(clock() - start, 1e-9), "FLOP/s", 3)
            bar.update(task, completed=done, total=total, rate=f"{rate}{', ' * bool(more)}{more}")

        yield advance


@contextlib.contextmanager
def steps_progress(text: str, total: int) -> Iterator[Callable[[str, int], None]]:
    """Show how many steps are done and what is being done; nothing where stderr is no terminal.

    Yields
    ------
    callable
        To be called with the current step and the number of further steps done.
    """
    if not _is_terminal(sys.stderr):
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[doing]}"),
    )
    # Output during the run is printed above the bar, if it goes to the terminal too.
    terminal = _is_terminal(sys.stdout)
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=terminal) as bar:
        task = bar.add_task(text, total=total, doing="")
        yield lambda doing, more: bar.update(task, advance=more, doing=doing)


def _is_terminal(stream: TextIO | None) -> bool:
    # Python has no stream where the process was started with a closed one, as some services are.
    return stream is not None and stream.isatty()
