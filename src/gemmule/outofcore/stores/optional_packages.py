"""Packages that are installed on request only."""

from __future__ import annotations

import importlib
from typing import Any

from ...core.errors import UnsupportedError


def optional_package(name: str, what: str, extra: str = "io") -> Any:
    """Import a package of that extra for `what`, e.g. ``store.zarr``.

    Raises
    ------
    UnsupportedError
        If it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != name.partition(".")[0]:
            raise
        raise UnsupportedError(
            f"{what}: needs the package {name}, which is not installed; pip install 'gemmule[{extra}]'"
        ) from None
