"""The report: one HTML file that needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gemmule.core.errors import FileFormatError, UnsupportedError

from ..drawing.canvas import check_matplotlib
from ..drawing.theme import DARK, LIGHT, Theme
from .compose import machine_view
from .drawings import Watch, draw_all, unwatched
from .sources import machines, read_source
from .views import MachineView, drawings

_TEMPLATE = "report.html.j2"


def report(paths: Sequence[Path], watch: Watch = unwatched) -> str:
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
    check_matplotlib()
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
    drawn = draw_all(drawings(views), watch)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gemmule.lab", "report"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["breakable"] = _breakable
    return environment.get_template(_TEMPLATE).render(
        machines=views,
        drawn=drawn,
        light=_variables(LIGHT),
        dark=_variables(DARK),
        files=[source.name for source in sources],
    )


def _variables(theme: Theme) -> str:
    return " ".join(f"{variable}: {colour};" for colour, variable in theme.variables.items())


def _breakable(text: str) -> object:
    """Return a name that may break after its underscores, commas and brackets."""
    import markupsafe

    return markupsafe.Markup(re.sub(r"([_,\[])(?=\w)", r"\1<wbr>", str(markupsafe.escape(text))))  # noqa: S704
