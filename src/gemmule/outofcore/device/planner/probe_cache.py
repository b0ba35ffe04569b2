"""Rates that probes have measured on this machine, stored between runs in the user's cache folder."""

from __future__ import annotations

import dataclasses
import json
import math
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gemmule.core.dataclass import dataclass
from gemmule.core.errors import ArgumentError, FileFormatError
from gemmule.dispatch.settings_file import SettingsFormat, locked
from gemmule.files.user_folders import user_cache_folder

#: Days for which stored rates are used: a driver, a disk or a neighbour on the same host may change without a name.
DAYS = 30


class ProbeCacheWarning(UserWarning):
    """The stored rates could not be read or written; they are measured again in every run."""


@dataclass(frozen=True)
class StoredRates:
    """The measurements of a probe."""

    key: tuple[str, ...]  #: The probe, and everything that its result depends on.
    figures: tuple[float, ...]  #: The result.
    time: float  #: Seconds since 1970 at which it was measured.


def _parse(content: dict[str, Any]) -> tuple[StoredRates, ...]:
    return tuple(map(_stored, content["probes"]))


def _stored(fields: dict[str, Any]) -> StoredRates:
    key, figures = tuple(fields["key"]), tuple(map(float, fields["figures"]))
    if not all(isinstance(word, str) for word in key):
        raise TypeError("key must be a list of words")
    measured = float(fields["time"])
    if not all(0 <= figure < math.inf for figure in (*figures, measured)):
        raise ValueError("figures and time must be finite numbers from 0 on")
    return StoredRates(key, figures, measured)


_FORMAT = SettingsFormat("probe rates", 1, _parse, ProbeCacheWarning)


def probes_file() -> Path | None:
    """Return the file in ``$GEMMULE_PROBES``, else in the user's cache folder; None for a user without a home."""
    try:
        return user_cache_folder("GEMMULE_PROBES", "probes") / "rates.json"
    except ArgumentError:
        return None


class ProbeCache:
    """The stored results of probes.

    Parameters
    ----------
    path : Path, optional
        The file; None stores nothing.
    renew : bool
        Whether to measure everything again, and replace what is stored.
    measures : bool
        Whether to measure what is not stored. If not, figures that the caller states stand in, where it states any.
    clock : callable
        Seconds since 1970.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        renew: bool = False,
        measures: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._clock, self.measures = path, clock, measures
        #: Whether what is predicted closely is measured, too: from the start, or not at all.
        self._measures_all = measures
        self.stated = False  #: Whether stated figures stood in for some that are not close.
        stored = () if path is None or renew else _FORMAT.read_or_warn(path)
        self._known = {one.key: one for one in stored if self._is_recent(one)}
        self._new: dict[tuple[str, ...], StoredRates] = {}
        self._lock = threading.Lock()

    def _is_recent(self, one: StoredRates) -> bool:
        return abs(self._clock() - one.time) < DAYS * 86400

    def figures(
        self,
        key: Sequence[str],
        count: int,
        probe: Callable[[], Sequence[float]],
        stated: Sequence[float] | None = None,
        *,
        close: bool = False,
    ) -> tuple[float, ...]:
        """Return the stored result of a probe, of so many figures; without one, measure it. None is not stored.

        `stated` figures are returned instead of being measured, and are not stored, unless the cache `measures`. Those
        that are `close` to the measured ones are, unless it did so from the start.
        """
        found = self._known.get(tuple(key))
        if found is None or len(found.figures) != count:
            if stated is not None and not (self._measures_all if close else self.measures):
                self.stated = self.stated or not close
                return tuple(stated)
            found = StoredRates(tuple(key), tuple(map(float, probe())), self._clock())
            if found.figures:
                with self._lock:
                    self._known[found.key] = self._new[found.key] = found
        return found.figures

    def save(self) -> None:
        """Store the measured rates; a failure is a warning. Results that are too old are dropped."""
        if self._path is None or not self._new:
            return
        try:
            with locked(self._path):
                there = {one.key: one for one in _FORMAT.read_or_set_aside(self._path) if self._is_recent(one)}
                lines = [json.dumps(dataclasses.asdict(one)) for one in (there | self._new).values()]
                _FORMAT.write(self._path, ' "probes": [\n  ' + ",\n  ".join(lines) + "\n ]")
        except (FileFormatError, OSError) as error:
            text = f"measured rates were not stored: {error}; they are measured again in every run"
            warnings.warn(text, ProbeCacheWarning, stacklevel=2)
        self._new.clear()
