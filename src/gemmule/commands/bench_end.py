"""A measurement and its end: records as they come, then JSON or tables, plots, and the exit code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import GemmuleError, WrongResultError
from . import gpu
from .failures import LEFT
from .json_output import echo_json
from .progress import steps_progress

if TYPE_CHECKING:
    from ..lab.bench import Bench
    from ..lab.plots import Plot
    from ..lab.transpose_plots import TransposePlot

Record = dict[str, Any]


@contextlib.contextmanager
def record_file(folder: str | None, block: Record, *, quiet: bool) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Open a new record file in a folder, and yield the function that writes a record, which does nothing without one.

    A failure names the file that holds what was written so far; otherwise the file's name is printed at the end.
    """
    from ..lab.records import RecordFile

    if folder is None:
        yield lambda _: None
        return
    meta = click.get_current_context().meta
    with RecordFile(Path(folder), block) as file:
        meta[LEFT] = file.partial
        yield file.write
    del meta[LEFT]
    if not quiet:
        click.echo(f"record: {file.path}")


def measured(
    bench: Bench[Any, Any],
    block: Record,
    points: int,
    folder: str | None,
    *,
    key: Callable[[Record], object],
    show: Callable[[list[Record]], None] | None,
    add: Callable[[Record], Record] | None = None,
) -> list[Record]:
    """Measure; show the figures of each problem, and write each record, as soon as they are there.

    Parameters
    ----------
    bench : Bench
        The measurement.
    block : dict
        The experiment block.
    points : int
        Steps of the progress.
    folder : str or None
        Folder of a record file.
    key : callable
        Returns the key of a record's problem.
    show : callable or None
        Prints the records of a problem.
    add : callable or None
        Adds to a record.
    """
    from ..lab.bench_records import BASELINE, TORCH

    records: list[Record] = []
    point: list[Record] = []
    with record_file(folder, block, quiet=show is None) as write, steps_progress("measuring", points) as step:
        for found in bench.records(lambda doing: step(doing, 0)):
            one = add(found) if add is not None else found
            if point and show and key(point[0]) != key(one):
                show(point)
                point = []
            point.append(one)
            records.append(one)
            write(one)
            step("", one.get("kernel", BASELINE) not in (BASELINE, TORCH))
        if point and show:
            show(point)
    return records


def draw_plots(found: Sequence[Plot | TransposePlot], folder: Path, stem: str, *, without: str, quiet: bool) -> None:
    """Draw plots into a folder and print their names; where there are none, say `without`, what they take."""
    from ..lab.pictures import draw

    for plot in found:
        for path in draw(plot, folder, stem):
            if not quiet:
                click.echo(f"plot: {path}")
    if not found:
        click.echo(f"no plot: {without}", err=True)


def end(
    block: Record,
    records: Sequence[Record],
    print_end: Callable[[Sequence[Record]], None],
    draw: Callable[..., None],
    *,
    plot: str | None,
    as_json: bool,
) -> None:
    """Print the results, draw them into the folder `plot`, and fail if a kernel was wrong.

    Raises
    ------
    WrongResultError
        If a kernel was; it matters more than a plot that cannot be drawn.
    GemmuleError, OSError
        If there is no plot.
    """
    if as_json:
        echo_json({"experiment": block, "records": records})
    else:
        print_end(records)
    failure = gpu.failure_of(records)
    if plot is not None:
        try:
            draw([block, *records], Path(plot), str(block["date"]), quiet=as_json)
        except (GemmuleError, OSError) as error:
            if failure is None:
                raise
            click.echo(f"no plot: {error}", err=True)
    if failure is not None:
        raise WrongResultError(failure)
