"""Failures of commands: one line on stderr, an exit code, and no temporary files."""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

import click

from ..core.errors import GemmuleError
from ..core.name_suggestions import did_you_mean
from .json_output import echo_failure
from .spelling import in_options

#: Key in a context's ``meta`` of the file with a command's partial result.
LEFT = "gemmule.left"
#: Key in the same dict of the exit code of its failures, if not 1.
FAILURE_CODE = "gemmule.failure_code"
#: Error of a group without a command, from click 8.2 on.
_HELP: tuple[type[Exception], ...] = tuple(filter(None, [getattr(click.exceptions, "NoArgsIsHelpError", None)]))
_STOPPING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class _Stopped(BaseException):
    """A signal requested the end of the process."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def failures_in_one_line(ctx: click.Context) -> Iterator[None]:
    """Turn expected failures and signals inside the block into a line and an exit code.

    Files that are half written are removed by the blocks that opened them, on the way out.
    """
    try:
        with _signals_raise():
            yield
    except GemmuleError as error:
        # Earlier results are not lost.
        left = f"; {_left(ctx)}" if ctx.meta.get(LEFT) else ""
        _fail(ctx, f"{in_options(str(error), _command(ctx))}{left}", _code(ctx))
    except MemoryError as error:
        limit = "; give a smaller --memory" if _command(ctx).name == "matmul" else "; give smaller sizes"
        _fail(ctx, f"not enough memory: {error}{limit}", _code(ctx))
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            # As of `gemmule info | head`: click ends it without a word.
            raise
        left = f"; {_left(ctx)}" if ctx.meta.get(LEFT) else ""
        if error.filename is not None:
            _fail(ctx, f"{error.filename}: {error.strerror or error}{left}", _code(ctx))
        # Errors of files name their file, so this one is of standard output.
        reason = error.strerror or error
        # Buffered text cannot be written either, and Python would report that again at exit.
        if sys.stdout is sys.__stdout__:
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), 1)
        _fail(ctx, f"standard output: {reason}; send it to a file or pipe that takes it{left}", _code(ctx))
    except _HELP:
        # A group without a command shows its help.
        raise
    except click.UsageError as error:
        words = _words(error).rstrip(".").replace("integer range", "integer")
        command = [error.ctx.command_path] if error.ctx else [ctx.command_path, ctx.invoked_subcommand or ""]
        remedy = f"see {' '.join(command).rstrip()} --help"
        _fail(ctx, f"{words} {remedy.capitalize()}" if words[-1:] == "?" else f"{words}; {remedy}", error.exit_code)
    except click.ClickException as error:
        _fail(ctx, error.format_message(), error.exit_code)
    except KeyboardInterrupt:
        _fail(ctx, f"interrupted; {_left(ctx)}", 130)
    except _Stopped as stop:
        _fail(ctx, f"stopped by {signal.Signals(stop.number).name}; {_left(ctx)}", 128 + stop.number)


def _words(error: click.UsageError) -> str:
    """Return what is wrong, similar options with the most similar first."""
    if not isinstance(error, click.NoSuchOption) or not error.possibilities:
        return error.format_message()
    # Imported for an error message only.
    import difflib

    # Dashes are in every option.
    names = {option.lstrip("-"): option for option in error.possibilities}
    near = difflib.get_close_matches(error.option_name.lstrip("-"), names, len(names), 0)
    return f"No such option {error.option_name!r}; {did_you_mean([names[one] for one in near])}"


def _code(ctx: click.Context) -> int:
    return int(ctx.meta.get(FAILURE_CODE, 1))


def _command(ctx: click.Context) -> click.Command:
    """Return the running command: the invoked one of a group."""
    command, name = ctx.command, ctx.invoked_subcommand
    inner = command.get_command(ctx, name) if isinstance(command, click.Group) and name is not None else None
    return inner or command


def _left(ctx: click.Context) -> str:
    left = ctx.meta.get(LEFT)
    return f"partial results are in {left}" if left else "no partial results were left"


def _nobody_reads() -> bool:
    """Whether stdout is a pipe whose reader has closed it."""
    if sys.stdout is None or not hasattr(select, "poll"):
        return False
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except io.UnsupportedOperation:
        # Something that is no file stands in for it.
        return False
    return any(state & select.POLLERR for _, state in poll.poll(0))


def _fail(ctx: click.Context, message: str, code: int) -> None:
    text = " ".join(message.split())
    click.echo(f"gemmule: {text}", err=True)
    with contextlib.suppress(OSError):
        # Standard output may be what failed.
        echo_failure(ctx, text, code)
    ctx.exit(code)


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Let signals that ask the process to end unwind it, so that files are cleaned up."""

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        raise _Stopped(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A signal that is ignored, as under nohup, stays ignored.
    handled = [number for number in _STOPPING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
