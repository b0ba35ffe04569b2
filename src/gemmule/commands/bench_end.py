"""The end of a measurement: results as JSON or tables, plots, and the exit code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from ..core.errors import GemmuleError, WrongResultError
from . import gpu
from .json_output import echo_json

Record = dict[str, Any]


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
