"""Files of GPUs' rates, which `gemmule calibrate` measures: read, merged and replaced as a whole."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gemmule.core.errors import ArgumentError, FileFormatError
from gemmule.core.gpu_rates import RATES, GpuRates
from gemmule.kernels.hopper.cost.correction import learned_chips

from . import settings_file
from .settings_file import LaterVersionError, content, locked, read_or_set_aside, write_whole

FORMAT, VERSION = "gemmule GPU rates", 1
#: What messages call such a file.
_WHAT = "a file of GPU rates"
_BEGINNING = f'{{"format": "{FORMAT}"'


class RatesFileWarning(UserWarning):
    """A file of rates could not be used, or was set aside."""


@dataclasses.dataclass(frozen=True)
class MeasuredRates:
    """Rates that were measured on a GPU.

    Attributes
    ----------
    gpu : str
        The name that its driver gives it.
    rates : GpuRates
        The rates, and its SMs.
    products : int
        Products that they were fitted to.
    error : float
        Median relative error of the predicted times of products that were left out of the fit.
    run : tuple of (str, str)
        Where they come from, as names and texts: chip, driver, cuda, gemmule, packages, commit, date.
    """

    gpu: str
    rates: GpuRates
    products: int
    error: float
    run: tuple[tuple[str, str], ...]

    @property
    def key(self) -> tuple[str, int]:
        """What tells GPUs apart: the name, and the SMs, of which a part of a GPU has fewer."""
        return self.gpu, self.rates.multiprocessors

    @property
    def date(self) -> str:
        """When they were measured."""
        return dict(self.run).get("date", "at an unknown date")

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON has them."""
        rates = {name: getattr(self.rates, name) for name in ("multiprocessors", *RATES, "learned")}
        return {"gpu": self.gpu, **rates, "products": self.products, "error": self.error, "run": dict(self.run)}


def read_rates(path: Path) -> tuple[MeasuredRates, ...]:
    """Return the rates of a file.

    Raises
    ------
    FileFormatError
        If it is no such file, or of a later version.
    OSError
        If it cannot be read.
    """
    return measured_rates(content(path, _WHAT), str(path))


def measured_rates(text: bytes, what: str) -> tuple[MeasuredRates, ...]:
    """Return the rates of a file's content; messages begin with `what`.

    Raises
    ------
    FileFormatError
        If it is no such file's, or of a later version.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{what}: not a file of GPU rates: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FileFormatError(f"{what}: not a file of GPU rates, whose 'format' is {FORMAT!r}")
    if content.get("version") != VERSION:
        raise LaterVersionError(f"{what}: is of version {content.get('version')}; this gemmule reads {VERSION}")
    try:
        if not isinstance(content["gpus"], list):
            raise TypeError("gpus are a list")
        return tuple(map(_measured, content["gpus"]))
    except (ArgumentError, AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise FileFormatError(f"{what}: the rates of a GPU are not whole ({type(error).__name__}: {error})") from error


def _measured(fields: Mapping[str, Any]) -> MeasuredRates:
    if not isinstance(fields["gpu"], str) or fields["learned"] not in learned_chips():
        raise ValueError(f"gpu is a name, and learned one of {', '.join(learned_chips())}")
    numbers = {name: fields[name] for name in ("multiprocessors", "products")}
    if not all(type(number) is int and number > 0 for number in numbers.values()):
        raise ValueError("multiprocessors and products are whole numbers above 0")
    rates = {name: float(fields[name]) for name in RATES}
    error = float(fields["error"])
    if not 0 <= error < math.inf:
        raise ValueError(f"error is {error}; it is a finite number from 0 on")
    return MeasuredRates(
        gpu=fields["gpu"],
        rates=GpuRates(numbers["multiprocessors"], **rates, learned=fields["learned"]),
        products=numbers["products"],
        error=error,
        run=tuple((key, str(value)) for key, value in fields["run"].items()),
    )


def read_or_warn(path: Path) -> tuple[MeasuredRates, ...]:
    """Return the rates of a user's file; none, and a warning, where it cannot be used."""
    return settings_file.read_or_warn(path, read_rates, (), RatesFileWarning)


def read_or_make_way(path: Path) -> tuple[MeasuredRates, ...]:
    """Return the rates of a file that is to be replaced; none where there is no file, or a damaged one was set aside.

    Raises
    ------
    LaterVersionError, FileFormatError, OSError
        As of `read_or_set_aside`.
    """
    return read_or_set_aside(path, _WHAT, measured_rates, _BEGINNING, (), RatesFileWarning)


def write_rates(path: Path, measured: Iterable[MeasuredRates]) -> None:
    """Replace a file by one with these rates: readers see the old one or the new one, never a part."""
    lines = [f"  {json.dumps(one.as_dict())}" for one in sorted(measured, key=lambda one: one.key)]
    write_whole(path, f'{_BEGINNING}, "version": {VERSION},\n "gpus": [\n' + ",\n".join(lines) + "\n ]}\n")


def merge_rates(path: Path, measured: MeasuredRates) -> None:
    """Write the rates of a GPU to a file, in the place of those that it has of that GPU.

    Processes that write at the same time wait for each other, and none loses what another wrote.

    Raises
    ------
    FileFormatError
        If the file is of a later version, or damaged and cannot be set aside; it is as it was.
    OSError
        If the file cannot be read, or not be written; it is as it was.
    """
    with locked(path):
        present = {one.key: one for one in read_or_make_way(path)}
        write_rates(path, (present | {measured.key: measured}).values())
