"""Files of tuned configurations."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gemmule.core.dataclass import dataclass
from gemmule.dispatch.former_names import current_fields, current_names

from .problem_key import ProblemKey
from .settings_file import SettingsFormat, locked


class TunedFileWarning(UserWarning):
    """A file of tuned configurations could not be used, or was set aside."""


@dataclass(frozen=True)
class Entry:
    """The fastest measured kernel and config of a product."""

    key: ProblemKey  #: The product.
    kernel: str  #: Name of the kernel.
    config: tuple[tuple[str, int], ...]  #: Its config's fields.
    us: float  #: Median time in microseconds.
    samples: int  #: Number of samples of the median.
    ratio: float | None  #: cuBLASLt's best time over this one, in the same run, if measured.
    run: tuple[tuple[str, str], ...]  #: Provenance: chip, gpu, driver, cuda, gemmule, packages, commit, date.

    @property
    def chip(self) -> str:
        """Name of the measured chip."""
        return dict(self.run).get("chip", "")

    @property
    def source(self) -> str:
        """Chip and date of the measurement."""
        run = dict(self.run)
        return f"{run.get('chip', 'unknown chip')}, {run.get('date', 'unknown date')}"

    def is_better_than(self, other: Entry) -> bool:
        """Whether this entry is faster: by the ratio to cuBLASLt if both have one, else by time."""
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
        raise ValueError("a kernel must be a name, and the values of a config whole numbers")
    kernel, samples = current_names(fields["kernel"]), fields["samples"]
    if type(samples) is not int or samples < 1:
        raise ValueError(f"samples must be a whole number above 0; got {samples}")
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
        raise ValueError(f"{name} must be a finite number above 0; got {value}")
    return float(value)


_FORMAT = SettingsFormat("tuned configurations", 1, _entries, TunedFileWarning)
read_tuned, tuned_entries = _FORMAT.read, _FORMAT.items
read_or_warn, read_or_set_aside = _FORMAT.read_or_warn, _FORMAT.read_or_set_aside


def write_tuned(path: Path, entries: Iterable[Entry]) -> None:
    """Replace a file by one with these entries, atomically."""
    ordered = sorted(entries, key=_order)
    runs: dict[tuple[tuple[str, str], ...], str] = {}
    lines = []
    for one in ordered:
        run = dict(one.run)
        name = f"{run.get('date', '')}-{run.get('commit', '')}"
        while any(other_name == name and other != one.run for other, other_name in runs.items()):
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


def merge_tuned(path: Path, entries: Iterable[Entry], *, measured_together: Iterable[Entry] = ()) -> int:
    """Merge entries that are faster than the present ones into a file, under a lock; return their number.

    Parameters
    ----------
    path : Path
        The file; created if missing.
    entries : iterable of Entry
        New entries.
    measured_together : iterable of Entry
        Present entries that were measured interleaved with new ones of the same product, which replace them.

    Raises
    ------
    FileFormatError
        If the file is of a later version, or damaged and cannot be set aside; it is unchanged.
    OSError
        If the file cannot be read or written; it is unchanged.
    """
    together = set(measured_together)
    with locked(path):
        present = {(one.chip, one.key): one for one in read_or_set_aside(path)}
        merged = 0
        for one in entries:
            other = present.get((one.chip, one.key))
            if other is None or other in together or one.is_better_than(other):
                present[one.chip, one.key] = one
                merged += 1
        if merged:
            write_tuned(path, present.values())
    return merged
