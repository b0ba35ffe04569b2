"""The drawings of a page, which are most of the work of a report: they are independent, and drawn in processes."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from gemmule.core.cpus import usable_cpus

from ..drawing.canvas import Page, check_matplotlib, figure_on, inline_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Given the number of drawings, shows progress; it is called with each one's name.
Watch = Callable[[int], AbstractContextManager[Callable[[str, int], None]]]

#: A process takes as long to start as some of them take to draw.
_WORTH_A_PROCESS = 8


def unwatched(total: int) -> AbstractContextManager[Callable[[str, int], None]]:
    """Show nothing."""
    del total
    return contextlib.nullcontext(lambda *_: None)


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A drawing that is still to be made, anywhere."""

    name: str  #: Its id, which no other has.
    title: str  #: Its text alternative.
    page: Page  #: Page that shows it.
    draw: Callable[[Figure, Page], None]  #: Draws it on a figure for a page; one that another process can be given.

    def svg(self) -> str:
        """Make it, as an ``svg`` element."""
        with figure_on(self.page, text_as="none", salt=self.name) as figure:
            self.draw(figure, self.page)
            return inline_svg(figure, self.name, self.title)


def draw_all(wanted: Sequence[Drawing], watch: Watch, workers: int | None = None) -> Mapping[str, str]:
    """Make drawings, on all processors where they are many.

    Parameters
    ----------
    watch : callable
        Shows how far it is.
    workers : int, optional
        Processes; by default as many as there are processors, and none where that is not worth their start.

    Returns
    -------
    mapping of str to str
        The ``svg`` element of each by its name.

    Raises
    ------
    UnsupportedError
        If matplotlib is not installed.
    """
    check_matplotlib()
    count = min(usable_cpus(), len(wanted) // _WORTH_A_PROCESS) if workers is None else workers
    made = {}
    with watch(len(wanted)) as step:
        for name, svg in _made(wanted, count):
            made[name] = svg
            step(name, 1)
    return made


def _made(wanted: Sequence[Drawing], count: int) -> Iterator[tuple[str, str]]:
    if count < 2:
        yield from ((drawing.name, drawing.svg()) for drawing in wanted)
        return
    # A forked child would inherit the locks of NumPy's threads.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(count, mp_context=context) as pool:
        running = {pool.submit(drawing.svg): drawing.name for drawing in wanted}
        try:
            for future in concurrent.futures.as_completed(running):
                yield running[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)
