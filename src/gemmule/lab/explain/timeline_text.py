"""A timeline as text for a terminal: rows are warps, stages and units, columns are steps."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable

from .timeline import PLURAL, Role, Span, Timeline

#: Characters of a line without a terminal.
WIDTH = 100
#: Signs of what a role waits for.
SHOWN_WAITS = {"its stores": "s", "its turn": "t", "slices": ".", "free stages": "."}
_LABEL = 25
# A column shows what fills this much of it, products before writing before waiting.
_ENOUGH = 0.4
# The tensor cores are busy in a column that they work for more than this of.
_BUSY = 0.8
# Steps of a column, the shortest first.
_COLUMNS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
# Meaning of the signs, the most important first. Those of k-tiles are cycled.
_K_TILES, _WORK, _WAITING = "0123456789abcdefghijklmnopqruvxyz", "w#S=", "-.ts"


def timeline_text(found: Timeline, width: int = WIDTH) -> str:
    """Return the rows and the legend, in lines of `width` characters."""
    unit = _unit(found, width)
    return "\n".join([_head(found, unit, width), *_chart(found, unit), _legend(found, width)])


def chart(found: Timeline) -> str:
    """Return the rows alone, for a page."""
    return "\n".join(_chart(found, _unit(found, WIDTH)))


def _unit(found: Timeline, width: int) -> float:
    """Return the steps of a column: as few as the width allows."""
    return next(one for one in _COLUMNS if found.end / found.step / one <= width - _LABEL or one == _COLUMNS[-1])


def _head(found: Timeline, unit: float, width: int) -> str:
    per_sm = found.ctas // found.multiprocessors
    ctas = f"{per_sm} CTAs of an SM" if per_sm > 1 else "one CTA"
    if found.multiprocessors > 1:
        ctas += f" of a cluster of {found.multiprocessors}"
    tiles = f"{found.tiles} tiles" if found.tiles > 1 else "a tile"
    k_tiles = f"{found.k_tiles} k-tiles" if found.k_tiles > 1 else "one k-tile"
    rules = found.rules
    text = (
        f"Timeline of {ctas}: {tiles} of {k_tiles} in the sample, {_columns(unit)}. A step is the products of a "
        f"k-tile on the tensor cores, {found.step:,.0f} cycles. The virtual GPU knows what waits for what; it has no "
        f"clock. Lengths are by rule: {rules.flop:,.0f} FLOP and {rules.shared_bytes:.0f} bytes of shared memory a "
        f"cycle as documented, an instruction of a warp a cycle; for TMA {rules.copy_bytes:g} bytes a cycle and a "
        f"latency of {rules.copy_latency:g} cycles are assumed."
    )
    return _wrapped(text, width)


def _columns(unit: float) -> str:
    if unit < 1:
        return f"{round(1 / unit)} columns a step"
    return f"{unit:g} step{'s' if unit > 1 else ''} a column"


def _chart(found: Timeline, unit: float) -> list[str]:
    count = math.ceil(found.end / found.step / unit - 1e-9)
    width = unit * found.step
    lines = [f"{'step':<{_LABEL}}{_ruler(unit, count)}"]
    shown = [cta for cta in range(found.ctas) if cta % found.multiprocessors == 0]
    for cta in shown:
        spans = [span for span in found.spans if span.cta == cta]
        if len(shown) > 1:
            lines.append(f"CTA {shown.index(cta)}")
        lines += [
            _row(_label(role), _paint(count, width, _doing(spans, role, found)))
            for role in found.roles
            if role.cta == cta
        ]
        lines += [
            _row(f"  stage {stage}", _paint(count, width, _holding(spans, stage, found)))
            for stage in range(found.stages)
        ]
        if any(span.what == "store" for span in spans):
            stores = [(span, "S") for span in spans if span.what == "store"]
            lines.append(_row("  TMA stores", _paint(count, width, stores)))
    busy = [(span, "#") for span in found.spans if span.what == "products" and span.cta in shown]
    lines.append(_row("tensor cores", "".join(_load(share, width) for share in _shares(count, width, busy))))
    return lines


def _ruler(unit: float, count: int) -> str:
    every = next(steps for steps in (1, 2, 5, 10, 20, 50) if steps / unit >= 4)
    text = ""
    for column in range(count):
        if len(text) <= column:
            steps = column * unit
            text += f"{steps:g}" if steps % every == 0 else " "
    return text.rstrip()


def _label(role: Role) -> str:
    """Return as in ``4-7 multiply, write``."""
    warps = role.name.partition(" ")[2]
    does = ", ".join(PLURAL[word] if len(role.warps) > 1 else word for word in role.does)
    return does if len(does) > 15 else f"{warps} {does}"


def _doing(mine: Iterable[Span], role: Role, found: Timeline) -> list[tuple[Span, str]]:
    """Return the spans of a role with a sign each; later ones hide earlier ones."""
    signs: list[tuple[Span, str]] = []
    own = [span for span in mine if span.role == role]
    signs += [(span, SHOWN_WAITS[span.about]) for span in own if span.what == "wait" and span.about in SHOWN_WAITS]
    signs += [(span, "w") for span in own if span.what == "write"]
    if "multiplies" in role.does:
        signs += [(span, _digit(span, found)) for span in own if span.what == "products"]
    else:
        signs += [(_moment(span), _digit(span, found)) for span in own if span.what == "copy"]
    return signs


def _holding(mine: Iterable[Span], stage: int, found: Timeline) -> list[tuple[Span, str]]:
    """Return the spans of a stage with a sign each: a k-tile in flight, complete, or being multiplied."""
    signs = []
    here = [span for span in mine if span.stage == stage]
    for span in (one for one in here if one.what == "copy"):
        read = [other for other in here if other.what == "products" and other.k_tile == span.k_tile]
        signs.append((span, "-"))
        if read:
            first, last = min(one.begin for one in read), max(one.end for one in read)
            signs.append((_moved(span, span.end, first), "="))
            signs.append((_moved(span, first, last), _digit(span, found)))
    return signs


def _digit(span: Span, found: Timeline) -> str:
    """Return a k-tile's number within its tile: 0 to 9, then letters that mean nothing else, again and again."""
    assert span.k_tile is not None
    return _K_TILES[span.k_tile % found.k_tiles % len(_K_TILES)]


def _moment(span: Span) -> Span:
    return _moved(span, span.begin, span.begin + 1e-3)


def _moved(span: Span, begin: float, end: float) -> Span:
    return Span(span.what, span.role, begin, end, span.cta, span.k_tile, span.stage, span.about)


def _shares(count: int, width: float, signs: Iterable[tuple[Span, str]]) -> list[dict[str, float]]:
    """Return for each column the cycles of each sign; a moment fills its column."""
    shares: list[dict[str, float]] = [{} for _ in range(count)]
    for span, sign in signs:
        moment = span.end - span.begin < 1
        for column in range(int(span.begin / width), min(int(span.end / width) + 1, count)):
            share = min(span.end, (column + 1) * width) - max(span.begin, column * width)
            if share > 0:
                shares[column][sign] = shares[column].get(sign, 0.0) + (width if moment else share)
    return shares


def _paint(count: int, width: float, signs: Iterable[tuple[Span, str]]) -> str:
    """Return a row: in each column what fills it, products before writing before waiting, and every request."""
    return "".join(_most(share, width) for share in _shares(count, width, signs))


def _load(shares: dict[str, float], width: float) -> str:
    """Return how much of a column the tensor cores work."""
    share = sum(shares.values()) / width
    return "#" if share > _BUSY else "+" if share > 1 - _BUSY else " "


def _most(shares: dict[str, float], width: float) -> str:
    """Return the sign that stands for a column."""
    for kind in (_K_TILES, _WORK, _WAITING):
        of_kind = {sign: share for sign, share in shares.items() if sign in kind}
        if sum(of_kind.values()) >= _ENOUGH * width:
            return max(of_kind, key=lambda sign: (of_kind[sign], sign))
    return " "


def _row(label: str, cells: str) -> str:
    return f"{label:<{_LABEL}}{cells}".rstrip()


def _legend(found: Timeline, width: int) -> str:
    waits = "t for the turn, " if any(wait.about == "its turn" for wait in found.waits) else ""
    text = (
        "Warps: 0 to 9 and letters, a k-tile that is requested (of several in a column the last) or multiplied; . "
        "waits for a k-tile or a free stage, "
        f"{waits}s for stores; w writes. Stages: - in flight, = full, a number: multiplied. Tensor cores: # "
        "busy, + for a part of the column."
    )
    return _wrapped(text, width)


def waits_text(found: Timeline, width: int = WIDTH) -> str:
    """Return the waits of each role, their lengths, and the idle times of the tensor cores."""
    rows = []
    for wait in found.waits:
        if wait.about in ("the cluster", "a barrier") or wait.cycles < 0.05 * found.step:
            continue
        by = "" if wait.by == (wait.role,) else f", by {_named(wait.by, wait.role)}"
        often = f"{wait.times} time{'s' if wait.times > 1 else ''}, {wait.cycles / found.step:.1f} steps"
        path = f"; {wait.critical} on the longest path" if wait.critical else ""
        about = "k-tiles" if wait.about == "slices" else wait.about
        rows.append(_wrapped(f"  {wait.role.name:<14}for {about}{by}: {often}{path}", width, " " * 18))
    kinds = {"products": "products", "copy": "copies", "store": "TMA stores", "write": "writing",
             "instructions": "other instructions"}  # fmt: skip
    passed = [
        f"{kinds[what]} {cycles / found.step:.1f}"
        for what, cycles in _sorted(found.path)
        if cycles >= 0.05 * found.step
    ]
    most, mean = found.in_flight()
    plural = "s" if found.stages > 1 else ""
    sentences = (
        f"Longest path, {found.end / found.step:.1f} steps: {', '.join(passed)}.",
        f"k-tiles in flight at a time: {most} at most, {mean:.1f} on average, of {found.stages} stage{plural}. "
        f"For a step of products, copies take {found.copying:.2g}.",
        f"The tensor cores work {found.busy / found.end:.0%} of the sample. {_idle(found)}".rstrip(),
    )
    lines = ["Waits", *rows, *(_wrapped(sentence, width) for sentence in sentences)]
    return "\n".join(lines)


def _named(roles: Iterable[Role], mine: Role) -> str:
    names = [role.name + (f" of CTA {role.cta}" if role.cta != mine.cta else "") for role in roles]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _idle(found: Timeline) -> str:
    whens = {"start": "before the first", "tile": "where a further tile begins", "slice": "within a tile",
             "end": "after the last"}  # fmt: skip
    sums: dict[str, float] = {}
    for (when, _), cycles in found.idle.items():
        sums[when] = sums.get(when, 0.0) + cycles
    parts = [f"{cycles / found.step:.1f} steps {whens[when]}" for when, cycles in sums.items()
             if cycles >= 0.05 * found.step]  # fmt: skip
    return f"They idle for {', '.join(parts)}." if parts else ""


def _sorted(shares: dict[str, float]) -> list[tuple[str, float]]:
    key: Callable[[tuple[str, float]], float] = lambda item: -item[1]  # noqa: E731
    return sorted(shares.items(), key=key)


def _wrapped(text: str, width: int, indent: str = "") -> str:
    return textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
