"""``gemmule check``: run a kernel of CuTe DSL on the virtual GPU with all checks, without a GPU."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import json
import os
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.name_suggestions import did_you_mean, similar_names
from ..files.atomic_file import check_folder
from ..files.file_errors import errors_name
from .failures import FAILURE_CODE
from .json_output import echo_json, json_option

if TYPE_CHECKING:
    from ..vgpu import Finding

_ARRAY = re.compile(r"(?P<dtype>[a-z]\w*)\[(?P<shape>\d+(?:,\d+)*)\](?:=(?P<fill>[-+.\w]+))?$")
_NEGATIVE = re.compile(r"-(\d|\.\d|inf$|nan$)")
_NAMES = {"None": None, "True": True, "False": False}
#: Most functions of a file that a message names.
_FEW = 3


class _CheckCommand(click.Command):
    """A command among whose arguments there may be negative numbers."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; say of a number that is taken for an option how to pass it."""
        given = tuple(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            words = (word for word in given if _NEGATIVE.match(word) and word.startswith(error.option_name))
            number = next(words, None)
            if number is None:
                raise
            remedy = f"put options first, then -- and the arguments: -- {number}"
            raise click.UsageError(f"{number} begins as an option does; {remedy}", ctx) from None


@click.command(
    "check",
    cls=_CheckCommand,
    epilog="\b\nExamples: gemmule check axpy.py::axpy 'float32[1000]' 'float32[1000]' 2.0\n"
    "          gemmule check kernels.py::case --schedules 3 --sarif found.sarif",
)
@click.argument("target", metavar="FILE.py::FUNCTION")
@click.argument("arguments", metavar="[ARGUMENT]...", nargs=-1)
@click.option(
    "--schedules",
    type=click.IntRange(1, 3),
    default=1,
    show_default=True,
    help="How many schedules of asynchronous operations to run under.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the arrays' content.")
@click.option("--sarif", "sarif_file", type=click.Path(dir_okay=False, path_type=Path), help="Write SARIF 2.1.0 too.")
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a page (.html) that plays what the first CTA does, or its data (.json); for a @cute.jit function.",
)
@click.option("--github", is_flag=True, help="Print annotations for GitHub Actions too.")
@json_option
def check_command(
    *,
    target: str,
    arguments: tuple[str, ...],
    schedules: int,
    seed: int,
    sarif_file: Path | None,
    trace: Path | None,
    github: bool,
    as_json: bool,
) -> None:
    """Check a kernel of CuTe DSL on the virtual GPU: races, bounds, unwritten values, barriers, deadlocks.

    FUNCTION is a @cute.jit function, or a class with one as __call__, and is called with the ARGUMENTs: arrays such as
    'float32[40,24]' of random numbers or 'int32[8]=0' of one, numbers, and None for a stream. Or it is an ordinary
    function without arguments that calls gemmule.vgpu.run itself. The exit code is 1 where something was found or an
    assertion of FUNCTION fails, and 2 where the check could not run. Put -- before arguments that begin with a minus
    sign.
    """
    ctx = click.get_current_context()
    ctx.meta[FAILURE_CODE] = click.UsageError.exit_code
    from ..vgpu.finding_formats import annotation, record, sarif

    if sarif_file is not None:
        check_folder(sarif_file)
    function = _function(target)
    values = _values(arguments, seed)
    failed: str | None = None
    findings: tuple[Finding, ...] = ()
    with _printing(as_json):
        try:
            findings = _findings(function, values, schedules, trace)
        except AssertionError as error:
            failed = _failed(error, Path(target.rpartition("::")[0]).resolve())
    if sarif_file is not None:
        with errors_name(str(sarif_file), written=True):
            sarif_file.write_text(json.dumps(sarif(findings), indent=1), encoding="utf-8")
    if as_json:
        code = 1 if findings or failed else 0
        found = {"target": target, "findings": [record(one) for one in findings], "exit_code": code}
        echo_json(found | ({"assertion": failed} if failed else {}))
    elif failed:
        click.echo(f"{target}: {failed}")
    else:
        for one in findings:
            click.echo(str(one))
        count = f"{len(findings)} finding{'s' * (len(findings) != 1)}" if findings else "no findings"
        click.echo(f"{target}: {count} under {schedules} schedule{'s' * (schedules > 1)}")
        if github:
            for one in findings:
                click.echo(annotation(one))
    if findings or failed:
        ctx.exit(1)


def _failed(error: AssertionError, file: Path) -> str:
    """Return the line of the file in which an assertion failed, and its text."""
    frames = traceback.extract_tb(error.__traceback__)
    where = next((frame for frame in reversed(frames) if frame.filename == str(file)), frames[-1])
    text = " ".join(str(error).split()) or where.line or "without a message"
    return f"assertion failed at {where.filename}:{where.lineno}: {text}"


@contextlib.contextmanager
def _printing(as_json: bool) -> Iterator[None]:
    """Keep what kernels and their host code print out of the JSON."""
    with contextlib.redirect_stdout(io.StringIO()) if as_json else contextlib.nullcontext():
        yield


def _findings(function: Any, values: list[Any], schedules: int, trace: Path | None) -> tuple[Finding, ...]:
    from ..compiler.host_functions.function import is_host_function
    from ..core.errors import ArgumentError
    from ..vgpu import CheckError, run
    from ..vgpu.launcher import SCHEDULES_VARIABLE, Launches
    from ..vgpu.report import merged

    before, launches = os.environ.get(SCHEDULES_VARIABLE), Launches.number
    os.environ[SCHEDULES_VARIABLE] = str(schedules)
    try:
        if values or is_host_function(function):
            run(function() if inspect.isclass(function) else function, *values, trace=trace)
            return ()
        if _is_kernel(function):
            raise ArgumentError(f"{function.__name__} is a kernel; give the @cute.jit function that launches it")
        if trace is not None:
            raise ArgumentError("--trace needs a @cute.jit function; give vgpu.run(..., trace=path) in an ordinary one")
        try:
            inspect.signature(function).bind()
        except TypeError as error:
            raise ArgumentError(f"the function is called without arguments: {error}; give it a default") from None
        function()
        if Launches.number == launches:
            raise ArgumentError("the function has run no kernel on the virtual GPU; call gemmule.vgpu.run in it")
    except CheckError as error:
        return merged(error.findings)
    finally:
        if before is None:
            del os.environ[SCHEDULES_VARIABLE]
        else:
            os.environ[SCHEDULES_VARIABLE] = before
    return ()


def _function(target: str) -> Any:
    """Return the function that a target names."""
    file, separator, name = target.rpartition("::")
    path = Path(file)
    if not separator or not name or path.suffix != ".py":
        raise click.UsageError(f"{target!r} is not of the form FILE.py::FUNCTION; give e.g. kernels.py::axpy")
    if not path.is_file():
        reason = "is not a file" if path.exists() else "does not exist"
        raise click.UsageError(f"{file} {reason}; give the path of a Python file")
    # As `python FILE.py` would find its neighbours.
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except (ImportError, SyntaxError) as error:
        compiler = isinstance(error, ImportError) and error.name == "cutlass"
        remedy = '; pip install "gemmule[compiler]" brings it' if compiler else ""
        raise click.UsageError(f"{file} cannot be imported: {type(error).__name__}: {error}{remedy}") from error
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            names = _checkable(found)
            near = similar_names(part, names) or (names if len(names) <= _FEW else ())
            remedy = did_you_mean(near) if near else "give the name of a function in it"
            raise click.UsageError(f"{file} has no {name}; {remedy}")
        found = getattr(found, part)
    if not callable(found):
        raise click.UsageError(f"{name} in {file} is not a function; give the name of one in it")
    return found


def _checkable(holder: Any) -> list[str]:
    """Return the names in a module or class that can be checked: no kernels, and nothing that is imported."""
    # A computed attribute may raise anything.
    there = getattr(holder, "__dict__", {})
    home = there.get("__name__", there.get("__module__"))
    return [
        name
        for name, value in there.items()
        if callable(value) and not name.startswith("_") and not _is_kernel(value)
        and getattr(value, "__module__", home) == home
    ]  # fmt: skip


def _is_kernel(value: Any) -> bool:
    return getattr(value, "_decorator_kind", None) == "kernel"


def _values(arguments: tuple[str, ...], seed: int) -> list[Any]:
    """Return the values that arguments name."""
    import numpy as np

    rng = np.random.default_rng(seed)
    return [_value(text, rng) for text in arguments]


def _value(text: str, rng: Any) -> Any:
    import ml_dtypes
    import numpy as np

    if text in _NAMES:
        return _NAMES[text]
    match = _ARRAY.match(text)
    if match is None:
        try:
            return int(text)
        except ValueError:
            pass
        try:
            return float(text)
        except ValueError:
            raise click.UsageError(
                f"argument {text!r} is not a value; give an array such as 'float32[40,24]' or 'int32[8]=0', a number, "
                "None, True or False"
            ) from None
    try:
        dtype = np.dtype(getattr(ml_dtypes, match["dtype"], None) or match["dtype"])
    except TypeError:
        from ..core.dtype import DTYPES

        near = similar_names(match["dtype"], [one.name for one in DTYPES])
        remedy = did_you_mean(near) if near else "give one such as float32 or bfloat16"
        message = f"{match['dtype']} is not a type of NumPy or ml_dtypes; {remedy}"
        raise click.UsageError(f"argument {text!r}: {message}") from None
    shape = tuple(map(int, match["shape"].split(",")))
    if match["fill"] is not None:
        return _filled(text, shape, match["fill"], dtype)
    integers = dtype.kind in "iub"
    return (rng.integers(0, 2 if dtype.kind == "b" else 5, shape) if integers else rng.standard_normal(shape)).astype(
        dtype
    )


def _filled(text: str, shape: tuple[int, ...], fill: str, dtype: Any) -> Any:
    """Return an array of one number, which an integer type must hold exactly."""
    import numpy as np

    try:
        number = int(fill) if fill.lstrip("+-").isdecimal() else float(fill)
    except ValueError:
        raise click.UsageError(
            f"argument {text!r}: {fill} is not a number; give one, as {text.partition('=')[0]}=0"
        ) from None
    try:
        with np.errstate(invalid="ignore"):
            found = np.full(shape, number, dtype)
    except (OverflowError, ValueError):
        exact = False
    else:
        exact = dtype.kind not in "iub" or not found.size or found.flat[0] == number
    if not exact:
        raise click.UsageError(f"argument {text!r}: {dtype} does not hold {fill}; give a number that it does")
    return found
