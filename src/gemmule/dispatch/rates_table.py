"""Look-up of GPU rates: the user's measured ones, else the shipped ones."""

from __future__ import annotations

import dataclasses
import functools
import threading
from pathlib import Path

from gemmule.core.dataclass import dataclass
from gemmule.core.errors import ArgumentError
from gemmule.core.gpu_rates import H100_RATES, H200_RATES, GpuRates
from gemmule.files.user_folders import user_settings_file

from .rates_file import MeasuredRates, read_or_warn
from .tuned_table import chip_name

#: Shipped rates by the name of the chip.
_SHIPPED = {"H200 SXM 141 GB": H200_RATES, "H100 SXM 80 GB": H100_RATES}
#: Rates of other chips, by a word of their name in drivers; by default the first.
_NEAREST = {"H200": H200_RATES, "H100": H100_RATES}


@dataclass(frozen=True)
class KnownRates:
    """Rates of a GPU and their source."""

    rates: GpuRates  #: The rates.
    source: str  #: Their source, in words.
    own: bool  #: Measured on this chip, not on a similar one.


_known: dict[tuple[str, int], KnownRates] = {}
_lock = threading.Lock()


def rates_file() -> Path:
    """Return the user's file: ``$GEMMULE_RATES``, else ``gemmule/rates.json`` in the user's folder of settings.

    Raises
    ------
    ArgumentError
        If the user has no home.
    """
    return user_settings_file("GEMMULE_RATES", "rates.json")


def rates_for(device: str | None, multiprocessors: int) -> GpuRates:
    """Return the rates of a GPU by its name in the driver; None is an H200."""
    return known_rates(device or "", multiprocessors).rates


def uncalibrated_rates(device: str, multiprocessors: int) -> GpuRates:
    """Return the rates of a GPU where it has no measured ones."""
    return _shipped(device, multiprocessors).rates


def known_rates(device: str, multiprocessors: int) -> KnownRates:
    """Return the rates of a GPU and their source; the user's file is read once in a process."""
    found = _known.get((device, multiprocessors))
    if found is None:
        # Under the lock, so that no rates of the old file are cached after `clear_rates`.
        with _lock:
            found = _known.setdefault((device, multiprocessors), _find(device, multiprocessors))
    return found


def _find(device: str, multiprocessors: int) -> KnownRates:
    found = _users().get((device, multiprocessors)) if device else None
    if found is not None:
        return KnownRates(found.rates, f"calibrated {found.date}, {rates_file()}", own=True)
    return _shipped(device, multiprocessors)


def _shipped(device: str, multiprocessors: int) -> KnownRates:
    chip = chip_name(device)
    if chip in _SHIPPED and _SHIPPED[chip].multiprocessors == multiprocessors:
        return KnownRates(_SHIPPED[chip], f"shipped for {chip}", own=True)
    word = next((word for word in _NEAREST if word in device), next(iter(_NEAREST)))
    rates = dataclasses.replace(_NEAREST[word], multiprocessors=multiprocessors)
    return KnownRates(rates, f"those of an {word}; gemmule calibrate measures this GPU's", own=False)


@functools.cache
def _users() -> dict[tuple[str, int], MeasuredRates]:
    try:
        return {one.key: one for one in read_or_warn(rates_file())}
    except ArgumentError:
        # A user without a home folder has no file.
        return {}


def clear_rates() -> None:
    """Clear the cached rates, so that the user's file is read again; cached choices must be cleared too."""
    with _lock:
        _users.cache_clear()
        _known.clear()
