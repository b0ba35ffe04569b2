"""Record files: JSON lines that begin with the experiment block."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from gemmule.core.errors import FileFormatError
from gemmule.dispatch.former_names import current_record
from gemmule.files.file_errors import errors_name
from gemmule.files.regular_file import check_regular


class RecordFile:
    """A new record file, written line by line; a context manager.

    It gets its name once it is complete. Until then, and for good if the run is cut short, the name ends in
    ``.partial``, and the file holds whole lines of what was measured so far.

    Parameters
    ----------
    folder : Path
        Folder; created if missing.
    experiment : mapping
        The experiment block.

    Attributes
    ----------
    path, partial : Path
        Its name in the end, and before.
    """

    def __init__(self, folder: Path, experiment: Mapping[str, Any]) -> None:
        gpu = re.sub(r"[^a-z0-9]+", "-", str(experiment.get("gpu", "host")).lower()).strip("-")
        self.path = folder / f"{experiment['date']}-{gpu}-{experiment.get('commit', 'unknown')}.jsonl"
        self.partial = self.path.with_suffix(".jsonl.partial")
        self._experiment = experiment
        self._file: IO[str] | None = None

    def __enter__(self) -> RecordFile:
        if self.path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self.path))
        with self._errors():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.partial.open("x", encoding="utf-8")
        self.write(self._experiment)
        return self

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return errors_name(str(self.path), written=True)

    def write(self, record: Mapping[str, Any]) -> None:
        """Add a record; it is on its way to the disk when the call returns."""
        assert self._file is not None
        with self._errors():
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        assert self._file is not None
        with self._errors():
            self._file.close()
            if kind is None:
                self.partial.replace(self.path)


def write_records(folder: Path, experiment: Mapping[str, Any], records: Iterable[Mapping[str, Any]]) -> Path:
    """Write a new record file and return its path.

    Parameters
    ----------
    folder : Path
        Folder; created if missing.
    experiment : mapping
        The experiment block.
    records : iterable of mapping
        The records, each with its kind under ``record``.
    """
    with RecordFile(folder, experiment) as file:
        for record in records:
            file.write(record)
    return file.path


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return every record of a file, the experiment block first: a record's place is its line.

    Raises
    ------
    FileFormatError
        If it is no record file; the message names the line.
    """
    check_regular(path, "a record file")
    records: list[dict[str, Any]] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            where = f"{path}:{number}: not a record file"
            try:
                # UTF-8 is decoded before JSON, whose decoder would guess another encoding.
                record = json.loads(line.decode())
            except ValueError as error:
                if number > 1 and not line.endswith(b"\n"):
                    raise FileFormatError(
                        f"{where}: the last line is cut off; remove it, or give the whole file"
                    ) from error
                raise FileFormatError(
                    f"{where}, whose lines are JSON ({error}); give one that gemmule wrote"
                ) from error
            if not isinstance(record, dict) or not isinstance(record.get("record"), str):
                raise FileFormatError(
                    f"{where}, whose lines are objects that say what they record; give one that gemmule wrote"
                )
            if (number == 1) != (record["record"] == "experiment"):
                raise FileFormatError(
                    f"{where}, which begins with an experiment block and has no other; give one that gemmule wrote"
                )
            records.append(current_record(record))
    if not records:
        raise FileFormatError(f"{path}: not a record file: it is empty; give one that gemmule wrote")
    return records
