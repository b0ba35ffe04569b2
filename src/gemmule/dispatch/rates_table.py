"""Rates of GPUs, which predicted times are computed from."""

from __future__ import annotations

import dataclasses
import functools

from gemmule.core.gpu_rates import H100_RATES, H200_RATES, GpuRates

#: Rates that are shipped, by a word of the name that drivers give the chip; others take the first.
_SHIPPED = {"H200": H200_RATES, "H100": H100_RATES}


@functools.cache
def rates_for(device: str | None, multiprocessors: int) -> GpuRates:
    """Return the rates of a GPU, by the name that its driver gives it; None takes an H200's."""
    found = next((rates for word, rates in _SHIPPED.items() if word in (device or "")), H200_RATES)
    return dataclasses.replace(found, multiprocessors=multiprocessors)
