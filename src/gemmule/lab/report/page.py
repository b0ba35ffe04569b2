"""The report: one HTML file that needs nothing else."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from gemmule.core.errors import ArgumentError, FileFormatError, UnsupportedError

from ..drawing.theme import DARK, LIGHT, Theme
from .compose import machine_view
from .sources import machines, read_source
from .views import MachineView

_TEMPLATE = "report.html.j2"


def record_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files, and those of the folders, each once.

    Raises
    ------
    ArgumentError
        If a folder holds no record files.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            own = sorted(path.glob("*.jsonl"))
            if not own:
                raise ArgumentError(f"{path}: the folder holds no record files (*.jsonl); name one that does, or files")
            found.update(dict.fromkeys(own))
        else:
            found[path] = None
    return list({path.resolve(): path for path in found}.values())


def report(paths: Sequence[Path]) -> str:
    """Return the report of record files as HTML.

    Raises
    ------
    FileFormatError
        If a file is no record file, or holds a record that cannot be shown.
    UnsupportedError
        If jinja2 or matplotlib is not installed.
    """
    try:
        import jinja2
    except ImportError as error:
        raise UnsupportedError(f"reports need jinja2 ({error}); pip install 'gemmule[report]'") from error
    sources = [read_source(path) for path in paths]
    views: list[MachineView] = []
    for machine in machines(sources):
        try:
            views.append(machine_view(machine))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            files = ", ".join(source.name for source in machine.sources)
            raise FileFormatError(
                f"{files}: a record is not whole ({type(error).__name__}: {error}); give files as gemmule wrote them"
            ) from error
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gemmule.lab", "report"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["breakable"] = _breakable
    return environment.get_template(_TEMPLATE).render(
        machines=views, light=_variables(LIGHT), dark=_variables(DARK), files=[source.name for source in sources]
    )


def _variables(theme: Theme) -> str:
    return " ".join(f"{variable}: {colour};" for colour, variable in theme.variables.items())


def _breakable(text: str) -> object:
    """Return a name that may break after its underscores, commas and brackets."""
    import markupsafe

    return markupsafe.Markup(re.sub(r"([_,\[])(?=\w)", r"\1<wbr>", str(markupsafe.escape(text))))  # noqa: S704


def write_whole(path: Path, text: str, *, force: bool, inputs: Sequence[Path] = ()) -> None:
    """Write a file that has its name only when it is complete.

    Parameters
    ----------
    path : Path
        Its name.
    text : str
        What is in it.
    force : bool
        Whether a file of that name may be replaced.
    inputs : sequence of Path
        Files that may not be replaced.

    Raises
    ------
    ArgumentError
        If there is a file of that name that may not be replaced.
    OSError
        If it cannot be written.
    """
    check_target(path, force=force, inputs=inputs)
    partial = path.parent / f".gemmule-{secrets.token_hex(4)}.partial"
    try:
        with partial.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
        raise


def check_target(path: Path, *, force: bool, inputs: Sequence[Path] = ()) -> None:
    """Raise ArgumentError or OSError if a file of that name cannot be written."""
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "its folder does not exist; make it first", str(path))
    if path.is_dir():
        raise ArgumentError(f"{path}: is a folder; name a file, such as {path / 'report.html'}")
    if any(path.resolve() == one.resolve() for one in inputs):
        raise ArgumentError(f"{path}: is one of the record files; name another output")
    if path.exists() and not force:
        raise ArgumentError(f"{path}: exists; give --force to replace it, or another name")
