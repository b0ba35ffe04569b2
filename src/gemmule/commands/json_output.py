"""The option ``--json``: one object on standard output, also where a command fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

#: Key in a context's ``meta``: an object is requested and not printed yet.
_WANTED = "gemmule.json"


def _note(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    del param
    ctx.meta[_WANTED] = value
    return value


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the option ``--json``, as its argument `as_json`."""
    return click.option(
        "--json", "as_json", is_flag=True, is_eager=True, callback=_note,
        help="Print one JSON object only; a failure has error and exit_code.",
    )(function)  # fmt: skip


def echo_json(value: Any) -> None:
    """Print a command's object."""
    click.echo(json.dumps(value))
    context = click.get_current_context(silent=True)
    if context is not None:
        context.meta[_WANTED] = False


def echo_failure(ctx: click.Context, message: str, code: int) -> None:
    """Print the object of a failure where one is wanted, and the command has not printed its own."""
    if ctx.meta.get(_WANTED):
        click.echo(json.dumps({"error": message, "exit_code": code}))
