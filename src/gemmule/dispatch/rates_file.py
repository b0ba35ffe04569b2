"""Files of GPU rates measured by `gemmule calibrate`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gemmule.core.dataclass import dataclass
from gemmule.core.gpu_rates import H200_RATES, RATES, GpuRates

from .settings_file import SettingsFormat, locked


class RatesFileWarning(UserWarning):
    """A file of GPU rates could not be used, or was set aside."""


@dataclass(frozen=True)
class MeasuredRates:
    """Measured rates of a GPU."""

    gpu: str  #: Name of the GPU in its driver.
    rates: GpuRates  #: The rates, and the number of SMs.
    products: int  #: Number of products in the fit.
    error: float  #: Median relative error of predicted times, over products outside of the fit.
    run: tuple[tuple[str, str], ...]  #: Provenance: chip, driver, cuda, gemmule, packages, commit, date.

    @property
    def key(self) -> tuple[str, int]:
        """Name and number of SMs; a MIG instance has fewer."""
        return self.gpu, self.rates.multiprocessors

    @property
    def date(self) -> str:
        """Date of the measurement."""
        return dict(self.run).get("date", "at an unknown date")

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as in JSON."""
        rates = {name: getattr(self.rates, name) for name in ("multiprocessors", *RATES, "learned")}
        return {"gpu": self.gpu, **rates, "products": self.products, "error": self.error, "run": dict(self.run)}


def _rates(content: dict[str, Any]) -> tuple[MeasuredRates, ...]:
    if not isinstance(content["gpus"], list):
        raise TypeError("gpus must be a list")
    return tuple(map(_measured, content["gpus"]))


def _measured(fields: Mapping[str, Any]) -> MeasuredRates:
    # Where no file of rates is read, as on the host, nothing else needs the cost model.
    from gemmule.kernels.hopper.cost.correction import learned_chips

    if not isinstance(fields["gpu"], str) or fields["learned"] not in learned_chips():
        raise ValueError(f"gpu must be a name, and learned one of {', '.join(learned_chips())}")
    numbers = {name: fields[name] for name in ("multiprocessors", "products")}
    if not all(type(number) is int and number > 0 for number in numbers.values()):
        raise ValueError("multiprocessors and products must be whole numbers above 0")
    measured = {name: fields[name] for name in (*RATES, "error")}
    if not all(type(number) in (int, float) for number in measured.values()):
        raise ValueError(f"{', '.join(measured)} must be numbers")
    error = float(measured.pop("error"))
    if not 0 <= error < math.inf:
        raise ValueError(f"error must be a finite number from 0 on; got {error}")
    rates = {name: float(number) for name, number in measured.items()}
    return MeasuredRates(
        gpu=fields["gpu"],
        rates=GpuRates(
            numbers["multiprocessors"], **rates, learned=fields["learned"], arch=H200_RATES.arch, eligible=None
        ),
        products=numbers["products"],
        error=error,
        run=tuple((key, str(value)) for key, value in fields["run"].items()),
    )


_FORMAT = SettingsFormat("GPU rates", 1, _rates, RatesFileWarning)
read_rates, read_or_warn, read_or_set_aside = _FORMAT.read, _FORMAT.read_or_warn, _FORMAT.read_or_set_aside


def write_rates(path: Path, measured: Iterable[MeasuredRates]) -> None:
    """Replace a file by one with these rates, atomically."""
    lines = [f"  {json.dumps(one.as_dict())}" for one in sorted(measured, key=lambda one: one.key)]
    _FORMAT.write(path, ' "gpus": [\n' + ",\n".join(lines) + "\n ]")


def merge_rates(path: Path, measured: MeasuredRates) -> None:
    """Replace the rates of a GPU in a file, under a lock.

    Raises
    ------
    FileFormatError
        If the file is of a later version, or damaged and cannot be set aside; it is unchanged.
    OSError
        If the file cannot be read or written; it is unchanged.
    """
    with locked(path):
        present = {one.key: one for one in read_or_set_aside(path)}
        write_rates(path, (present | {measured.key: measured}).values())
