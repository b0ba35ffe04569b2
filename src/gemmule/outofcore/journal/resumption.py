"""Takes up a result where a run before has left it: it must be the same product, and its tiles must be sound."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np

from gemmule.core.dataclass import dataclass

from ...core.dtype import numpy_dtype
from ...core.errors import ArgumentError, FileAccessError, FileFormatError, InputChangedError, MemoryLimitError
from ...dispatch.former_names import STRATEGIES
from ..device.engine.host_memory import is_transpose
from ..stores.matrix import AnyDType, Finished, MatrixSource
from ..stores.target import Target
from ..tiles.memory_budget import at_least, format_bytes
from ..tiles.plan import Product
from .fingerprint import changes, input_fingerprint
from .finished_tiles import FinishedTiles, sound_tiles
from .journal_file import Journal, Rectangle, band_journals, remove_band_journals
from .journaled_sink import JournaledSink

#: Name of the threads of the host's BLAS in the header, and the most that a journal may ask for.
_BLAS_THREADS, _MOST_THREADS = "blas_threads", 1024


class Plan(Protocol):
    """A plan: a dataclass of numbers, text, types and tuples of them, besides the product."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def product(self) -> Product:
        """The product."""

    @property
    def memory_bytes(self) -> int:
        """All buffers together."""

    @property
    def symmetric(self) -> bool:
        """Whether tiles on and below the diagonal are computed, and mirrored."""

    @property
    def grid(self) -> tuple[int, int, int]:
        """Tiles along m and n, and slices along k."""

    def rows(self, i: int) -> slice:
        """Rows of the tiles in row `i` of tiles."""

    def cols(self, j: int) -> slice:
        """Columns of the tiles in column `j` of tiles."""

    def order(self) -> Iterator[tuple[int, int]]:
        """Yield the tiles that are computed."""

    def flaw(self, current: Self) -> str | None:
        """Say why no planner gives this plan where `current` is one for the product; None where it may."""


PlanT = TypeVar("PlanT", bound=Plan)
#: Fields of the header in words, where the name says too little.
_FIELDS = {"depth": "K", "factors": "operand types", "kind": "store", "groups": "new groups"}


@dataclass(frozen=True)
class Work(Generic[PlanT]):
    """A result that was opened to be computed."""

    target: Target  #: Its place.
    dtype: AnyDType  #: Its element type.
    sink: JournaledSink  #: Destination of tiles.
    plan: PlanT  #: The plan: that of the interrupted run, if any.
    finished: FinishedTiles  #: Tiles of the interrupted run.
    inputs: Mapping[str, MatrixSource]  #: Operands and addend, by role.
    fingerprints: Mapping[str, Mapping[str, Any]]  #: Fingerprints of the inputs when the work began.
    blas_threads: int | None = None  #: Threads of the host's BLAS that the work began with, where they decide bits.

    def check_inputs(self) -> None:
        """Refuse inputs in files that were changed while the result was computed.

        Raises
        ------
        InputChangedError
            If one was.
        """
        for role, source in self.inputs.items():
            if source.path is not None and input_fingerprint(source) != self.fingerprints[role]:
                raise InputChangedError(
                    f"{source.name}: was changed while {self.target.name} was computed from it; start afresh with "
                    "resume=False, and leave the inputs alone"
                )


def open_work(
    target: Target,
    dtype: AnyDType,
    plan: PlanT,
    product: Mapping[str, Any],
    inputs: Mapping[str, MatrixSource],
    *,
    memory: int,
    force: bool = False,
    resume: bool = True,
) -> Work[PlanT]:
    """Open a result, with the tiles that a run before has left there.

    Parameters
    ----------
    target : Target
        Its place.
    dtype : dtype
        Element type.
    plan : Plan
        Plan of a new run.
    product : mapping
        Other parameters that determine the bits of the result, by name, in JSON values: scalars, precision, executor,
        and `_BLAS_THREADS`, which a resumed run adopts, as it does the plan.
    inputs : mapping
        Operands and addend, by role.
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
        If the journal is damaged at its beginning, or has what gemmule does not write there; it stays as it is.
    ForbiddenFileError
        If a temporary file of the result is a link, or not this user's alone; it stays as it is.
    """
    try:
        target.check(force, list(inputs.values()))
    except ArgumentError:
        _sweep(target)
        raise
    shape = plan.product.m, plan.product.n
    header = {
        "format": 3,
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
        sides = _side_journals(journal, stack)
        if resume:
            for one in (journal, *sides):
                one.check()
        target.check_temporary()
        again = resume and target.unfinished()
        prints = {role: input_fingerprint(source) for role, source in inputs.items()}
        if again and journal.header is not None:
            _check_same(target, journal.header, header, prints, inputs)
            for one in (journal, *sides):
                one.check(shape)
            plan = _planned_before(target, journal.header.get("plan"), plan, memory, inputs)
            threads = _threads_before(target, journal.header)
            sink = target.open(shape, dtype, force=force, inputs=list(inputs.values()), again=True)
            stack.callback(sink.keep)
            journal.go_on()
            for side in sides:
                journal.append(side.tiles.items())
                side.remove()
            finished = _of_whole_tiles(plan, sound_tiles(sink, journal.tiles))
        else:
            if resume and journal.header is None and os.path.lexists(target.temporary):
                warnings.warn(
                    f"{target.name}: unfinished work was found without its journal ({target.journal}), which says what "
                    "it belongs to; it is deleted, and every tile is computed",
                    RuntimeWarning,
                    stacklevel=2,
                )
            journal.clear()
            for side in sides:
                side.remove()
            sink = target.open(shape, dtype, force=force, inputs=list(inputs.values()), again=False)
            stack.callback(sink.abort)
            # The header is valid once the place exists.
            journal.start({**header, "inputs": prints, "plan": _record(plan)})
            threads = header.get(_BLAS_THREADS)
            finished = []
        stack.pop_all()
    journal.tiles = {rectangle: journal.tiles[rectangle] for rectangle in finished}
    return Work(target, dtype, JournaledSink(sink, journal), plan, FinishedTiles(finished), inputs, prints, threads)


def finished_tiles(plan: Plan, finished: Finished | None) -> set[tuple[int, int]]:
    """Return the tiles that are there already, with their mirror images where there are some."""
    if finished is None:
        return set()
    return {
        (i, j)
        for i, j in plan.order()
        if finished(plan.rows(i), plan.cols(j)) and (not plan.symmetric or finished(plan.cols(j), plan.rows(i)))
    }


def _side_journals(journal: Journal, stack: contextlib.ExitStack) -> list[Journal]:
    """Open the journals of the bands of a product that several processes computed; the stack closes them."""
    found = []
    for path in band_journals(journal.path):
        found.append(Journal(path, journal.name))
        stack.callback(found[-1].close)
    return found


def _of_whole_tiles(plan: Plan, stored: Sequence[Rectangle]) -> list[Rectangle]:
    """Return the rectangles of tiles that are stored wholly, mirror images included; the others are computed again."""
    there = finished_tiles(plan, FinishedTiles(stored))
    if plan.symmetric:
        there |= {(j, i) for i, j in there}
    tops = [plan.rows(i).start for i in range(plan.grid[0])]
    lefts = [plan.cols(j).start for j in range(plan.grid[1])]

    def whole(piece: Rectangle) -> bool:
        row, col, rows, cols = piece
        i, j = bisect.bisect_right(tops, row) - 1, bisect.bisect_right(lefts, col) - 1
        return (i, j) in there and row + rows <= plan.rows(i).stop and col + cols <= plan.cols(j).stop

    return [piece for piece in stored if whole(piece)]


def _sweep(target: Target) -> None:
    """Delete the journals of a result that was finished, but killed before it could do so."""
    # Files that cannot be deleted, or are damaged, stay: the caller reports the output's fault.
    with contextlib.suppress(ArgumentError, FileFormatError, FileAccessError):
        if target.unfinished():
            return
        remove_band_journals(target.journal, target.name)
        if os.path.lexists(target.journal):
            journal = Journal(target.journal, target.name)
            try:
                journal.check()
                journal.remove()
            finally:
                journal.close()


def _leave(journal: Journal) -> None:
    """Close a journal that was not used; one in which nothing stands goes."""
    if journal.is_empty:
        journal.remove()
    journal.close()


def _record(plan: Plan) -> dict[str, Any]:
    """Return the fields of a plan; the product stands in the header."""
    # Through JSON, so that what is compared is what is read back.
    fields = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan) if field.name != "product"}
    return dict(json.loads(json.dumps(fields, default=str)))


def _like(example: Any, value: Any) -> Any:
    """Convert a field from its JSON form to its type."""
    if isinstance(example, tuple):
        return tuple(value)
    return numpy_dtype(value) if isinstance(example, np.dtype) else value


def _planned_before(target: Target, record: Any, plan: PlanT, memory: int, inputs: Mapping[str, MatrixSource]) -> PlanT:
    """Return the plan that the journal has, if it is one for this product."""
    now = _record(plan)
    if not isinstance(record, dict) or record.keys() != now.keys():
        raise ArgumentError(
            f"{target.name}: its unfinished work was planned by another version of gemmule; finish it with that one, "
            "or start afresh with resume=False"
        )
    if isinstance(strategy := record.get("strategy"), str):
        record = {**record, "strategy": STRATEGIES.get(strategy, strategy)}
    wrong = [name for name, value in record.items() if not _alike(now[name], value)]
    if wrong:
        raise _no_plan(target, f"{wrong[0]} is {record[wrong[0]]!r}")
    before = dataclasses.replace(plan, **{name: _like(getattr(plan, name), value) for name, value in record.items()})
    flaw = before.flaw(plan)
    if flaw is None and before.symmetric and not is_transpose(inputs["a"], inputs["b"]):
        flaw = "symmetric is True, but b is not the transpose of a"
    if flaw is not None:
        raise _no_plan(target, flaw)
    if before.memory_bytes > memory:
        raise MemoryLimitError(
            f"memory limit {format_bytes(memory)} is too small to go on with the unfinished work on {target.name}; "
            f"{at_least('memory', before.memory_bytes, memory)}, or start afresh with resume=False"
        )
    return before


def _threads_before(target: Target, header: Mapping[str, Any]) -> int | None:
    """Return the threads of the host's BLAS that the journal has; None where they decide nothing."""
    threads = header.get(_BLAS_THREADS)
    if threads is not None and (type(threads) is not int or not 1 <= threads <= _MOST_THREADS):
        raise _no_plan(target, f"{_BLAS_THREADS} is {threads!r}")
    return threads


def _alike(example: Any, value: Any) -> bool:
    """Return whether a value that JSON has is of the kind of another one: a bool is no number here."""
    if isinstance(example, list):
        pairs = zip(example, value, strict=True) if isinstance(value, list) and len(value) == len(example) else None
        return pairs is not None and all(_alike(*pair) for pair in pairs)
    return type(value) is type(example)


def _no_plan(target: Target, flaw: str) -> FileFormatError:
    return FileFormatError(
        f"{target.journal}: the plan in this journal is none for {target.name}: {flaw}; everything is left as it is; "
        "start afresh with resume=False"
    )


def _check_same(
    target: Target,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    prints: Mapping[str, Mapping[str, Any]],
    inputs: Mapping[str, MatrixSource],
) -> None:
    """Refuse to go on with another product than the one that was begun."""
    if before.get("format") != now["format"]:
        raise ArgumentError(
            f"{target.journal}: is a journal of format {before.get('format')!r}, of another version of gemmule; this "
            f"one reads format {now['format']}; finish {target.name} with that version, or start afresh with "
            "resume=False"
        )
    # Fields of the earlier header alone, such as a device, count too.
    for name in dict.fromkeys((*now, *before)):
        if name not in ("output", "inputs", "plan", _BLAS_THREADS) and before.get(name) != now.get(name):
            raise ArgumentError(
                f"{target.name}: there is unfinished work whose {_difference(name, before.get(name), now.get(name))}; "
                "repeat the command that began it, or start afresh with resume=False"
            )
    known = before.get("inputs")
    known = known if isinstance(known, dict) else {}
    for role in dict.fromkeys((*prints, *known)):
        earlier, fingerprint = known.get(role), prints.get(role)
        if earlier == fingerprint:
            continue
        if fingerprint is None or not isinstance(earlier, dict):
            raise ArgumentError(
                f"{target.name}: there is unfinished work whose inputs are {', '.join(known) or 'not known'}, not "
                f"{', '.join(prints)}; repeat the command that began it, or start afresh with resume=False"
            )
        raise ArgumentError(
            f"{inputs[role].name}: was changed since the unfinished work on {target.name} began: "
            f"{changes(earlier, fingerprint)}, or start afresh with resume=False"
        )


def _difference(name: str, before: Any, now: Any) -> str:
    """Say in words how a field of a header, or the first differing field within it, differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        for inner in dict.fromkeys((*now, *before)):
            if before.get(inner) != now.get(inner):
                return _difference(inner, before.get(inner), now.get(inner))
    name = _FIELDS.get(name, name)
    return f"{name} {'are' if name.endswith('s') else 'is'} {_in_words(before)}, not {_in_words(now)}"


def _in_words(value: Any) -> str:
    if isinstance(value, list):
        return (" x " if all(type(item) is int for item in value) else " and ").join(map(str, value))
    return "none" if value is None else str(value)
