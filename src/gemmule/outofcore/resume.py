"""Takes up a result where a run before has left it: it must be the same product, and its tiles must be sound."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import json
import os
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from ..core.dtype import numpy_dtype
from ..core.errors import ArgumentError, InputChangedError, MemoryLimitError
from .budget import amount, format_bytes
from .fingerprint import input_fingerprint
from .finished import FinishedTiles, sound_tiles
from .journal import Journal
from .journaled import JournaledSink
from .matrix import AnyDType, MatrixSource
from .plan import Product
from .target import Target


class Plan(Protocol):
    """A plan: a dataclass of numbers, text, types and tuples of them, beside the product."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def product(self) -> Product:
        """What is computed."""

    @property
    def memory_bytes(self) -> int:
        """All buffers together."""


PlanT = TypeVar("PlanT", bound=Plan)


@dataclasses.dataclass(frozen=True)
class Work(Generic[PlanT]):
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
    inputs : mapping
        What is multiplied and added, by role.
    fingerprints : mapping
        What they were when the work began.
    """

    target: Target
    sink: JournaledSink
    plan: PlanT
    finished: FinishedTiles
    inputs: Mapping[str, MatrixSource]
    fingerprints: Mapping[str, Mapping[str, Any]]

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
        "format": 2,
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
        prints = {role: input_fingerprint(source) for role, source in inputs.items()}
        if again and journal.header is not None:
            _check_same(target, journal.header, header, prints, inputs)
            plan = _planned_before(target, journal.header["plan"], plan, memory)
            journal.go_on()
            _merge_sides(journal)
            sink = target.open(shape, dtype, force=force, inputs=list(inputs.values()), again=True)
            stack.callback(sink.keep)
            finished = sound_tiles(sink, journal.tiles)
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
    return Work(target, JournaledSink(sink, journal), plan, FinishedTiles(finished), inputs, prints)


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
    return dict(json.loads(json.dumps(fields, default=str)))


def _like(example: Any, value: Any) -> Any:
    """Return what JSON has made of a field as the type that the field has."""
    if isinstance(example, tuple):
        return tuple(value)
    return numpy_dtype(value) if isinstance(example, np.dtype) else value


def _planned_before(target: Target, record: Mapping[str, Any], plan: PlanT, memory: int) -> PlanT:
    if record.keys() != _record(plan).keys():
        raise ArgumentError(
            f"{target.name}: its unfinished work was planned by another version of gemmule; finish it with that one, "
            "or start afresh with resume=False"
        )
    before = dataclasses.replace(plan, **{name: _like(getattr(plan, name), value) for name, value in record.items()})
    if before.memory_bytes > memory:
        raise MemoryLimitError(
            f"memory limit {format_bytes(memory)} is too small to go on with the unfinished work on {target.name}; "
            f"give memory='{amount(before.memory_bytes)}' or more, or start afresh with resume=False"
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
    # What only the earlier header has, such as a device, counts too.
    for name in dict.fromkeys((*now, *before)):
        if name not in ("output", "inputs", "plan") and before.get(name) != now.get(name):
            raise ArgumentError(
                f"{target.name}: unfinished work lies there whose {name} is {before.get(name)}, not {now.get(name)}; "
                "repeat the command that began it, or start afresh with resume=False"
            )
    for role, fingerprint in prints.items():
        earlier = before["inputs"].get(role)
        if earlier != fingerprint:
            what = [key for key in fingerprint if earlier is None or earlier.get(key) != fingerprint[key]]
            raise ArgumentError(
                f"{inputs[role].name}: was changed since the unfinished work on {target.name} began ({', '.join(what)} "
                "differs); bring back what it was, or start afresh with resume=False"
            )
