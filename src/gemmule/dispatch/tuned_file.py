"""Files of tuned configurations: read, merged and replaced as a whole."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gemmule.dispatch.former_names import current_fields, current_names

from .problem_key import ProblemKey
from .settings_file import SettingsFormat, locked


class TunedFileWarning(UserWarning):
    """A file of tuned configurations could not be used, or was set aside."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """The fastest kernel and config that were measured for a product.

    Attributes
    ----------
    key : ProblemKey
        The product.
    kernel : str
        Name of the kernel.
    config : tuple of (str, int)
        Its config's fields.
    us : float
        Median time in microseconds.
    samples : int
        Samples that the median is of.
    ratio : float or None
        Time of the best of cuBLASLt over this one, in the same run; None where it was not measured.
    run : tuple of (str, str)
        Where it comes from, as names and texts: chip, gpu, driver, cuda, gemmule, packages, commit, date.
    """

    key: ProblemKey
    kernel: str
    config: tuple[tuple[str, int], ...]
    us: float
    samples: int
    ratio: float | None
    run: tuple[tuple[str, str], ...]

    @property
    def chip(self) -> str:
        """Name of the chip that it was measured on."""
        return dict(self.run).get("chip", "")

    @property
    def source(self) -> str:
        """Where it was measured, in words."""
        run = dict(self.run)
        return f"{run.get('chip', 'unknown chip')}, {run.get('date', 'unknown date')}"

    def is_better_than(self, other: Entry) -> bool:
        """Whether to keep this one: by the ratio to cuBLASLt of each one's run where both have it, else by the time."""
        if self.ratio is not None and other.ratio is not None:
            return self.ratio > other.ratio
        return self.us < other.us


def _entries(content: dict[str, Any]) -> tuple[Entry, ...]:
    runs = {name: tuple((key, str(value)) for key, value in run.items()) for name, run in content["runs"].items()}
    if not isinstance(content["entries"], list):
        raise TypeError("entries must be a list")
    return tuple(_entry(fields, runs) for fields in content["entries"])


def _entry(fields: Mapping[str, Any], runs: Mapping[str, tuple[tuple[str, str], ...]]) -> Entry:
    config, ratio = fields["config"], fields.get("ratio")
    if not all(type(value) is int for value in config.values()) or not isinstance(fields["kernel"], str):
        raise ValueError("a kernel is a name, and the values of a config are whole numbers")
    kernel, samples = current_names(fields["kernel"]), fields["samples"]
    if type(samples) is not int or samples < 1:
        raise ValueError(f"{samples} samples; they are 1 or more")
    return Entry(
        key=ProblemKey.of_dict(fields),
        kernel=kernel,
        config=tuple(current_fields(kernel, config).items()),
        us=_positive("us", fields["us"]),
        samples=samples,
        ratio=None if ratio is None else _positive("ratio", ratio),
        run=runs[fields["run"]],
    )


def _positive(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or not 0 < float(value) < math.inf:
        raise ValueError(f"{name} is {value}; it is a finite number above 0")
    return float(value)


_FORMAT = SettingsFormat("tuned configurations", 1, _entries, TunedFileWarning)
read_tuned, tuned_entries = _FORMAT.read, _FORMAT.items
read_or_warn, read_or_set_aside = _FORMAT.read_or_warn, _FORMAT.read_or_set_aside


def write_tuned(path: Path, entries: Iterable[Entry]) -> None:
    """Replace a file by one with these entries: readers see the old one or the new one, never a part."""
    ordered = sorted(entries, key=_order)
    runs: dict[tuple[tuple[str, str], ...], str] = {}
    lines = []
    for one in ordered:
        run = dict(one.run)
        name = f"{run.get('date', '')}-{run.get('commit', '')}"
        while (known := next((r for r, n in runs.items() if n == name), None)) is not None and known != one.run:
            name += "+"
        runs.setdefault(one.run, name)
        fields = one.key.as_dict() | {"kernel": one.kernel, "config": dict(one.config), "us": one.us}
        fields |= {"samples": one.samples, **({"ratio": one.ratio} if one.ratio is not None else {})}
        lines.append(json.dumps(fields | {"run": runs[one.run]}))
    named = ",\n".join(f"  {json.dumps(name)}: {json.dumps(dict(run))}" for run, name in runs.items())
    listed = ",\n".join(f"  {line}" for line in lines)
    _FORMAT.write(path, f' "runs": {{\n{named}\n }},\n "entries": [\n{listed}\n ]')


def _order(entry: Entry) -> tuple[object, ...]:
    key = entry.key
    return (entry.chip, key.a_dtype, key.d_dtype, key.precision, key.layout, key.m, key.n, key.k, repr(key))


def merge_tuned(path: Path, entries: Iterable[Entry], *, measured_beside: Iterable[Entry] = ()) -> int:
    """Add entries to a file, where they are better than those that stand there; return how many were taken.

    Runs that write at the same time wait for each other, and none loses what another wrote.

    Parameters
    ----------
    path : Path
        The file; made where there is none.
    entries : iterable of Entry
        New ones.
    measured_beside : iterable of Entry
        Entries that a new one of the same product was measured beside, in turns: it replaces them.

    Raises
    ------
    FileFormatError
        If the file is of a later version, or damaged and cannot be set aside; it is as it was.
    OSError
        If the file cannot be read, or not be written; it is as it was.
    """
    beside = set(measured_beside)
    with locked(path):
        present = {(one.chip, one.key): one for one in read_or_set_aside(path)}
        taken = 0
        for one in entries:
            other = present.get((one.chip, one.key))
            if other is None or other in beside or one.is_better_than(other):
                present[one.chip, one.key] = one
                taken += 1
        if taken:
            write_tuned(path, present.values())
    return taken
