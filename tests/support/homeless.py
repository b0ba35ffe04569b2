"""A user without a home folder."""

from __future__ import annotations

from pathlib import Path


def without_home(monkeypatch):
    """Let nobody know the user's home folder."""

    def home():
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", home)
