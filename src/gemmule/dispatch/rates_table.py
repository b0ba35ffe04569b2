"""Rates of GPUs, which predicted times are computed from: the user's, which were measured, else those shipped."""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path

from gemmule.core.chips import chip_named
from gemmule.core.errors import ArgumentError
from gemmule.core.gpu_rates import H100_RATES, H200_RATES, GpuRates
from gemmule.files.user_folders import user_settings_folder

from .rates_file import MeasuredRates, read_or_warn

#: Rates that are shipped, by the name of the chip.
_SHIPPED = {"H200 SXM 141 GB": H200_RATES, "H100 SXM 80 GB": H100_RATES}
#: Rates that other chips take, by a word of the name that drivers give them; those without such a word take the first.
_NEAREST = {"H200": H200_RATES, "H100": H100_RATES}


@dataclasses.dataclass(frozen=True)
class KnownRates:
    """Rates of a GPU, and where they come from.

    Attributes
    ----------
    rates : GpuRates
        The rates.
    source : str
        Where they come from, in words.
    own : bool
        Whether they are of this chip, and not of one that is taken to be like it.
    """

    rates: GpuRates
    source: str
    own: bool


def rates_file() -> Path:
    """Return the user's file: ``$GEMMULE_RATES``, else ``gemmule/rates.json`` in the user's folder of settings.

    Raises
    ------
    ArgumentError
        If the user has no home.
    """
    if chosen := os.environ.get("GEMMULE_RATES"):
        return Path(chosen)
    return user_settings_folder("GEMMULE_RATES") / "gemmule" / "rates.json"


def rates_for(device: str | None, multiprocessors: int) -> GpuRates:
    """Return the rates of a GPU, by the name that its driver gives it; None takes an H200's."""
    return known_rates(device or "", multiprocessors).rates


@functools.cache
def known_rates(device: str, multiprocessors: int) -> KnownRates:
    """Return the rates of a GPU, and where they come from; the user's file is read once in a process."""
    found = _users().get((device, multiprocessors)) if device else None
    if found is not None:
        return KnownRates(found.rates, f"calibrated {found.date}, {rates_file()}", own=True)
    chip = _chip(device)
    if chip in _SHIPPED and _SHIPPED[chip].multiprocessors == multiprocessors:
        return KnownRates(_SHIPPED[chip], f"shipped for {chip}", own=True)
    word = next((word for word in _NEAREST if word in device), next(iter(_NEAREST)))
    rates = dataclasses.replace(_NEAREST[word], multiprocessors=multiprocessors)
    return KnownRates(rates, f"those of an {word}; gemmule calibrate measures this GPU's", own=False)


def _chip(device: str) -> str:
    try:
        return chip_named(device).name
    except ArgumentError:
        return device


@functools.cache
def _users() -> dict[tuple[str, int], MeasuredRates]:
    try:
        return {one.key: one for one in read_or_warn(rates_file())}
    except ArgumentError:
        # A user without a home has no file.
        return {}


def forget_rates() -> None:
    """Read the user's file again when rates are looked up next; what was chosen by them must be forgotten too."""
    _users.cache_clear()
    known_rates.cache_clear()
