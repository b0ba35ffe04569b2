"""Where kernels stand on a chip's roofline: the rate of `gemm` records over the bytes of `counts` records.

Rate and bytes are of the same kernel, config, element type and size. A kernel that was counted and not timed at a size
has no place.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gemmule.core.chip import Chip
from gemmule.core.dtype import dtype_named
from gemmule.core.errors import DTypeError, UnsupportedError
from gemmule.core.roofline import attainable, fastest_unit, ridge
from gemmule.lab.drawing.canvas import Page, spread_labels
from gemmule.lab.drawing.theme import MARKS, Theme
from gemmule.lab.kernel_labels import Key, key_of, labels
from gemmule.lab.styles import Style, in_order, short, styles

from .counted import Counted, Counts, Shape, counted, dram_bytes, l2_bytes, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Record = Mapping[str, Any]
# Extents of a product.
_PRODUCT = 3
#: A kernel whose multiply-adds are this share of its operations, or more, computes without tensor cores.
_MOST = 0.9
_TERA = 1e12


@dataclasses.dataclass(frozen=True)
class Place:
    """A kernel on the roofline.

    Attributes
    ----------
    name : str
        Of the kernel and config.
    key : Key
        The kernel and config.
    style : Style
        How it is drawn.
    dram, l2 : float, optional
        Operations for each byte between chip and memory, and between the L2 cache and the SMs.
    with_writes : bool
        Whether bytes written were counted too.
    rate : float, optional
        Operations a second, if it was timed.
    unit, peak : str, float
        The unit that it computes with, and its peak rate.
    bandwidth : float
        Bytes a second of the chip's memory.
    """

    name: str
    key: Key
    style: Style
    dram: float | None
    l2: float | None
    with_writes: bool
    rate: float | None
    unit: str
    peak: float
    bandwidth: float

    @property
    def bound(self) -> str | None:
        """What limits at this intensity: ``arithmetic`` or ``device memory``."""
        if self.dram is None:
            return None
        return "arithmetic" if self.dram >= ridge(self.peak, self.bandwidth) else "device memory"

    @property
    def roof_text(self) -> str:
        """Which roof is above it, in words; nothing if its bytes were not counted."""
        return f"peak of {unit_text(self.unit)}" if self.bound == "arithmetic" else self.bound or ""

    @property
    def attainable(self) -> float | None:
        """The roof at this intensity, in operations a second."""
        return None if self.dram is None else attainable(self.dram, self.peak, self.bandwidth)

    @property
    def reached(self) -> float | None:
        """The rate as a share of the roof."""
        return None if self.rate is None or self.attainable is None else self.rate / self.attainable


@dataclasses.dataclass(frozen=True)
class Roofline:
    """The roofline of one element type and size on one chip.

    Attributes
    ----------
    chip : str
        Name of the chip.
    dtype : str
        Element type.
    shape : tuple of int
        M, N and K.
    bandwidth : float
        Bytes a second of the chip's memory.
    roofs : tuple of (str, float)
        Units that could compute it and their peak rates, in operations a second, the fastest first.
    places : tuple of Place
        The kernels.
    yardstick : float, optional
        Rate of cuBLASLt in operations a second, if it was timed.
    """

    chip: str
    dtype: str
    shape: Shape
    bandwidth: float
    roofs: tuple[tuple[str, float], ...]
    places: tuple[Place, ...]
    yardstick: float | None

    @property
    def name(self) -> str:
        """Part of its file name."""
        return f"roofline-{self.dtype}-{'x'.join(map(str, self.shape))}"

    @property
    def title(self) -> str:
        """What it shows."""
        return f"Roofline, {self.dtype}, {' x '.join(map(str, self.shape))}, {self.chip}"

    @property
    def drawn(self) -> bool:
        """Whether there is a place to draw."""
        return bool(self.plotted)

    @property
    def plotted(self) -> tuple[Place, ...]:
        """The places that have both coordinates."""
        return tuple(place for place in self.places if place.rate is not None and place.dram is not None)

    def page(self, theme: Theme) -> Page:
        """Return the page that it takes."""
        return Page(theme=theme)

    def draw(self, figure: Figure, page: Page) -> None:
        """Draw it into an empty figure."""
        _draw(figure, self, page)


def rooflines(records: Sequence[Record], chip: Chip) -> list[Roofline]:
    """Return a roofline for each element type and size that was counted on the hardware.

    Parameters
    ----------
    records : sequence of mapping
        `counts` and `gemm` records of one chip; the later ones count.
    chip : Chip
        Facts of the chip.
    """
    groups: dict[tuple[str, Shape], list[Counted]] = {}
    for one in counted(records):
        if dram_bytes(one.hardware) is not None and len(one.shape) == _PRODUCT and one.layout == "nn":
            groups.setdefault((one.dtype, one.shape), []).append(one)
    found = []
    for (dtype, shape), unordered in groups.items():
        roofs = _roofs(chip, dtype)
        if not roofs:
            continue
        of_type = [r for r in records if r.get("dtype") == dtype]
        timed = [r for r in of_type if r["record"] in ("gemm", "yardstick") and _plain(r, shape)]
        rates = {key_of(r): 1e12 * r["tflops"] for r in timed if r["record"] == "gemm"}
        best = [2e6 * math.prod(shape) / r["best_us"] for r in timed if r["record"] == "yardstick" and "best_us" in r]
        names, looks = labels(r for r in of_type if r["record"] == "counts"), styles(of_type)
        by_key = {one.key: one for one in unordered}
        group = [by_key[key] for key in in_order(by_key, looks)]
        places = tuple(_place(one, names[one.key], looks[one.key], rates.get(one.key), roofs, chip) for one in group)
        found.append(
            Roofline(chip.name, dtype, shape, chip.memory_bandwidth, roofs, places, best[-1] if best else None)
        )
    return found


def _plain(record: Record, shape: Shape) -> bool:
    """Whether a product is of that size, and as those that are counted: in rows, one, in its type's precision."""
    plain = record["layout"] == "nn" and not record.get("batch") and record.get("precision", "ieee") == "ieee"
    return plain and (record["m"], record["n"], record["k"]) == shape


def _roofs(chip: Chip, dtype: str) -> tuple[tuple[str, float], ...]:
    try:
        unit, peak = fastest_unit(chip, dtype_named(dtype), dtype_named(dtype))
    except (DTypeError, UnsupportedError):
        return ()
    slower = (("fp64", chip.peaks.fp64),) if unit == "fp64_tensor" and chip.peaks.fp64 is not None else ()
    return ((unit, peak), *slower)


def _place(
    one: Counted, name: str, style: Style, rate: float | None, roofs: Sequence[tuple[str, float]], chip: Chip
) -> Place:
    flop, moved, through_l2 = 2 * math.prod(one.shape), dram_bytes(one.hardware), l2_bytes(one.hardware)
    unit, peak = roofs[-1 if _without_tensor_cores(one.hardware, flop) else 0]
    return Place(
        name=name,
        key=one.key,
        style=style,
        dram=flop / moved if moved else None,
        l2=flop / through_l2 if through_l2 else None,
        with_writes="dram__bytes_write.sum" in one.hardware,
        rate=rate,
        unit=unit,
        peak=peak,
        bandwidth=chip.memory_bandwidth,
    )


def _without_tensor_cores(counts: Counts, flop: int) -> bool:
    """Whether the multiply-adds of single threads are the product's."""
    lanes = sum(counts.get(f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum", 0.0) for name in ("ffma", "dfma"))
    return 2 * lanes >= _MOST * flop


def unit_text(unit: str) -> str:
    """Return a unit's name in words."""
    return {"fp64": "fp64 FMA units"}.get(unit, unit.replace("_tensor", " tensor cores"))


def table(places: Sequence[Place]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: a kernel a row, with its intensities, its roof and what it reaches of it."""
    header = ["kernel", "FLOP/byte of DRAM", "FLOP/byte of L2", "roof is", "roof, TFLOP/s", "TFLOP/s", "of roof"]
    rows = [
        [
            place.name,
            "" if place.dram is None else f"{place.dram:.1f}",
            "" if place.l2 is None else f"{place.l2:.1f}",
            place.roof_text,
            "" if place.attainable is None else f"{place.attainable / 1e12:.1f}",
            "" if place.rate is None else f"{place.rate / 1e12:.2f}",
            "" if place.reached is None else percent(place.reached),
        ]
        for place in places
    ]
    return header, rows


def _draw(figure: Figure, roofline: Roofline, page: Page) -> None:
    """Draw a roofline into an empty figure; kernels without a rate or without bytes are left out."""
    theme = page.theme
    axes = figure.add_subplot()
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10)
    drawn = roofline.plotted
    intensities = [value for place in drawn for value in (place.dram, place.l2) if value]
    rates = [place.rate / _TERA for place in drawn if place.rate]
    peak = roofline.roofs[0][1] / _TERA
    left = min([*intensities, roofline.roofs[-1][1] / roofline.bandwidth]) / (3 if page.narrow else 2)
    right = 2 * max([*intensities, roofline.roofs[0][1] / roofline.bandwidth])
    axes.set_xlim(left, right)
    axes.set_ylim(min([*rates, left * roofline.bandwidth / _TERA]) / 1.6, 2 * peak)
    _draw_roofs(axes, roofline, page, left, right)
    labels = []
    for place in drawn:
        assert place.dram is not None
        assert place.rate is not None
        colour, rate = theme.series[place.style.colour], place.rate / _TERA
        if place.l2:
            axes.plot([place.l2, place.dram], [rate, rate], color=colour, linewidth=1)
            axes.plot([place.l2], [rate], color=colour, marker="|", markersize=9, markeredgewidth=1.6)
        axes.plot(
            [place.dram], [rate], color=colour, marker=MARKS[place.style.colour], markersize=7, markeredgewidth=1.4,
            markerfacecolor=theme.page if place.style.config else colour, linestyle="none",
        )  # fmt: skip
        labels.append((place.dram, rate, short(place.name), colour))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()
    if roofline.yardstick is not None:
        reached = (roofline.yardstick / roofline.bandwidth, right)
        axes.plot(reached, [roofline.yardstick / _TERA] * 2, color=theme.ink, linestyle="--", linewidth=1.4)
        labels.append((right, roofline.yardstick / _TERA, "cuBLASLt", theme.ink))
    between = "\n" if page.narrow else ": "
    axes.set_xlabel(f"FLOP a byte{between}marks at device memory, ticks at the L2 cache")
    axes.set_ylabel("TFLOP/s")
    axes.grid(linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title(roofline.title, pad=10)
    spread_labels(axes, labels, page, faint=True)


def _draw_roofs(axes: Axes, roofline: Roofline, page: Page, left: float, right: float) -> None:
    theme, bandwidth = page.theme, roofline.bandwidth
    peaks = [rate for _, rate in roofline.roofs]
    ends = (left, peaks[0] / bandwidth)
    axes.plot(ends, [end * bandwidth / _TERA for end in ends], color=theme.ink, linewidth=1.8)
    for number, (unit, peak) in enumerate(roofline.roofs):
        axes.plot(
            [peak / bandwidth, right], [peak / _TERA] * 2, color=theme.ink if number == 0 else theme.faint,
            linewidth=1.8 if number == 0 else 1.2, linestyle="-" if number == 0 else ":",
        )  # fmt: skip
        axes.annotate(
            f"{unit_text(unit)}: {peak / _TERA:.1f}{'' if page.narrow else ' TFLOP/s'}", (right, peak / _TERA),
            xytext=(-4, 4), textcoords="offset points", ha="right", va="bottom", fontsize=page.text - 1,
            color=theme.faint,
        )  # fmt: skip
    # Nearer to the lower end: the labels of the units stand at the upper one.
    lower = 0.5 if page.narrow else 0.6
    middle = ends[0] ** lower * ends[1] ** (1 - lower)
    # The direction of the roof in the data's own units; the axes turn the text as they turn the roof.
    along = math.degrees(math.atan(bandwidth / _TERA))
    axes.text(
        middle, 1.18 * middle * bandwidth / _TERA, f"memory: {bandwidth / _TERA:.2f} TB/s", ha="center", va="bottom",
        rotation=along, rotation_mode="anchor", transform_rotates_text=True, fontsize=page.text - 1, color=theme.faint,
    )  # fmt: skip
