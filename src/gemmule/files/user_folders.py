"""Where a user's own files belong, by the convention of each platform."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ..core.errors import ArgumentError


def user_cache_folder() -> Path:
    """Return the folder for what can be made again, e.g. ``~/.cache``.

    Raises
    ------
    ArgumentError
        If the user has no home.
    """
    return _folder("Caches", "XDG_CACHE_HOME", ".cache", "the user's cache folder", "GEMMULE_CACHE to a folder")


def user_settings_folder(variable: str = "GEMMULE_TUNED") -> Path:
    """Return the folder for settings, e.g. ``~/.config``.

    Parameters
    ----------
    variable : str
        Environment variable that names the file itself, as the remedy where there is no folder.

    Raises
    ------
    ArgumentError
        If the user has no home.
    """
    return _folder("Application Support", "XDG_CONFIG_HOME", ".config", "the user's folder", f"{variable} to a file")


def _folder(library: str, variable: str, hidden: str, what: str, remedy: str) -> Path:
    try:
        home = Path.home()
    except RuntimeError as error:
        raise ArgumentError(f"{what} is not known ({error}); set {remedy}") from error
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    if sys.platform == "darwin":
        return home / "Library" / library
    return Path(os.environ.get(variable) or home / hidden)
