"""Takes up a result where a run before has left it: it must be the same product, and its tiles must be sound."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from ..core.errors import ArgumentError, MemoryLimitError
from .budget import format_bytes
from .journal import Journal, Rectangle
from .journaled import JournaledSink, UnfinishedSink, checksum
from .matrix import AnyDType, MatrixSource
from .plan import Product

#: Bytes that a thread reads at a time of the tiles that it checks.
_BLOCK_BYTES = 8 << 20
_THREADS = 4


class Plan(Protocol):
    """How a product is computed: a frozen dataclass, whose fields but the product are values that JSON has."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def product(self) -> Product:
        """What is computed."""

    @property
    def memory_bytes(self) -> int:
        """All buffers together."""


P = TypeVar("P", bound=Plan)


class Target(Protocol):
    """The place of a result, before it is opened."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def grain(self) -> tuple[int, int]:
        """Rows and columns that are written as a whole."""

    @property
    def scratch_bytes(self) -> int:
        """Most bytes of memory that one write takes beside the tile."""

    @property
    def journal(self) -> str:
        """File of the journal."""

    def check(self, force: bool, inputs: Sequence[MatrixSource]) -> None:
        """Refuse a place that may not be written."""

    def describe(self) -> dict[str, Any]:
        """Return how the result is stored, in values that JSON has."""

    def unfinished(self) -> bool:
        """Return whether work of a run before is there."""

    def open(
        self, shape: tuple[int, int], dtype: AnyDType, *, force: bool, inputs: Sequence[MatrixSource], again: bool
    ) -> UnfinishedSink:
        """Open it, with what a run before has left if `again`, else without."""

    def join(self, shape: tuple[int, int], dtype: AnyDType) -> UnfinishedSink:
        """Open what another process has opened, to write other tiles of it; only that process commits."""


class FinishedTiles:
    """The rectangles of a result that are stored.

    Parameters
    ----------
    rectangles : collection of tuple
        First row, first column, rows and columns of each; none overlaps another.
    """

    def __init__(self, rectangles: Sequence[Rectangle]) -> None:
        self.rectangles = tuple(rectangles)
        self._whole = {(row, col): (rows, cols) for row, col, rows, cols in rectangles}

    def __call__(self, rows: slice, cols: slice) -> bool:
        """Return whether all of such a tile is stored."""
        shape = rows.stop - rows.start, cols.stop - cols.start
        if self._whole.get((rows.start, cols.start)) == shape:
            return True
        # A tile may have been written in pieces.
        inside = (
            height * width
            for row, col, height, width in self.rectangles
            if rows.start <= row and row + height <= rows.stop and cols.start <= col and col + width <= cols.stop
        )
        return bool(sum(inside) == shape[0] * shape[1])


@dataclasses.dataclass(frozen=True)
class Work(Generic[P]):
    """A result that was opened to be computed.

    Attributes
    ----------
    target : Target
        Its place.
    sink : JournaledSink
        Where tiles go.
    plan : Plan
        How to compute: the plan of the run before where there was one.
    finished : FinishedTiles
        What is there already.
    """

    target: Target
    sink: JournaledSink
    plan: P
    finished: FinishedTiles


def open_work(
    target: Target,
    dtype: AnyDType,
    plan: P,
    product: Mapping[str, Any],
    inputs: Mapping[str, MatrixSource],
    *,
    memory: int,
    force: bool = False,
    resume: bool = True,
) -> Work[P]:
    """Open a result, with the tiles that a run before has left there.

    Parameters
    ----------
    target : Target
        Its place.
    dtype : dtype
        Element type.
    plan : Plan
        How to compute it if nothing is there.
    product : mapping
        What else decides the bits of the result, by name and in values that JSON has: scalars, precision, executor.
    inputs : mapping
        What is multiplied and added, by role.
    memory : int
        Limit in bytes that a plan must keep.
    force : bool
        Whether an existing result may be replaced.
    resume : bool
        Whether to use what a run before has left; else it is deleted.

    Raises
    ------
    ArgumentError
        If what was left belongs to another product, or an input was changed since.
    MemoryLimitError
        If going on takes more than `memory`.
    FileFormatError
        If the journal is damaged at its beginning.
    """
    try:
        target.check(force, list(inputs.values()))
    except ArgumentError:
        _sweep(target)
        raise
    shape = plan.product.m, plan.product.n
    header = {
        "format": 1,
        "output": target.name,
        "shape": list(shape),
        "dtype": dtype.name,
        "depth": plan.product.k,
        "factors": [plan.product.a.dtype.name, plan.product.b.dtype.name],
        "stored": target.describe(),
        **product,
    }
    with contextlib.ExitStack() as stack:
        journal = Journal(target.journal, target.name)
        stack.callback(_leave, journal)
        again = resume and target.unfinished()
        if again:
            journal.check_header()
        prints = {role: source.fingerprint() for role, source in inputs.items()}
        if again and journal.header is not None:
            _check_same(target, journal.header, header, prints, inputs)
            plan = _planned_before(target, journal.header["plan"], plan, memory)
            journal.go_on()
            _merge_sides(journal)
            sink = target.open(shape, dtype, force=force, inputs=list(inputs.values()), again=True)
            stack.callback(sink.keep)
            finished = _sound_tiles(sink, journal.tiles)
        else:
            journal.clear()
            for side in side_journals(target.journal):
                Journal(side, target.name).remove()
            sink = target.open(shape, dtype, force=force, inputs=list(inputs.values()), again=False)
            stack.callback(sink.abort)
            # What the header says can be relied on once the place is there.
            journal.start({**header, "inputs": prints, "plan": _record(plan)})
            finished = []
        stack.pop_all()
    journal.tiles = {rectangle: journal.tiles[rectangle] for rectangle in finished}
    return Work(target, JournaledSink(sink, journal), plan, FinishedTiles(finished))


def side_journals(journal: str) -> list[str]:
    """Return the journals of the bands of a product that several processes computed."""
    return sorted(glob.glob(glob.escape(journal) + ".*"))


def _merge_sides(journal: Journal) -> None:
    """Take over what the journals of bands note, and delete them."""
    for path in side_journals(journal.path):
        side = Journal(path, journal.name)
        journal.append(side.tiles.items())
        side.remove()


def _sweep(target: Target) -> None:
    """Delete the journal of a result that was finished, but killed before it could do so."""
    if os.path.exists(target.journal) and not target.unfinished():
        with contextlib.suppress(ArgumentError):
            Journal(target.journal, target.name).remove()


def _leave(journal: Journal) -> None:
    """Close a journal that was not used; one in which nothing stands goes."""
    if journal.header is None:
        journal.remove()
    journal.close()


def _record(plan: Plan) -> dict[str, Any]:
    """Return the fields of a plan; the product stands in the header."""
    # Through JSON, so that what is compared is what is read back.
    fields = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan) if field.name != "product"}
    return dict(json.loads(json.dumps(fields)))


def _planned_before(target: Target, record: Mapping[str, Any], plan: P, memory: int) -> P:
    if record.keys() != _record(plan).keys():
        raise ArgumentError(
            f"{target.name}: its unfinished work was planned by another version of gemmule; finish it with that one, "
            "or start afresh with --no-resume (resume=False)"
        )
    before = dataclasses.replace(plan, **record)
    if before.memory_bytes > memory:
        raise MemoryLimitError(
            f"memory limit {format_bytes(memory)} is too small to go on with the unfinished work on {target.name}, "
            f"whose tiles take {format_bytes(before.memory_bytes, up=True)}; raise --memory, or start afresh with "
            "--no-resume (resume=False)"
        )
    return before


def _check_same(
    target: Target,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    prints: Mapping[str, Mapping[str, Any]],
    inputs: Mapping[str, MatrixSource],
) -> None:
    """Refuse to go on with another product than the one that was begun."""
    for name, value in now.items():
        if name != "output" and before.get(name) != value:
            raise ArgumentError(
                f"{target.name}: unfinished work lies there whose {name} is {before.get(name)}, not {value}; repeat "
                "the command that began it, or start afresh with --no-resume (resume=False)"
            )
    for role, fingerprint in prints.items():
        earlier = before["inputs"].get(role)
        if earlier != fingerprint:
            what = [key for key in fingerprint if earlier is None or earlier.get(key) != fingerprint[key]]
            raise ArgumentError(
                f"{inputs[role].name}: was changed since the unfinished work on {target.name} began ({', '.join(what)} "
                "differs); bring back what it was, or start afresh with --no-resume (resume=False)"
            )


def _sound_tiles(sink: UnfinishedSink, tiles: Mapping[Rectangle, int]) -> list[Rectangle]:
    """Return the tiles whose items still have the CRC-32 that the journal noted."""
    written = sink.written()
    try:
        with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1), "gemmule-check") as threads:
            sound = threads.map(lambda item: _read_checksum(written, sink.grain[0], item[0]) == item[1], tiles.items())
            return [rectangle for rectangle, is_sound in zip(tiles, sound, strict=True) if is_sound]
    finally:
        written.close()


def _read_checksum(source: MatrixSource, grain: int, rectangle: Rectangle) -> int:
    row, col, rows, cols = rectangle
    height = max(_BLOCK_BYTES // max(cols * source.dtype.itemsize, 1), 1)
    height = min(height + -height % grain, rows)
    buffer = np.empty((height, cols), source.dtype)
    total = 0
    for start in range(0, rows, max(height, 1)):
        part = buffer[: min(height, rows - start)]
        source.read(slice(row + start, row + start + len(part)), slice(col, col + cols), part)
        total = checksum(part, total)
    return total
