"""Tuned configurations, looked up in this process, the user's file, packs, and the file shipped for the chip."""

from __future__ import annotations

import dataclasses
import os
import re
import threading
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from gemmule.core.chips import chip_named
from gemmule.core.errors import ArgumentError, FileFormatError
from gemmule.files.user_folders import user_settings_folder

from .problem_key import ProblemKey
from .tuned_file import Entry, TunedFileWarning, read_or_warn, read_tuned

#: Chips of one processor: one that has no file takes the configs of the other, but not its times.
_SAME_PROCESSOR = {"H100 SXM 80 GB": "H200 SXM 141 GB"}
_SHIPPED = Path(__file__).parent / "tuned"


@dataclasses.dataclass(frozen=True)
class Tuned:
    """A tuned entry that was found.

    Attributes
    ----------
    entry : Entry
        The entry.
    source : str
        Where it stands, in words.
    same : bool
        Whether it was measured for this product on this chip, so that its time may be expected.
    """

    entry: Entry
    source: str
    same: bool


def chip_name(device: str) -> str:
    """Return the chip's name in the table of chips, or the driver's where the table lacks it."""
    try:
        return chip_named(device).name
    except ArgumentError:
        return device


def user_file() -> Path:
    """Return the user's tuning file: ``$GEMMULE_TUNED``, else ``gemmule/tuned.json`` in the user's folder of settings.

    Raises
    ------
    ArgumentError
        If the user has no home.
    """
    if chosen := os.environ.get("GEMMULE_TUNED"):
        return Path(chosen)
    return user_settings_folder() / "gemmule" / "tuned.json"


def shipped_file(chip: str) -> Path:
    """Return where the package has, or would have, the file of a chip."""
    return _SHIPPED / (re.sub(r"[^a-z0-9]+", "-", chip.lower()).strip("-") + ".json")


def shipped_files() -> list[Path]:
    """Return the files that the package has."""
    return sorted(_SHIPPED.glob("*.json"))


class TunedTable:
    """The entries for one chip, from all places; later ones are not asked where an earlier one answers.

    Parameters
    ----------
    chip : str
        Name of the chip, as `chip_name` gives it.
    user : Path or None
        The user's file; None leaves it out.
    """

    def __init__(self, chip: str, user: Path | None) -> None:
        self._here: dict[ProblemKey, Entry] = {}
        places: list[tuple[str, dict[ProblemKey, Entry], bool]] = [("this process", self._here, True)]
        if user is not None:
            found = read_or_warn(user)
            places.append((str(user), {one.key: one for one in found if one.chip == chip}, True))
        self._chip, self._own = chip, len(places)
        for name in (chip, _SAME_PROCESSOR.get(chip)):
            if name is not None and (path := shipped_file(name)).exists():
                shipped = {one.key: one for one in _shipped(path)}
                places.append((f"the table shipped for {name}", shipped, name == chip))
                break
        self._places = tuple(places)
        for source, entries in reversed(_packed):
            self.add(source, entries)

    def add(self, source: str, entries: Sequence[Entry]) -> None:
        """Let entries be asked before all but those of this process and the user."""
        for chip in (_SAME_PROCESSOR.get(self._chip), self._chip):
            if of_chip := {one.key: one for one in entries if one.chip == chip}:
                place = (source, of_chip, chip == self._chip)
                self._places = (*self._places[: self._own], place, *self._places[self._own :])

    def find(self, key: ProblemKey) -> Tuned | None:
        """Return the first entry for a product, else for its twin in the other type of 16 bits, or None."""
        for source, entries, same_chip in self._places:
            if (entry := entries.get(key)) is not None:
                return Tuned(entry, source, same_chip)
        if (twin := key.twin()) is not None:
            for source, entries, _ in self._places:
                if (entry := entries.get(twin)) is not None:
                    return Tuned(entry, f"{source}, for {twin.a_dtype}", same=False)
        return None

    def remember(self, entries: Iterable[Entry]) -> None:
        """Let this process take entries before all others."""
        self._here.update({one.key: one for one in entries})


def _shipped(path: Path) -> tuple[Entry, ...]:
    try:
        return read_tuned(path)
    except FileFormatError as error:
        warnings.warn(f"{error}; the cost model chooses instead. Install gemmule anew", TunedFileWarning, stacklevel=4)
        return ()


# What came with packs, the last one first.
_packed: list[tuple[str, tuple[Entry, ...]]] = []
_tables: dict[str, TunedTable] = {}
_lock = threading.Lock()


def table_for(device: str) -> TunedTable:
    """Return the table for a GPU, by the name that its driver gives it; files are read once in a process."""
    table = _tables.get(device)
    if table is None:
        with _lock:
            table = _tables.get(device) or _tables.setdefault(device, TunedTable(chip_name(device), _users()))
    return table


def _users() -> Path | None:
    try:
        return user_file()
    except ArgumentError:
        # A user without a home has no file.
        return None


def add_packed(source: str, entries: Iterable[Entry]) -> None:
    """Let this process take entries that came with a pack, before those of earlier packs and of the shipped tables."""
    with _lock:
        added = tuple(entries)
        _packed.insert(0, (source, added))
        for table in _tables.values():
            table.add(source, added)


def forget() -> None:
    """Read the files again when they are asked for next, and forget what only this process knows."""
    # A table that is being read is of the files as they were.
    with _lock:
        _tables.clear()
