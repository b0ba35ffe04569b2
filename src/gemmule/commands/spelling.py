"""Messages in the language of the command line: Python's ``force=True`` is ``--force``.

Libraries of gemmule name arguments as Python does. A command has the same arguments as options, so that its messages
follow from its parameters: nobody writes a message twice.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click

_VALUE = r"\.\.\.|'[^']*'|\"[^\"]*\"|\([\d, ]*\)|\[[\d, ]*\]|[\w+\-]+(?:\.[\w+\-]+)*"


def in_options(message: str, command: click.Command) -> str:
    """Return a message with the arguments that it names spelled as options.

    Parameters
    ----------
    message : str
        It names arguments as ``name=value`` or ``name=...``, or a name with an underscore alone.
    command : click.Command
        The command that failed, or a group of them, any of which may have the options.
    """
    options = {_python_name(option): option for option in options_of(command)}
    if not options:
        return message
    names = "|".join(map(re.escape, options))

    def with_value(match: re.Match[str]) -> str:
        return _spelled(options[match[1]], match[2])

    def alone(match: re.Match[str]) -> str:
        return _longest(options[match[0]].opts)

    # Not in the middle of a name or a path.
    message = re.sub(rf"(?<![\w/.\-])({names})=({_VALUE})", with_value, message)
    bare = "|".join(name for name in names.split("|") if "_" in name)
    return re.sub(rf"(?<![\w/.\-])(?:{bare})(?![\w/=\-]|\.\w)", alone, message) if bare else message


def options_of(command: click.Command) -> Iterator[click.Option]:
    """Yield the options of a command, and of those in it if it is a group."""
    yield from (one for one in command.params if isinstance(one, click.Option))
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            yield from options_of(inner)


def _longest(names: list[str]) -> str:
    return max(names, key=len)


def _python_name(option: click.Option) -> str:
    return _longest(option.opts).lstrip("-").replace("-", "_")


def _spelled(option: click.Option, value: str) -> str:
    """Return an option with its value; a switch is the name for that value."""
    name = _longest(option.opts)
    if value == "...":
        return name
    if option.is_flag:
        if value == "False":
            return _longest(option.secondary_opts) if option.secondary_opts else f"no {name}"
        return name
    if value[0] in "([":
        return f"{name} {value[1:-1].replace(' ', '').rstrip(',')}"
    return f"{name} {shlex.quote(value[1:-1])}" if value[0] in "'\"" else f"{name} {value}"
