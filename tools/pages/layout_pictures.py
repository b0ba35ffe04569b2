"""Pictures of layouts: which thread holds what, and where it lies, evaluated from the kernels' own code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gemmule.core.launch import TensorMapParam
from gemmule.dispatch.registry import REGISTRY
from gemmule.lab.drawing.canvas import Page
from gemmule.lab.products import gemm_problem
from gemmule.vgpu.mma.fragments import places_of_accumulator
from gemmule.vgpu.models.banks import BANKS, WORD, wavefronts
from gemmule.vgpu.tensor_map import swizzled

from . import layouts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gemmule.lab.drawing.theme import Theme

#: A number for each cell: the colour of a series, or -1 for none.
Cells = tuple[tuple[int, ...], ...]
_VECTOR = 4


@dataclasses.dataclass(frozen=True)
class Panel:
    """A grid of cells.

    Attributes
    ----------
    title, x, y : str
        What it shows, and what columns and rows are.
    colours : Cells
        The series of each cell, -1 for none.
    words : tuple of tuple of str
        What is written in each cell, or nothing.
    """

    title: str
    x: str
    y: str
    colours: Cells
    words: tuple[tuple[str, ...], ...] = ()


@dataclasses.dataclass(frozen=True)
class LayoutPicture:
    """Panels side by side."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    height: float = 330

    drawn = True

    def page(self, theme: Theme) -> Page:
        """Return the page that it takes."""
        return Page(height=self.height, theme=theme)

    def draw(self, figure: Figure, page: Page) -> None:
        """Draw it."""
        for axes, panel in zip(figure.subplots(1, len(self.panels), squeeze=False)[0], self.panels, strict=True):
            _panel(axes, panel, page)
        figure.suptitle(self.title, x=0.01, ha="left")


def _panel(axes: Axes, panel: Panel, page: Page) -> None:
    from matplotlib.collections import PolyCollection
    from matplotlib.ticker import MaxNLocator

    theme = page.theme
    cells = np.array(panel.colours)
    rows, columns = cells.shape
    for series in sorted({int(cell) for cell in cells.flat if cell >= 0}):
        bars = [bar for row in range(rows) for bar in _bars(cells[row] == series, row)]
        axes.add_collection(PolyCollection(bars, facecolors=theme.series[series], edgecolors="none"))
    if max(rows, columns) <= BANKS:
        axes.vlines(range(1, columns), 0, rows, colors=theme.page, linewidth=0.4)
        axes.hlines(range(1, rows), 0, columns, colors=theme.page, linewidth=0.4)
    axes.set_xlim(0, columns)
    axes.set_ylim(rows, 0)
    axes.set_aspect("equal")
    axes.set_title(panel.title, fontsize=page.text - 1)
    axes.set_xlabel(panel.x, fontsize=page.text - 1.5)
    axes.set_ylabel(panel.y, fontsize=page.text - 1.5)
    axes.tick_params(labelsize=page.text - 2.5)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    for spine in axes.spines.values():
        spine.set_visible(True)
    for row, line in enumerate(panel.words):
        for column, word in enumerate(line):
            axes.text(
                column + 0.5, row + 0.5, word, ha="center", va="center", fontsize=page.text - 4,
                color=theme.page if cells[row, column] >= 0 else theme.faint,
            )  # fmt: skip


def _bars(filled: NDArray[np.bool_], row: int) -> list[list[tuple[int, int]]]:
    """Return the corners of each run of filled cells of a row: few shapes make a small file."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], filled, [False]])))
    runs = zip(edges[::2], edges[1::2], strict=True)
    return [[(int(x), row), (int(end), row), (int(end), row + 1), (int(x), row + 1)] for x, end in runs]


def _cells(found: NDArray[Any]) -> Cells:
    return tuple(tuple(int(cell) for cell in row) for row in found)


def _thread_places(kernel: str, axis: str) -> Callable[[int, int], int]:
    """Return the row or column of a thread's accumulators in the CTA's tile: of thread and index."""
    spread = layouts.function("gemmule.kernels.simt.thread_tiles", "spread", {"VECTOR": _VECTOR})
    config = next(spec.default for spec in REGISTRY if spec.name == kernel)

    def place(thread: int, index: int) -> int:
        method = layouts.function(layouts.kernel_module(kernel), axis, {"spread": spread}, thread)
        return int(method(config, index))

    return place


def thread_tiles() -> LayoutPicture:
    """Return the accumulators of four threads of g04 and of g05."""
    threads, panels = (0, 1, 2, 17), []
    for kernel, title in (("g04_register_tile", "g04: one block"), ("g05_conflict_free", "g05: four blocks, 64 apart")):
        row, col = _thread_places(kernel, "row"), _thread_places(kernel, "col")
        cells = np.full((128, 128), -1)
        for series, thread in enumerate(threads):
            places = [[one(thread, index) for index in range(8)] for one in (row, col)]
            cells[np.ix_(*places)] = series
        panels.append(Panel(title, "column of the tile", "row of the tile", _cells(cells)))
    return LayoutPicture("thread-tiles", "The 8 x 8 accumulators of threads 0, 1, 2 and 17", tuple(panels), 380)


def bank_conflicts() -> LayoutPicture:
    """Return the banks of a warp's read of B at one k, before and after."""
    panels = []
    for kernel in ("g04_register_tile", "g05_conflict_free"):
        col = _thread_places(kernel, "col")
        cells = np.full((8, BANKS), -1)
        # The words of a bank in the order in which lanes want them: each further one is a further wavefront.
        wanted: dict[int, list[int]] = {}
        for lane in range(8):
            for word in (col(lane, index) for index in range(_VECTOR)):
                held = wanted.setdefault(word % BANKS, [])
                if word not in held:
                    held.append(word)
                cells[lane, word % BANKS] = held.index(word)
        lanes = np.array([[col(lane, 0) * WORD for lane in range(32)]])
        count = int(wavefronts(lanes, np.ones((1, 32), bool), 16, write=False)[0])
        panels.append(Panel(f"{kernel[:3]}: {count} wavefronts a warp", "bank", "lane", _cells(cells)))
    return LayoutPicture(
        "bank-conflicts",
        "16-byte reads of B by lanes 0 to 7: a second colour is a second wavefront",
        tuple(panels),
        190,
    )


def tile_banks() -> LayoutPicture:
    """Return the banks of t09's, t10's and t11's tiles, and the elements that a warp reads at once."""
    panels, side, lane = [], 32, np.arange(32)
    i, j = np.indices((side, side))
    chunk = layouts.function(
        layouts.kernel_module("t11_swizzled_vectorised"), "chunk", {"VECTOR": _VECTOR, "LANES_I": 8}
    )
    config = type("Config", (), {"side": side})
    for kernel, title in (
        ("t09_shared_tile", "t09: rows of 32"),
        ("t10_padded", "t10: rows of 33"),
        ("t11", "t11: XOR"),
    ):
        if kernel == "t11":
            words = np.vectorize(lambda i, j: chunk(config, i, j // _VECTOR) + j % _VECTOR)(i, j)
            # Eight lanes read vectors along a row: a quarter of the warp's 16-byte request.
            read, size = np.array([words[n // 8, n % 8 * _VECTOR] for n in lane]), 16
            marked = [(0, n) for n in range(side)]
        else:
            across, along = layouts.strides(kernel, side=side)
            words = i * across + j * along
            read, size = words[0, lane], 4
            marked = [(0, n) for n in range(side)]
        cells = words % BANKS // 4
        count = int(wavefronts(read[None] * WORD, np.ones((1, 32), bool), size, write=False)[0])
        text = [["" for _ in range(side)] for _ in range(side)]
        for row, column in marked:
            text[row][column] = "·"
        panels.append(Panel(f"{title}: {count} wavefronts", "j", "i", _cells(cells), tuple(map(tuple, text))))
    return LayoutPicture(
        "tile-banks", "Bank of each element, four banks a colour; a warp reads the dotted row", tuple(panels), 300
    )


def wgmma_accumulator() -> LayoutPicture:
    """Return which lane holds each element of a warp's accumulators."""
    lanes = np.concatenate([places_of_accumulator(16) // 4] * 2, axis=1)
    words = tuple(tuple(str(lane) for lane in row) for row in lanes)
    panel = Panel("16 of the 64 rows, 16 columns", "column", "row", _cells(lanes // 4), words)
    return LayoutPicture("wgmma-accumulator", "Lane of each accumulator of a warp in wgmma", (panel,), 330)


def tma_swizzle() -> LayoutPicture:
    """Return where TMA's swizzle of 128 bytes puts the chunks of a k-tile's rows."""
    plain = np.tile(np.arange(8), (8, 1))
    address = np.arange(8)[:, None] * 128 + np.arange(8) * 16
    stored = np.empty((8, 8), int)
    stored[address // 128, swizzled(address, 128) % 128 // 16] = plain
    panels = tuple(
        Panel(
            title, "16-byte place of a 128-byte row", "row", _cells(cells), tuple(tuple(map(str, row)) for row in cells)
        )
        for title, cells in (("in the matrix", plain), ("in shared memory", stored))
    )
    return LayoutPicture("tma-swizzle", "Chunks of 16 bytes: a column of one colour meets all banks", panels, 330)


def raster() -> LayoutPicture:
    """Return the tiles of the CTAs that run together, along rows and in groups."""
    panels, tiles, wave = [], 16, 32
    grouped = layouts.function("gemmule.kernels.parts.raster", "grouped_tile", {})
    for group in (1, 8):
        cells = np.full((tiles, tiles), -1)
        places = [grouped(cta, tiles, tiles, group) for cta in range(wave)]
        for place in places:
            cells[place] = 0 if group == 1 else 2
        rows, columns = (len({place[axis] for place in places}) for axis in (0, 1))
        panels.append(Panel(f"group={group}: {rows} of A + {columns} of B", "tile column", "tile row", _cells(cells)))
    return LayoutPicture(
        "raster", f"Tiles of the first {wave} CTAs, and the panels of A and B that they read", tuple(panels), 330
    )


def multicast() -> LayoutPicture:
    """Return which CTA of a cluster loads which part of the operands."""
    spec = next(spec for spec in REGISTRY if spec.name == "h06_cluster_multicast")
    config: Any = spec.default
    problem = gemm_problem(4096, 4096, 4096, "bfloat16", "bfloat16", "nt")
    params = spec.launch(problem, config).params
    boxes = {one.operand: one.box[1] for one in params if isinstance(one, TensorMapParam)}
    unit = 32
    a = np.repeat([0, 1], config.tile_m // unit)[:, None]
    loads = np.arange(config.tile_n // unit) // (boxes["b"] // unit)
    rows, columns = (f"{name}, {unit} each" for name in ("rows", "columns"))
    panels = (
        Panel("A: each CTA its rows", "k-tile", rows, _cells(np.repeat(a, 2, 1))),
        Panel("B: each CTA half, delivered to both", columns, "k-tile", _cells(np.tile(loads, (2, 1)))),
    )
    return LayoutPicture("multicast", "A cluster of two CTAs (a colour each): who loads what of a k-tile", panels, 260)


def tiles() -> LayoutPicture:
    """Return what one CTA of g03 reads of A and B for its tile of C, and which part lies in shared memory."""
    kernel, extent, block, step = "g03_shared_tile", 128, {"block_m": 2, "block_n": 1}, 1
    config: Any = next(spec.default for spec in REGISTRY if spec.name == kernel)
    a, b, c = (np.full((extent, extent), -1) for _ in range(3))
    for thread in range(config.side**2):
        names: dict[str, Any] = {"self": config, "tid": thread, **block}
        names["i"], names["j"] = layouts.assigned(kernel, names, "i, j")
        m, n = layouts.assigned(kernel, names, "m, n")
        c[m, n] = 0
        for k0 in range(0, extent, config.side):
            series = 2 if k0 == step * config.side else 0
            a[m, k0 + names["j"]] = series
            b[k0 + names["i"], n] = series
    panels = (
        Panel("A", "k", "m", _cells(a)),
        Panel("B", "n", "k", _cells(b)),
        Panel("C", "n", "m", _cells(c)),
    )
    return LayoutPicture(
        "tiles", "One CTA's tile of C, and the k-tiles of A and B that it needs, one at a time", panels, 270
    )


def stages() -> LayoutPicture:
    """Return which k-tile each stage of h03's ring holds while a k-tile is multiplied."""
    kernel, k_tiles, stages = "h03_stages", 12, 4
    module = layouts.kernel_module(kernel)
    ring = type("Ring", (), {"num_stages": stages})
    advance = layouts.function(module, "advance", {"Int32": int})
    held = {stage: stage for stage in range(stages - 1)}
    cells, words = np.full((stages, k_tiles), -1), [["" for _ in range(k_tiles)] for _ in range(stages)]
    stage, phase = 0, 0
    for k in range(k_tiles):
        ahead, free = layouts.assigned(kernel, {"self": ring, "k": k, "stage": stage}, "ahead, free")
        if ahead < k_tiles:
            held[free] = ahead
        for one, k_tile in held.items():
            if k_tile >= k:
                cells[one, k] = 0 if one == stage else 1
                words[one][k] = str(k_tile)
        stage, phase = advance(ring, stage, phase)
    panel = Panel(
        "its number; the diagonal is multiplied, the others are in flight",
        "step",
        "stage",
        _cells(cells),
        tuple(map(tuple, words)),
    )
    return LayoutPicture("stages", "The ring: which k-tile each of four stages holds", (panel,), 230)


_PICTURES: dict[str, Callable[[], LayoutPicture]] = {
    "bank_conflicts": bank_conflicts, "multicast": multicast, "raster": raster, "stages": stages,
    "thread_tiles": thread_tiles, "tile_banks": tile_banks, "tiles": tiles, "tma_swizzle": tma_swizzle,
    "wgmma_accumulator": wgmma_accumulator,
}  # fmt: skip


def layout_picture(name: str) -> LayoutPicture:
    """Return the picture of that name.

    Raises
    ------
    KeyError
        If there is none.
    """
    return _PICTURES[name]()
