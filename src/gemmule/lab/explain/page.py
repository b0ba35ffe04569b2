"""An explanation as text for a terminal, its verdict first."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import Kind
from gemmule.core.problem import GemmProblem
from gemmule.core.quantities import short_quantity
from gemmule.core.spec import Choice

from ..column_widths import column_widths
from ..transposes import is_copy, problem_for, transpose_of
from .explanation import Explanation
from .limits import ASSUMED_LATENCY, L2
from .sample import extents
from .timeline_text import timeline_text, waits_text
from .totals import LineCounts

#: Characters of a line without a terminal.
WIDTH = 100
# Extents at which a copy and a transpose differ.
_USUAL = (4096, 8192)
_UNKNOWN = (
    "NVIDIA publishes no rate of the L2 cache or of TMA, so neither has a row here; --l2-bandwidth adds one for the "
    "cache."
)
# Classes of instructions below this share are added up.
_FEW = 0.005


def page(explained: Explanation, width: int = WIDTH) -> str:
    """Return the page, its verdict first, without a newline at its end.

    Parameters
    ----------
    width : int
        Characters of a line. Tables whose words and numbers take more are wider.
    """
    parts = [_verdict(explained, width), _head(explained, width), _method(explained, width), _launch(explained, width)]
    parts += [_bytes(explained, width), _requests(explained, width), _lines(explained, width), _mix(explained, width)]
    parts += [_limits(explained, width), _textbook(explained, width)]
    if explained.timeline is not None:
        parts += [timeline_text(explained.timeline, width), waits_text(explained.timeline, width)]
    return "\n\n".join([*filter(None, parts), _wrapped(f"Next: {_next(explained)}", width)])


def _verdict(explained: Explanation, width: int) -> str:
    """Return the bound and the unit that sets it, in a line."""
    what = f"{explained.named}, {' x '.join(map(str, extents(explained.problem)))}, {explained.chip.name}"
    least = explained.least_seconds
    most = explained.rate(None if least is None else least + sum(one.seconds for one in explained.before))
    if most is None or explained.longest is None:
        return _wrapped(f"{what}: no bound, since times of units are missing", width)
    rate, unit = _rate(most, explained.flop > 0), explained.longest.unit
    if explained.before:
        unit += f" in {explained.choice.spec.name}, the last of its launches"
    return _wrapped(f"{what}: at most {rate}{_share(explained, most)}, bound by {unit}", width)


def _share(explained: Explanation, most: float) -> str:
    """Return the share of the peak that a rate in GFLOP/s is; nothing for a transpose."""
    if not explained.flop or explained.peak is None or explained.arithmetic is None:
        return ""
    return f", {most * 1e9 / explained.peak:.1%} of the peak of the {explained.arithmetic.means}"


def _head(explained: Explanation, width: int) -> str:
    spec, config, problem = explained.choice.spec, explained.choice.config, explained.problem
    size = " x ".join(map(str, extents(problem)))
    if isinstance(problem, GemmProblem):
        out = f" -> {problem.d.dtype}" if problem.d.dtype != problem.a.dtype else ""
        what = f"{size}, {problem.a.dtype}{out}, {problem.layout}"
    else:
        # With an extent of 1 a transpose is a copy, too: the kernel's support of others decides.
        usual = problem_for(spec, config, Arch.parse(explained.arch), transpose_of(*_USUAL, problem.itemsize))
        what = f"{size}, {problem.itemsize} bytes an element, {'copied' if is_copy(usual) else 'transposed'}"
    signature = " ".join(f"{name}={value}" for name, value in explained.choice.signature(problem))
    lines = [
        *(
            f"{one.kernel} prepares operands before: {_scaled(one.bytes)}B read and written, "
            f"{one.seconds * 1e3:.4g} ms at the bandwidth of device memory. All below is of {spec.name}."
            for one in explained.before
        ),
        f"{spec.name}: {spec.summary}",
        f"{what}, on {explained.chip.name}",
        f"config {config}{_origin(explained.choice)}; compiled for {explained.arch}, {signature}",
    ]
    if explained.arch_note:
        lines.append(f"{explained.arch_note}.")
    return "\n".join(_wrapped(line, width) for line in lines)


def _origin(choice: Choice) -> str:
    """Return why a config that is not named is explained; nothing for one that is."""
    if choice.chosen_by == "single":
        return ""
    if choice.chosen_by == "cost" and choice.source:
        return f" ({choice.source}, whose CTAs share tiles: it cannot be explained)"
    return f" (as a call takes it{': tuned' if choice.chosen_by == 'tuned' else ''})"


def _method(explained: Explanation, width: int) -> str:
    if not explained.sampled:
        text = "Counted: the virtual GPU ran the compiled PTX for this shape."
    else:
        shapes = ""
        for shape, factor in sorted(explained.samples, key=lambda sample: sample[1] < 0):
            joined = "" if not shapes else ", and " if factor > 0 else ", less "
            shapes += f"{joined}{abs(factor):,} times {' x '.join(map(str, shape))}"
        alike = "tiles and k-tiles" if explained.flop else "tiles"
        text = (
            "Counted: the virtual GPU ran the compiled PTX for smaller problems, with the alignment and the edges of "
            f"this shape. All {alike} cost the same, so their sum is the whole launch: {shapes}."
        )
    return _wrapped(
        f"{text} Instructions are those of the PTX. Bytes of L2 and device memory follow from a model of the caches.",
        width,
    )


def _launch(explained: Explanation, width: int) -> str:
    grid = " x ".join(str(extent) for extent in explained.recipe.grid)
    full, chip = explained.occupancy, explained.chip
    tile = " x ".join(map(str, explained.matrix_tile)) if None not in explained.matrix_tile else None
    spilled = f"{explained.spill_bytes} bytes spilled" if explained.spill_bytes else "none spilled"
    rows = [
        ("grid", f"{grid} = {_plural(explained.ctas, 'CTA')} of {_plural(explained.recipe.threads, 'thread')}"
         + (f", {tile} elements {_owner(explained)}" if tile is not None else "")),
        ("registers", f"{explained.registers} per thread, {spilled}" + _own_registers(explained)),
        ("shared memory", f"{explained.shared_bytes:,} bytes per CTA" if explained.shared_bytes else "none"),
    ]  # fmt: skip
    if full.reason is not None:
        rows.append(("occupancy", f"none: {full.reason}"))
    else:
        at_once = full.blocks * chip.sms
        rows += [
            ("occupancy", f"{full.occupancy:.1%}: {_plural(full.blocks, 'CTA')}, {full.active_warps} of "
             f"{full.max_warps} warps of an SM; limited by {' and '.join(full.limited_by)}"),
            ("waves", f"{explained.ctas / at_once:.3g} of {_plural(at_once, 'CTA')} on {chip.sms} SMs"),
        ]  # fmt: skip
    if explained.persistent:
        each = explained.tiles / explained.ctas
        rows.append(("tiles", f"{explained.tiles:,}, {each:.3g} for each CTA: persistent CTAs compute several"))
    return "\n".join(["Launch", *(_item(name, text, width) for name, text in rows)])


def _owner(explained: Explanation) -> str:
    """Return whose tile it is: a cluster's CTAs share one, or have adjacent ones."""
    cluster = math.prod(explained.recipe.cluster)
    owner = "each" if cluster == 1 else f"per cluster of {cluster}"
    return f"{owner} at a time" if explained.persistent else owner


def _own_registers(explained: Explanation) -> str:
    own = explained.warp_registers
    return f"; warp roles set {' and '.join(map(str, own))}" if own else ""


def _bytes(explained: Explanation, width: int) -> str:
    product = explained.flop > 0
    rows = [
        [
            level.name,
            f"{_scaled(level.formula_bytes)}B" if level.formula_bytes is not None else "",
            level.formula,
            f"{_scaled(level.bytes)}B",
            level.counted,
            *([f"{explained.flop / level.bytes:.4g}" if level.bytes else ""] if product else []),
        ]
        for level in explained.levels
    ]
    header = ["Bytes through", "formula", "", "counted", "", *(["FLOP/byte"] if product else [])]
    # A transpose has no column of intensities.
    lines = _table(header, rows, ">1,3,5" if product else ">1,3", width)
    if product:
        counted = explained.totals.operations
        problem = explained.problem
        is_complex = isinstance(problem, GemmProblem) and problem.accumulator.kind is Kind.COMPLEX
        formula = "8 M N K" if is_complex else "2 M N K"
        lines.append(
            _wrapped(
                f"Operations: {_scaled(explained.flop)}FLOP by formula, {formula}; {_scaled(counted)}FLOP counted, "
                "with those at edges and of alpha and beta. FLOP/byte by the formula.",
                width,
            )
        )
    if (rates := explained.l2_hit_rates) is not None:
        memory = explained.behind_l2
        text = f"L2 hit rate: {rates[0]:.1%} if concurrent CTAs advance along K in step"
        if memory.apart_bytes != memory.bytes:
            text += (
                f"; {rates[1]:.1%} if those of an SM do not, and then device memory moves "
                f"{_scaled(memory.apart_bytes)}B"
            )
        lines.append(_wrapped(f"{text}.", width))
    return "\n".join(lines)


def _requests(explained: Explanation, width: int) -> str:
    totals = explained.totals
    rows = []
    per = [
        f"{text} {value:.4g}"
        for text, value in (
            ("a read", explained.read_sectors_per_request), ("a write", explained.write_sectors_per_request),
        )
        if value is not None
    ]  # fmt: skip
    share = totals.total("ideal_sectors") / max(totals.total("sectors"), 1)
    if per:
        rows.append(("sectors", f"of 32 bytes, {', '.join(per)} of a warp; {share:.1%} of them needed"))
    # The rest is for kernels whose threads load.
    if explained.published is not None and explained.timeline is None:
        rows.append(("a step of k", f"{explained.published.sectors_per_warp_step:.4g} sectors read by each warp"))
    if bulk := [line for line in totals.by_line if line.bulk]:
        copies = sum(line.requests for line in bulk)
        rows.append(("TMA", f"{copies:,} copies, {sum(line.bytes for line in bulk) / copies:,.0f} bytes each"))
    if wavefronts := totals.total("wavefronts"):
        conflicts = f"{totals.load_conflicts:,} wavefronts of loads, {totals.store_conflicts:,} of stores"
        rows.append(("bank conflicts", f"{conflicts}, of {wavefronts:,} in all"))
    return "\n".join(["Requests", *(_item(name, text, width) for name, text in rows)]) if rows else ""


def _lines(explained: Explanation, width: int) -> str:
    rows = [
        [
            _short(line, 2 if width >= WIDTH else 1), line.kind, line.operand.upper(), f"{line.requests:,}",
            *_both(line.sectors, line.ideal_sectors, line.requests),
            *_both(line.wavefronts, line.ideal_wavefronts, line.requests),
        ]
        for line in explained.totals.by_line
    ]  # fmt: skip
    header = ["Source line", "", "of", "requests", "sectors", "least", "wavefronts", "least"]
    table = _table(header, rows, ">3,4,5,6,7", width)
    found = table[:1]
    for text, line in zip(table[1:], explained.totals.by_line, strict=True):
        found += [text, *([f"    {_cut(line.code, width - 4)}"] if line.code else [])]
    return "\n".join([*found, "(sectors and wavefronts: mean of a request; least: without waste)"])


def _both(count: int, least: int, requests: int) -> tuple[str, str]:
    return (f"{count / requests:.4g}", f"{least / requests:.4g}") if count else ("", "")


def _mix(explained: Explanation, width: int) -> str:
    totals = explained.totals
    shown = [(kind, warps) for kind, (warps, _) in totals.by_class.items() if warps >= _FEW * totals.warps]
    rest = totals.warps - sum(warps for _, warps in shown)
    if rest:
        shown.append(("others", rest))
    cells = [f"{kind:<18}{warps / totals.warps:>7.1%}" for kind, warps in shown]
    deep = -(-len(cells) // (3 if width >= WIDTH else 2))
    lines = ["    ".join(cells[row::deep]) for row in range(deep)]
    return "\n".join([f"Instructions of warps: {totals.warps:,}", *(f"  {line}" for line in lines)])


def _limits(explained: Explanation, width: int) -> str:
    if not explained.limits:
        return ""
    product = explained.flop > 0
    rows = []
    # One unit for the column, that of the bound.
    scale, unit = (
        (1e3, "TFLOP/s")
        if product and (explained.rate(explained.least_seconds) or 0) >= 1e3
        else (1, "GFLOP/s" if product else "GB/s")
    )
    for limit in explained.limits:
        rate = explained.rate(limit.seconds)
        longest = explained.limits[0].seconds
        row = [limit.unit, _scaled(limit.amount), limit.what, f"{_scaled(limit.rate)}/s", f"{limit.seconds * 1e3:.4g}"]
        # A missing unit may be the one that takes the longest.
        if not explained.missing:
            row += [f"{limit.seconds / longest:.0%}", _figure(rate / scale) if rate is not None else ""]
        rows.append(row)
    header = ["Least time", "", "", "", "ms", *(["of longest", unit] if not explained.missing else [])]
    lines = _table(header, rows, ">1,3,4,5,6" if not explained.missing else ">1,3,4", width)
    uneven = max(limit.uneven for limit in explained.limits)
    if uneven > 1:
        work = explained.tiles or explained.ctas
        workers, mean = min(explained.ctas, explained.chip.sms), work / explained.chip.sms
        lines.append(
            _wrapped(
                f"(Times of an SM's units are x {uneven:.4g}: the busiest SM has "
                f"{_plural(-(-work // workers), 'tile' if explained.persistent else 'CTA')}, of {mean:.4g} on "
                "average.)",
                width,
            )
        )
    if (most := explained.rate(explained.least_seconds)) is not None and explained.longest is not None:
        # Traffic of L2 is estimated, and its rate is unpublished.
        is_estimate = explained.longest.unit == L2
        holds = "This is an estimate, as are the bytes of L2." if is_estimate else "This is no estimate."
        text = f"At most {_rate(most, product)}{_share(explained, most)}: {explained.longest.unit} takes longest. "
        lines.append(_wrapped(text + holds, width))
    lines += [_wrapped(f"No bound: {reason}.", width) for reason in explained.missing]
    if explained.timeline is not None and all(limit.unit != L2 for limit in explained.limits):
        lines.append(_wrapped(_UNKNOWN, width))
    if (waits := explained.waiting) is not None:
        text = (
            f"Waiting: a warp waits {_plural(waits.rounds, 'time')} for device memory, with "
            f"{waits.distance:,} instructions between load and use. With the other warps of its scheduler these hide "
            f"{waits.hidden_cycles:,} cycles of an assumed latency of {ASSUMED_LATENCY}."
        )
        if (rate := explained.rate(explained.waiting_seconds)) is not None:
            text += f" If all warps of an SM wait at once: {_rate(rate, product)}, an estimate."
        lines.append(_wrapped(text, width))
    return "\n".join(lines)


def _textbook(explained: Explanation, width: int) -> str:
    if (found := explained.published) is None or explained.timeline is not None:
        return ""
    text = (
        f"By the rule of the V100 tutorial (docs/sources.md): {found.sectors_per_warp_step:.4g} transactions per warp "
        f"and step, taken as {found.transaction_bytes} bytes each, are {found.flop_per_byte:.4g} FLOP/byte"
    )
    if found.bound_gflops is not None:
        text += (
            f", and with {explained.bandwidth / 1e9:,.0f} GB/s of device memory {_rate(found.bound_gflops, True)} "
            "at most: for comparison, it is no bound of this kernel"
        )
    if found.transaction_bytes != 32:
        text += " (a transaction moves 32 bytes, and caches serve most of them)"
    return _wrapped(f"{text}.", width)


def _next(explained: Explanation) -> str:
    if explained.next is not None:
        return explained.next
    return "not known: times of units are missing, and one of those may be the longest."


def _item(name: str, text: str, width: int) -> str:
    return _wrapped(f"  {name:<16}{text}", width, " " * 18)


def _wrapped(text: str, width: int, indent: str = "") -> str:
    return textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], right: str, width: int) -> list[str]:
    """Return the header and rows of a table as text; `right` names the columns that are flush right, as in ``>1,3``."""
    flush = {int(number) for number in right[1:].split(",")}
    is_text = [column not in flush for column in range(len(header))]
    between = "  "
    widths = column_widths(header, rows, is_text, width - len(between) * (len(header) - 1))
    if sum(widths) + len(between) * (len(header) - 1) > width:
        between = " "
        widths = column_widths(header, rows, is_text, width - (len(header) - 1))
    found = []
    for cells in (header, *rows):
        wrapped = [_wrapped(cell, size).splitlines() for cell, size in zip(cells, widths, strict=True)]
        lines = itertools.zip_longest(*wrapped, fillvalue="")
        found.append(
            "\n".join(
                between.join(
                    part.rjust(size) if column in flush else part.ljust(size)
                    for column, (part, size) in enumerate(zip(line, widths, strict=True))
                ).rstrip()
                for line in lines
            )
        )
    return found


def _scaled(count: float) -> str:
    for prefix, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= scale:
            return f"{count / scale:.4g} {prefix}"
    return f"{count:.4g} "


def _rate(giga: float, product: bool) -> str:
    """Return GFLOP/s of a product or GB/s of a transpose, in the unit that keeps them short."""
    return short_quantity(giga * 1e9, "FLOP/s" if product else "B/s")


def _figure(rate: float) -> str:
    """Return a rate in four significant figures, and in whole numbers from 1000 on."""
    return f"{rate:,.0f}" if rate >= 1e3 else f"{rate:.4g}"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _short(line: LineCounts, parts: int) -> str:
    """Return a source line by the last parts of its file's path."""
    return "/".join(line.source.split("/")[-parts:]) or "?"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
