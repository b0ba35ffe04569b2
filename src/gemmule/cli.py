"""The command ``gemmule``."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, cast

import click

from . import __version__
from .commands.failures import failures_in_one_line
from .commands.json_output import echo_json
from .core.name_suggestions import did_you_mean, similar_names

#: Commands by name, in a line: each is ``{name}_command`` of the module of its name.
_COMMANDS = {
    "bench": "Measure kernels on this GPU, or show recorded measurements.",
    "calibrate": "Measure this GPU's rates for the cost model.",
    "check": "Check a kernel of CuTe DSL without a GPU.",
    "compare": "Compare CPU, kernels and the roofline for one product.",
    "explain": "Show the bound of a kernel and its cause; needs no GPU.",
    "info": "Show GPUs, executors, compiler, cache and tuned files.",
    "matmul": "Multiply two matrices in files, of any size.",
    "pack": "Pack compiled kernels and tuned configs into a file.",
    "profile": "Break down the time of a product.",
    "report": "Write record files as one HTML page; needs no GPU.",
    "tune": "Find the fastest kernel and config of products.",
}
#: Commands that have another name now.
_FORMER_COMMANDS = {"multiply": "matmul"}


def _nothing() -> None:
    """Do nothing."""


def _never(words: list[str]) -> bool:
    """Return False."""
    del words
    return False


class _Commands(Mapping[str, click.Command]):
    """The commands by name, each imported at its first use: one does not wait for what the others import."""

    def __init__(self) -> None:
        #: What a command is imported in.
        self.importing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        #: What lets Ctrl-C raise, once that is reported in a line.
        self.interruption_raises: Callable[[], None] = _nothing
        #: Which words ask for a product that may run on a GPU.
        self.may_use_gpu: Callable[[list[str]], bool] = _never

    def __getitem__(self, name: str) -> click.Command:
        if name not in _COMMANDS:
            raise KeyError(name)
        with self.importing():
            # What is half imported when Ctrl-C comes would be something else's error. All commands need it in the end.
            importlib.import_module("ml_dtypes")
            module = importlib.import_module(f".commands.{name}", __package__)
        return cast(click.Command, getattr(module, f"{name}_command"))

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


def _start_driver() -> None:
    """Import the driver's bindings, and wait until it is initialised, which the script began."""
    from .core.errors import GemmuleError
    from .runtime.driver import driver_module

    # What is wrong is found again, and reported, by what needs the GPU.
    with contextlib.suppress(GemmuleError, RuntimeError):
        driver_module()


class OneLineGroup(click.Group):
    """A group of commands whose failures are one line on stderr and an exit code, never a traceback."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words of a command, after refusing those with a number that Python does not read."""
        with failures_in_one_line(ctx):
            longest = sys.get_int_max_str_digits()
            if longest and any(re.search(rf"\d{{{longest + 1}}}", word) for word in args):
                refused = f"A number has more than {longest} digits, which no option takes; give one below 1e300."
                if "--json" in args:
                    echo_json({"error": refused, "exit_code": click.UsageError.exit_code})
                raise click.UsageError(refused)
            if _LAZY.may_use_gpu(args):
                threading.Thread(target=_start_driver, name="gemmule-driver", daemon=True).start()
            return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, none of which is imported for that."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the words name; a usage error with similar names where there is none."""
        name = args[0]
        if name in _FORMER_COMMANDS:
            ctx.fail(f"{name} is now {_FORMER_COMMANDS[name]}; did you mean gemmule {_FORMER_COMMANDS[name]}?")
        if self.get_command(ctx, name) is None and (near := similar_names(name, self.list_commands(ctx))):
            ctx.fail(f"No such command {name!r}; {did_you_mean(near)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        ctx.obj = _LAZY.importing
        with failures_in_one_line(ctx):
            _LAZY.interruption_raises()
            return super().invoke(ctx)


_LAZY = _Commands()


@click.group(
    cls=OneLineGroup,
    commands=cast("MutableMapping[str, click.Command]", _LAZY),
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="gemmule")
def gemmule() -> None:
    """Multiply matrices of any size on a GPU or the CPU, and measure and explain the speed."""


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    """Print a warning as one line, without the place in the code that it comes from."""
    del category, filename, lineno, line
    text = " ".join(str(message).split())
    with contextlib.suppress(OSError):
        click.echo(f"gemmule: warning: {text}", file=file, err=file is None)


def main(
    importing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    interruption_raises: Callable[[], None] = _nothing,
    may_use_gpu: Callable[[list[str]], bool] = _never,
) -> None:
    """Run the command, which is imported within `importing`; `interruption_raises` is called where it begins.

    The driver is loaded beside the imports where `may_use_gpu` says so of the words.
    """
    _LAZY.importing, _LAZY.interruption_raises, _LAZY.may_use_gpu = importing, interruption_raises, may_use_gpu
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A file's name may hold letters that the locale's encoding lacks.
            stream.reconfigure(errors="backslashreplace")
    warnings.showwarning = _show_warning
    gemmule(prog_name="gemmule")


if __name__ == "__main__":
    main()
