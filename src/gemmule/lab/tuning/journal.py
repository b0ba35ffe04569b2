"""The journal of a search: the products that are done, so that one that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gemmule.dispatch.problem_key import ProblemKey
from gemmule.files.temporary_file import open_or_create_own, open_own


class TuningJournal:
    """A file next to the table, of one search; another search, of other products or settings, has another.

    Parameters
    ----------
    table : Path
        The file of tuned configurations.
    settings : mapping
        All that decides what a search does, as JSON has it.
    """

    def __init__(self, table: Path, settings: Mapping[str, Any]) -> None:
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
        self.path = table.with_name(f"{table.name}.{digest}.journal")

    def finished(self) -> set[ProblemKey]:
        """Return the products that are done; a line that is torn or damaged does not count.

        Raises
        ------
        ForbiddenFileError
            If what has the journal's name is a link, or not this user's alone.
        """
        try:
            with os.fdopen(open_own(str(self.path), os.O_RDONLY), "rb") as file:
                lines = file.read().splitlines()
        except FileNotFoundError:
            return set()
        found = set()
        for line in lines:
            try:
                found.add(ProblemKey.of_dict(json.loads(line)))
            except (ValueError, RecursionError):
                # A FileFormatError is one too. The product is measured again.
                continue
        return found

    def add(self, keys: Iterable[ProblemKey]) -> None:
        """Note products as done."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # A torn write ends before: this line is whole.
        text = "".join(f"\n{json.dumps(key.as_dict())}\n" for key in keys)
        descriptor = open_or_create_own(str(self.path), os.O_WRONLY | os.O_APPEND)
        with os.fdopen(descriptor, "ab", buffering=0) as file:
            file.write(text.encode())

    def remove(self) -> None:
        """Remove the file: everything is done."""
        self.path.unlink(missing_ok=True)
