"""The command line as the user wrote it, for records."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

_META = "gemmule.arguments"


class RecordedCommand(click.Command):
    """A command that stores its arguments, for `command_line`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Store the arguments, then parse them."""
        ctx.meta[_META] = tuple(args)
        return super().parse_args(ctx, args)


def command_line() -> str:
    """Return the running command as the user wrote it, with absolute paths reduced to file names."""
    ctx = click.get_current_context()
    return shlex.join([*ctx.command_path.split(), *map(_without_folders, ctx.meta[_META])])


def _without_folders(word: str) -> str:
    option, equals, value = word.rpartition("=") if word.startswith("--") else ("", "", word)
    return option + equals + (Path(value).name if Path(value).is_absolute() else value)
