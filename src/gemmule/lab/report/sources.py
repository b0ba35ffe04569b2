"""The record files of a report: read, held against the fields that it needs, and put together by chip."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemmule.core.errors import ArgumentError, FileFormatError
from gemmule.files.file_errors import errors_name

from ..kernel_labels import key_of
from ..records import read_records

Record = Mapping[str, Any]

_NUMBER = (int, float)
_PRODUCT = {"dtype": str, "m": int, "n": int, "k": int, "layout": str}
_TIMES = {"min_us": _NUMBER, "mean_us": _NUMBER, "median_us": _NUMBER, "max_us": _NUMBER}
_RATIO = {"ratio": _NUMBER, "paired_ratio_low": _NUMBER, "paired_ratio_high": _NUMBER}
#: Kinds of records that a report shows, each with the fields without which it cannot.
_FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "experiment": {"date": str, "command": str, "packages": dict},
    "gemm": {"kernel": str, "config": dict, **_PRODUCT, **_TIMES, "tflops": _NUMBER},
    "yardstick": {"library": str, **_PRODUCT, **_TIMES, "tflops": _NUMBER, "best_us": _NUMBER, "control": _NUMBER,
                  "control_low": _NUMBER, "control_high": _NUMBER},
    "transpose": {"kernel": str, "config": dict, "itemsize": int, "m": int, "n": int, **_TIMES, "gbps": _NUMBER,
                  "copy_gbps": _NUMBER, **_RATIO},
    "transpose_counts": {"kernel": str, "config": dict, "itemsize": int, "m": int, "n": int, "counts": dict},
    "skipped": {"reason": str},
    "failed": {"reason": str},
    "check": {"what": str},
    "profile": {"kind": str, "name": str, "dtype": str, "m": int, "n": int, "k": int, "count": int, "share": _NUMBER,
                **{f"{name}_us": _NUMBER for name in ("total", "average", "median", "min", "max")}},
}  # fmt: skip
#: Further fields of a profile's record, by the kind of the recorded work.
_OF_PROFILE: dict[str, dict[str, type | tuple[type, ...]]] = {
    "range": {},
    "kernel": {"range": str, "grid": list, "block": list},
    "call": {},
    "copy": {"bytes": _NUMBER, "min_bytes": _NUMBER, "max_bytes": _NUMBER},
}
#: Numbers that are written where they are there.
_OPTIONAL = ("ratio", "paired_ratio_low", "paired_ratio_high", "peak_share", "peak_tflops", "fma_share", "fma_tflops",
             "error_u", "yardstick_best_us")  # fmt: skip
#: Numbers that something is divided by.
_POSITIVE = ("m", "n", "k", "min_us", "mean_us", "median_us", "max_us", "tflops", "best_us", "yardstick_best_us")


@dataclasses.dataclass(frozen=True)
class Source:
    """A record file, by its name without its folder; the experiment block is its first record."""

    name: str
    records: tuple[Record, ...]

    @property
    def experiment(self) -> Record:
        """The experiment block."""
        return self.records[0]

    @property
    def machine(self) -> str:
        """The GPU, or the host where there was none."""
        block = self.experiment
        return str(block.get("gpu") or f"no GPU: {block.get('system', 'a host')}")


@dataclasses.dataclass(frozen=True)
class Machine:
    """The measurements on one kind of chip."""

    name: str  #: Name of the GPU.
    sources: tuple[Source, ...]  #: Its files, the oldest first.
    #: All records of these kinds but the experiment blocks; of a figure that was measured twice, the newest.
    records: tuple[Record, ...]
    replaced: int  #: Figures that are left out because a newer file has them.
    other_kinds: tuple[str, ...]  #: Kinds of records in the files that a report does not show.


def record_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files, and those of the folders, each once.

    Raises
    ------
    ArgumentError
        If a folder holds no record files.
    FileAccessError
        If a file is not there.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            own = sorted(path.glob("*.jsonl"))
            if not own:
                raise ArgumentError(f"{path}: the folder holds no record files (*.jsonl); name one that does, or files")
            found.update(dict.fromkeys(own))
        else:
            with errors_name(str(path)):
                path.stat()
            found[path] = None
    return list({path.resolve(): path for path in found}.values())


def read_source(path: Path) -> Source:
    """Return a record file.

    Raises
    ------
    FileFormatError
        If it is no record file, is cut off, or has a record that a report cannot show; the message names file, line,
        rule and remedy.
    """
    records = read_records(path)
    for line, record in enumerate(records, 1):
        problem = _problem(record)
        if problem:
            raise FileFormatError(f"{path}:{line}: {problem}")
    return Source(path.name, tuple(records))


def _problem(record: Record) -> str | None:
    """Return the rule that a record breaks, and the remedy; None for one that can be shown."""
    kind = record["record"]
    if kind not in _FIELDS:
        return None
    rule = _broken_rule(record, kind)
    return None if rule is None else f"{rule}; give the file as gemmule wrote it"


def _broken_rule(record: Record, kind: str) -> str | None:
    wanted = dict(_FIELDS[kind])
    if kind in ("skipped", "failed", "check") and "m" in record:
        # A product's or a transpose's, not a test's.
        wanted |= {"kernel": str, "n": int, "reason": str} if "library" not in record else {"n": int, "reason": str}
        wanted |= {"itemsize": int} if "itemsize" in record else {"dtype": str, "layout": str, "k": int}
    if kind == "profile":
        if record.get("kind") not in _OF_PROFILE:
            return f"kind={record.get('kind')!r} of a profile record is not one of {', '.join(_OF_PROFILE)}"
        wanted |= _OF_PROFILE[record["kind"]]
    for field, types in wanted.items():
        if field not in record:
            return f"a {kind} record has no {field!r}"
        if not _is(record[field], types):
            return f"{field}={record[field]!r} of a {kind} record is not {_told(types)}"
    # An experiment block may say by such a name how it was measured, in words.
    for field in () if kind == "experiment" else _OPTIONAL:
        if field in record and not _is(record[field], _NUMBER):
            return f"{field}={record[field]!r} of a {kind} record is not a number"
    for field in _POSITIVE:
        # A profiled range may have taken no time.
        if field in wanted and not (record[field] > 0 or (kind == "profile" and field.endswith("_us"))):
            return f"{field}={record[field]!r} of a {kind} record is not positive"
    for field, value in record.get("config", {}).items() if isinstance(record.get("config", {}), dict) else [("", [])]:
        if not isinstance(value, (str, int, float)):
            return f"config {field}={value!r} of a {kind} record is not a number"
    if kind == "gemm" and "ratio" in record and not {"paired_ratio_low", "paired_ratio_high"} <= record.keys():
        return "a gemm record with a ratio has no 'paired_ratio_low' and 'paired_ratio_high'"
    return None


def _is(value: object, types: type | tuple[type, ...]) -> bool:
    # JSON's true is Python's 1, and no number here; nor are NaN and Infinity, which Python reads.
    return (
        isinstance(value, types) and not isinstance(value, bool) and (type(value) is not float or math.isfinite(value))
    )


def _told(types: type | tuple[type, ...]) -> str:
    words: dict[type, str] = {str: "a text", int: "a whole number", dict: "an object", list: "a list"}
    return "a number" if isinstance(types, tuple) else words[types]


def machines(sources: Sequence[Source]) -> list[Machine]:
    """Return the files by the kind of GPU that they were measured on, the newest first, hosts last."""
    by_name: dict[str, list[Source]] = {}
    for source in sorted(sources, key=lambda source: (str(source.experiment["date"]), source.name)):
        by_name.setdefault(source.machine, []).append(source)
    found = []
    newest_first = sorted(by_name.items(), key=lambda item: str(item[1][-1].experiment["date"]), reverse=True)
    for name, own in sorted(newest_first, key=lambda item: "gpu" not in item[1][0].experiment):
        records = [record for source in own for record in source.records[1:]]
        shown = [record for record in records if _is_shown(record)]
        newest = {_what(record, number): record for number, record in enumerate(shown)}
        others = sorted({str(record["record"]) for record in records if not _is_shown(record)})
        found.append(
            Machine(
                name=name,
                sources=tuple(own),
                records=tuple(newest.values()),
                replaced=len(shown) - len(newest),
                other_kinds=tuple(others),
            )
        )
    return found


def _is_shown(record: Record) -> bool:
    # Checks without a size are of tests, not of products.
    return record["record"] in _FIELDS and ("m" in record or record["record"] != "check")


def _what(record: Record, number: int) -> object:
    """Return the subject of a record's figures; checks and the like are their own."""
    kind = record["record"]
    if kind in ("gemm", "yardstick"):
        fields = ("dtype", "precision", "out_dtype", "m", "n", "k", "layout", "own_transpose")
        who = key_of(record) if kind == "gemm" else record["library"]
        return kind, who, *(record.get(field) for field in fields), tuple(record.get("batch", ()))
    if kind in ("transpose", "transpose_counts"):
        return kind, key_of(record), record["itemsize"], *record.get("batch", ()), record["m"], record["n"]
    return kind, number
