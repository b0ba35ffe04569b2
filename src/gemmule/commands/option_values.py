"""Checks of the values of options."""

from __future__ import annotations

import math

import click


def check_finite(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """Return the value of an option; an error where it is infinite or NaN, which `click.FloatRange` allows."""
    del ctx, param
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number")
    return value
