"""Files of GPUs' rates, which `gemmule calibrate` measures: read, merged and replaced as a whole."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gemmule.core.gpu_rates import RATES, GpuRates
from gemmule.kernels.hopper.cost.correction import learned_chips

from .settings_file import SettingsFormat, locked


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


def _rates(content: dict[str, Any]) -> tuple[MeasuredRates, ...]:
    if not isinstance(content["gpus"], list):
        raise TypeError("gpus must be a list")
    return tuple(map(_measured, content["gpus"]))


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


_FORMAT = SettingsFormat("GPU rates", 1, _rates, RatesFileWarning)
read_rates, read_or_warn, read_or_set_aside = _FORMAT.read, _FORMAT.read_or_warn, _FORMAT.read_or_set_aside


def write_rates(path: Path, measured: Iterable[MeasuredRates]) -> None:
    """Replace a file by one with these rates: readers see the old one or the new one, never a part."""
    lines = [f"  {json.dumps(one.as_dict())}" for one in sorted(measured, key=lambda one: one.key)]
    _FORMAT.write(path, ' "gpus": [\n' + ",\n".join(lines) + "\n ]")


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
        present = {one.key: one for one in read_or_set_aside(path)}
        write_rates(path, (present | {measured.key: measured}).values())
