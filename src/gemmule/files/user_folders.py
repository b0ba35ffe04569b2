"""Paths of a user's settings and caches, by the convention of each platform."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ..core.errors import ArgumentError


def user_cache_folder(variable: str, name: str) -> Path:
    """Return the folder of an environment variable, else the folder ``gemmule/name`` in the user's cache folder.

    Raises
    ------
    ArgumentError
        If the user has no home folder.
    """
    return _user_path(
        variable, name, ("Caches", "XDG_CACHE_HOME", ".cache"), f"set {variable} to a folder", sys.platform
    )


def user_settings_file(variable: str, name: str, platform: str = sys.platform) -> Path:
    """Return the file of an environment variable, else ``gemmule/name`` in the platform's folder of user settings.

    Raises
    ------
    ArgumentError
        If the user has no home folder.
    """
    folders = ("Application Support", "XDG_CONFIG_HOME", ".config")
    return _user_path(variable, name, folders, f"set {variable} to a file", platform)


def _user_path(variable: str, name: str, folders: tuple[str, str, str], remedy: str, platform: str) -> Path:
    if chosen := os.environ.get(variable):
        return Path(chosen)
    try:
        home = Path.home()
    except RuntimeError as error:
        raise ArgumentError(f"the user has no home folder ({error}); {remedy}") from error
    library, xdg, hidden = folders
    if platform == "win32":
        folder = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif platform == "darwin":
        folder = home / "Library" / library
    else:
        folder = Path(os.environ.get(xdg) or home / hidden)
    return folder / "gemmule" / name
