"""From a figure to files, and to SVG inside a page. Needs matplotlib."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from gemmule.core.errors import UnsupportedError
from gemmule.files.atomic_file import atomic_write

from .theme import LIGHT, Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Points of an inch, which are also the units of an SVG's coordinates.
POINTS = 72
#: Files of a figure.
KINDS = ("png", "svg")
# Metadata that would differ in each file, or carry nothing.
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


@dataclasses.dataclass(frozen=True)
class Page:
    """Place of a figure: its size in points, and the size of its text."""

    #: width, height: In points.
    width: float = 720
    height: float = 400
    text: float = 10.5  #: Size of text, in points.
    narrow: bool = False  #: Whether it is for a small screen.
    theme: Theme = LIGHT  #: Its colours.


def check_matplotlib() -> None:
    """Raise UnsupportedError if matplotlib is not installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise UnsupportedError(f"plots need matplotlib ({error}); pip install 'gemmule[report]'") from error


@contextlib.contextmanager
def figure_on(page: Page, *, text_as: str = "path", salt: str = "gemmule") -> Iterator[Figure]:
    """Yield an empty figure for a page, with the colours of its theme set.

    Parameters
    ----------
    page : Page
        Page of the figure.
    text_as : str
        ``path`` draws text in SVG as outlines, which look alike everywhere; ``none`` leaves it text.
    salt : str
        Salt of the ids in SVG: the same drawing gives the same ids.

    Raises
    ------
    UnsupportedError
        If matplotlib is not installed.
    """
    check_matplotlib()
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    theme = page.theme
    settings: dict[Any, Any] = {
        "svg.hashsalt": salt, "svg.fonttype": text_as, "font.family": "DejaVu Sans", "font.size": page.text,
        "text.color": theme.ink, "axes.labelcolor": theme.ink, "axes.edgecolor": theme.faint,
        "axes.facecolor": "none", "xtick.color": theme.faint, "ytick.color": theme.faint,
        "xtick.labelcolor": theme.ink, "ytick.labelcolor": theme.ink, "grid.color": theme.grid,
        "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": page.text, "axes.titlelocation": "left",
        "figure.titlesize": page.text + 1, "figure.facecolor": theme.page, "savefig.facecolor": theme.page,
    }  # fmt: skip
    with mpl.rc_context(settings):
        figure = Figure(figsize=(page.width / POINTS, page.height / POINTS), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def save(figure: Figure, folder: Path, stem: str, fingerprint: str, kinds: Sequence[str] = KINDS) -> list[Path]:
    """Write a figure as files of some kinds, each with the fingerprint of its figures inside; return the files."""
    written = []
    for kind in kinds:
        target = folder / f"{stem}.{kind}"
        metadata = {"Description": fingerprint} | (_NO_METADATA if kind == "svg" else {"Software": None})
        with atomic_write(target) as file:
            figure.savefig(file, format=kind, metadata=metadata, dpi=144)
        written.append(target)
    return written


def file_content(figure: Figure, kind: str) -> bytes:
    """Return a figure as the content of a ``png`` or ``svg`` file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=144, metadata={"Date": None} if kind == "svg" else {"Software": None})
    return buffer.getvalue()


def inline_svg(figure: Figure, name: str, title: str) -> str:
    """Return a figure as an ``svg`` element for a page: its colours are the page's CSS variables.

    Parameters
    ----------
    figure : Figure
        Drawn with the theme `LIGHT`, text left as text.
    name : str
        Prefix of its ids, unique among figures.
    title : str
        Its text alternative.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=_NO_METADATA, transparent=True)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    # The rule is for the whole page there; the page has its own for figures.
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(href="#|url\(#)', rf"\1{name}-", text)
    for colour, variable in LIGHT.variables.items():
        text = text.replace(colour, f"var({variable})")
    # Width and font are the page's.
    head, _, rest = text.partition(">")
    head = re.sub(r'\s(?:width|height|version|xmlns(?::\w+)?)="[^"]*"', "", head)
    head = f'{head} role="img" aria-labelledby="{name}-title">'
    rest = re.sub(r"font: ([\d.]+)px [^;\"]+", r"font-size: \1px", rest)
    return re.sub(r"\n\s*", "\n", f'{head}<title id="{name}-title">{escape(title)}</title>{rest}'.strip())


def spread_labels(
    axes: Axes, labels: Sequence[tuple[float, float, str, str]], page: Page, *, faint: bool = False
) -> None:
    """Write labels to the right of the axes, each joined to its point, and none over another.

    Parameters
    ----------
    axes : Axes
        With its limits set.
    labels : sequence of (float, float, str, str)
        Point, text and colour of each.
    page : Page
        Page of the figure.
    faint : bool
        Whether the lines to the points step back, because they are long.
    """
    inverse = axes.transAxes.inverted()
    wanted = [inverse.transform(axes.transData.transform(point[:2]))[1] for point in labels]
    gap = 1.25 * page.text / (0.76 * page.height)
    places = _apart(wanted, gap)
    for (x, y, text, colour), place in zip(labels, places, strict=True):
        axes.annotate(
            _shortened(text, page), (x, y), xytext=(1.03, place), textcoords="axes fraction", va="center",
            annotation_clip=False, fontsize=page.text - 0.5,
            arrowprops={"arrowstyle": "-", "color": page.theme.faint if faint else colour,
                        "linewidth": 0.5 if faint else 0.8, "linestyle": (0, (1.5, 2.5)) if faint else "-",
                        "shrinkA": 0, "shrinkB": 4, "relpos": (0, 0.5)},
        )  # fmt: skip


def _shortened(text: str, page: Page) -> str:
    """Return a label that leaves the axes more than half of the page; the table below a figure has the whole name."""
    most = int(0.4 * page.width / (0.55 * page.text))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _apart(wanted: list[float], gap: float) -> list[float]:
    """Return places near those wanted with distances of at least `gap`, between 0 and 1 as far as there is room."""
    order = sorted(range(len(wanted)), key=lambda number: wanted[number])
    # Blocks of labels that touch: each stands where its members want it on average.
    blocks: list[tuple[list[int], float]] = []
    for number in order:
        members, centre = [number], wanted[number]
        while True:
            half = gap * (len(members) - 1) / 2
            centre = min(max(centre, half), max(1 - half, half))
            if not blocks:
                break
            others, other = blocks[-1]
            if other + gap * (len(others) - 1) / 2 + gap <= centre - half:
                break
            blocks.pop()
            members = others + members
            half = gap * (len(members) - 1) / 2
            centre = sum(wanted[one] - gap * place for place, one in enumerate(members)) / len(members) + half
        blocks.append((members, centre))
    places = [0.0] * len(wanted)
    for members, centre in blocks:
        for place, one in enumerate(members):
            places[one] = centre - gap * (len(members) - 1) / 2 + gap * place
    return places
