"""Look-up of tuned configurations: of this process, the user's file, packs, and the chip's shipped file."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from gemmule.core.chips import chip_named
from gemmule.core.dataclass import dataclass
from gemmule.core.errors import ArgumentError, FileFormatError
from gemmule.files.user_folders import user_settings_file

from .problem_key import ProblemKey
from .tuned_file import Entry, TunedFileWarning, read_or_warn, read_tuned

#: Chips with the GPU of another chip, whose configs, but not times, apply to products that their own file lacks.
_SAME_PROCESSOR = {"H100 SXM 80 GB": "H200 SXM 141 GB"}
_SHIPPED = Path(__file__).parent / "tuned"


@dataclass(frozen=True)
class Tuned:
    """A tuned entry and its source."""

    entry: Entry  #: The entry.
    source: str  #: Its source, in words.
    same: bool  #: Measured for this product on this chip: its time is a prediction.


def chip_name(device: str) -> str:
    """Return the chip's name in the table of chips, else the driver's."""
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
    return user_settings_file("GEMMULE_TUNED", "tuned.json")


def shipped_file(chip: str) -> Path:
    """Return the path of a chip's file in the package, which may not exist."""
    return _SHIPPED / (re.sub(r"[^a-z0-9]+", "-", chip.lower()).strip("-") + ".json")


def shipped_files() -> list[Path]:
    """Return the files of the package."""
    return sorted(_SHIPPED.glob("*.json"))


class TunedTable:
    """The entries of one chip from all sources, in order of precedence.

    Parameters
    ----------
    chip : str
        Name of the chip, as of `chip_name`.
    user : Path or None
        The user's file, if any.
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
        self._places = tuple(places)
        self._extents = {key[:3] for _, entries, _ in places for key in entries}
        for source, entries in reversed(_packed):
            self.add(source, entries)

    def add(self, source: str, entries: Sequence[Entry]) -> None:
        """Insert entries after those of this process and of the user."""
        for chip in (_SAME_PROCESSOR.get(self._chip), self._chip):
            if of_chip := {one.key: one for one in entries if one.chip == chip}:
                place = (source, of_chip, chip == self._chip)
                self._extents.update(key[:3] for key in of_chip)
                self._places = (*self._places[: self._own], place, *self._places[self._own :])

    def reloaded(self) -> TunedTable:
        """Return the table with the present content of the files, and the entries of this process."""
        table = TunedTable(self._chip, _users())
        table.add_own(self._here.values())
        return table

    def has_extents(self, m: int, n: int, k: int) -> bool:
        """Return whether any entry has such extents: most products need no key."""
        return (m, n, k) in self._extents

    def find(self, key: ProblemKey) -> Tuned | None:
        """Return the first entry of a product, else of its twin in the other 16-bit float, or None."""
        for source, entries, same_chip in self._places:
            if (entry := entries.get(key)) is not None:
                return Tuned(entry, source, same_chip)
        if (twin := key.twin()) is not None:
            for source, entries, _ in self._places:
                if (entry := entries.get(twin)) is not None:
                    return Tuned(entry, f"{source}, for {twin.a_dtype}", same=False)
        return None

    def add_own(self, entries: Iterable[Entry]) -> None:
        """Add entries of this process, which precede all others."""
        here = {one.key: one for one in entries}
        self._extents.update(key[:3] for key in here)
        self._here.update(here)


def _shipped(path: Path) -> tuple[Entry, ...]:
    try:
        return read_tuned(path)
    except FileFormatError as error:
        warnings.warn(f"{error}; the cost model chooses instead. Install gemmule anew", TunedFileWarning, stacklevel=4)
        return ()


# Entries of packs, the last pack first.
_packed: list[tuple[str, tuple[Entry, ...]]] = []
_tables: dict[str, TunedTable] = {}
_lock = threading.Lock()


def table_for(device: str) -> TunedTable:
    """Return the table of a GPU by its name in the driver; files are read once, until tables are reloaded."""
    table = _tables.get(device)
    if table is None:
        with _lock:
            table = _tables.get(device) or _tables.setdefault(device, TunedTable(chip_name(device), _users()))
    return table


def _users() -> Path | None:
    try:
        return user_file()
    except ArgumentError:
        # A user without a home folder has no file.
        return None


def add_packed(source: str, entries: Iterable[Entry]) -> None:
    """Add entries of a pack, which precede those of earlier packs and of shipped tables."""
    with _lock:
        added = tuple(entries)
        _packed.insert(0, (source, added))
        for table in _tables.values():
            table.add(source, added)


def add_own(device: str, entries: Iterable[Entry]) -> None:
    """Add entries of this process, which precede those of files, for a GPU by its name in the driver."""
    table = table_for(device)
    # Under the lock, so that they are not in a table that has been reloaded without them.
    with _lock:
        _tables.get(device, table).add_own(entries)


def reload_tables() -> None:
    """Read the files of the cached tables again; entries of this process stay."""
    with _lock:
        for device, table in _tables.items():
            _tables[device] = table.reloaded()


def clear_tables() -> None:
    """Clear the cached tables, so that files are read again; entries of this process are lost."""
    # Under the lock, so that no table of the old files is added afterwards.
    with _lock:
        _tables.clear()
