"""A measurement and its end: records as they come, then JSON or tables, plots, and the exit code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
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

Record = dict[str, Any]


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
        Where a record file is written.
    key : callable
        Gives what tells a record's problem from all others.
    show : callable or None
        Prints the records of a problem.
    add : callable or None
        Adds to a record.
    """
    from ..lab.bench_records import TORCH, YARDSTICK
    from ..lab.records import RecordFile

    records: list[Record] = []
    point: list[Record] = []
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(RecordFile(Path(folder), block)) if folder is not None else None
        if file is not None:
            click.get_current_context().meta[LEFT] = file.partial
        step = stack.enter_context(steps_progress("measuring", points))
        for found in bench.records(lambda doing: step(doing, 0)):
            one = add(found) if add is not None else found
            if point and show and key(point[0]) != key(one):
                show(point)
                point = []
            point.append(one)
            records.append(one)
            if file is not None:
                file.write(one)
            step("", one.get("kernel", YARDSTICK) not in (YARDSTICK, TORCH))
        if point and show:
            show(point)
    if file is not None:
        del click.get_current_context().meta[LEFT]
        if show:
            click.echo(f"record: {file.path}")
    return records


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
