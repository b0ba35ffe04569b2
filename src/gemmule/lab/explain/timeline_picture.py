"""A timeline as a picture. Needs matplotlib."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..drawing.canvas import Page, figure_on, file_content
from ..drawing.theme import LIGHT, Theme
from ..whole_files import write_whole
from .timeline import PLURAL, Role, Span, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Points of height of a row, and of what is around the rows.
_ROW, _AROUND = 22.0, 110.0
#: Steps of a span that has room for its number.
_ROOM = 0.014
_WAITS = {
    "slices": "waits for a k-tile",
    "free stages": "waits for a free stage",
    "its turn": "waits at the named barrier",
}


def draw_timeline(path: Path, found: Timeline, title: str, *, force: bool) -> None:
    """Draw the first SM: warps above, then stages, copies out, and the tensor cores.

    Parameters
    ----------
    path : Path
        A .png or .svg file.
    title : str
        Title.
    force : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    UnsupportedError
        If matplotlib is not installed.
    """
    page = timeline_page(found)
    with figure_on(page) as figure:
        draw_rows(figure, page, found, title)
        write_whole(path, file_content(figure, path.suffix[1:]), force=force)


def timeline_page(found: Timeline, theme: Theme = LIGHT) -> Page:
    """Return a page with room for every row."""
    return Page(theme=theme, width=900, height=_AROUND + _ROW * len(_rows(found)))


def draw_rows(figure: Figure, page: Page, found: Timeline, title: str) -> None:
    """Draw a timeline on a figure of its page."""
    from matplotlib.ticker import MaxNLocator

    rows = _rows(found)
    axes = figure.add_subplot()
    for number, (_, spans) in enumerate(rows):
        for span in spans:
            _draw(axes, page, found, number, span)
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, found.end / found.step)
    axes.set_xlabel(
        f"steps: a k-tile's products on the tensor cores, {found.step:,.0f} cycles; lengths by rule, not measured"
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="x", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title(title, pad=10)
    _legend(axes, page, rows)


#: Bar of a row: kind, from, to, text, and tile.
_Drawn = tuple[str, float, float, str, int]


def _rows(found: Timeline) -> list[tuple[str, list[_Drawn]]]:
    rows: list[tuple[str, list[_Drawn]]] = []
    shown = [cta for cta in range(found.ctas) if cta % found.multiprocessors == 0]
    for cta in shown:
        spans = [span for span in found.spans if span.cta == cta]
        prefix = f"CTA {shown.index(cta)}, " if len(shown) > 1 else ""
        roles = [role for role in found.roles if role.cta == cta]
        rows += [(f"{prefix}{role.name}: {', '.join(_verbs(role))}", _doing(spans, role, found)) for role in roles]
        rows += [(f"{prefix}stage {stage}", _holding(spans, stage, found)) for stage in range(found.stages)]
        if stores := [("store", span.begin, span.end, "", 0) for span in spans if span.what == "store"]:
            rows.append((f"{prefix}TMA stores", stores))
    products = [span for span in found.spans if span.what == "products" and span.cta in shown]
    busy = [_of_k_tile("products", span, found) for span in products]
    rows.append(("tensor cores", [(kind, begin, end, "", tile) for kind, begin, end, _, tile in busy]))
    return rows


def _verbs(role: Role) -> list[str]:
    return list(role.does) if len(role.warps) == 1 else [PLURAL[word] for word in role.does]


def _of_k_tile(kind: str, span: Span, found: Timeline) -> _Drawn:
    assert span.k_tile is not None
    # CTAs of an SM have colours of their own, else tiles.
    held = span.cta // found.multiprocessors if found.ctas > found.multiprocessors else 0
    return (kind, span.begin, span.end, str(span.k_tile % found.k_tiles), span.k_tile // found.k_tiles + held)


def _doing(mine: list[Span], role: Role, found: Timeline) -> list[_Drawn]:
    own = [span for span in mine if span.role == role]
    drawn: list[_Drawn] = [
        (span.about, span.begin, span.end, "", 0) for span in own if span.what == "wait" and span.about in _WAITS
    ]
    drawn += [("write", span.begin, span.end, "", 0) for span in own if span.what == "write"]
    if "multiplies" in role.does:
        drawn += [_of_k_tile("products", span, found) for span in own if span.what == "products"]
    else:
        drawn += [_of_k_tile("request", span, found) for span in own if span.what == "copy"]
    return drawn


def _holding(mine: list[Span], stage: int, found: Timeline) -> list[_Drawn]:
    drawn: list[_Drawn] = []
    here = [span for span in mine if span.stage == stage]
    for span in (one for one in here if one.what == "copy"):
        read = [other for other in here if other.what == "products" and other.k_tile == span.k_tile]
        kind, begin, end, text, tile = _of_k_tile("copy", span, found)
        drawn.append((kind, begin, end, text, tile))
        if read:
            first, last = min(one.begin for one in read), max(one.end for one in read)
            drawn += [("full", end, first, "", tile), ("products", first, last, text, tile)]
    return drawn


def _draw(axes: Axes, page: Page, found: Timeline, row: int, span: _Drawn) -> None:
    kind, first, last, text, tile = span
    begin, end = first / found.step, last / found.step
    theme = page.theme
    colour = theme.series[tile % len(theme.series)]
    steps = found.end / found.step
    if kind == "request":
        axes.plot([begin], [row], marker="v", markersize=5, color=colour, clip_on=False)
        return
    if kind in _WAITS:
        style = ":" if kind == "its turn" else "-"
        axes.plot([begin, end], [row, row], color=theme.faint, linewidth=1.0, linestyle=style, solid_capstyle="butt",
                  zorder=0.9)  # fmt: skip
        return
    looks: dict[str, dict[str, Any]] = {
        "products": {"facecolor": colour, "edgecolor": theme.page},
        "full": {"facecolor": colour, "alpha": 0.35, "edgecolor": "none"},
        "copy": {"facecolor": "none", "edgecolor": colour, "hatch": "////"},
        "write": {"facecolor": theme.faint, "edgecolor": "none"},
        "store": {"facecolor": theme.faint, "edgecolor": "none"},
    }
    axes.broken_barh([(begin, end - begin)], (row - 0.36, 0.72), linewidth=0.6, **looks[kind])
    if text and kind == "products" and (end - begin) / steps > _ROOM:
        axes.annotate(text, ((begin + end) / 2, row), ha="center", va="center", fontsize=page.text - 3,
                      color=theme.page)  # fmt: skip


def _legend(axes: Axes, page: Page, rows: list[tuple[str, list[_Drawn]]]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    theme, kinds = page.theme, {one[0] for _, spans in rows for one in spans}
    first = theme.series[0]
    handles = [
        ("products", Patch(facecolor=first, label="multiplied")),
        ("copy", Patch(facecolor="none", edgecolor=first, hatch="////", label="in flight")),
        ("full", Patch(facecolor=first, alpha=0.35, label="arrived")),
        ("request", Line2D([], [], marker="v", linestyle="", color=first, label="issued")),
        ("write", Patch(facecolor=theme.faint, label="written")),
        ("slices", Line2D([], [], color=theme.faint, label="waits for a k-tile or a stage")),
        ("its turn", Line2D([], [], color=theme.faint, linestyle=":", label="waits at the named barrier")),
    ]
    shown = [handle for kind, handle in handles if kind in kinds]
    axes.legend(handles=shown, loc="upper center", bbox_to_anchor=(0.5, -0.16 * 300 / max(300, _ROW * len(rows))),
                ncols=math.ceil(len(shown)), frameon=False, fontsize=page.text - 2)  # fmt: skip
