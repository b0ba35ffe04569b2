"""What pages and messages say of extras: each exists, and an installed gemmule gets it, though no index has gemmule."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NAMED = re.compile(r"gemmule\[([a-z,]+)\]")
TEXTS = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/gemmule/**/*.py")]


def installed():
    """Return the metadata of the installed package, where it is one."""
    try:
        return importlib.metadata.metadata("gemmule")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("gemmule is imported from its sources, without an installation")


def test_every_extra_that_is_named_exists():
    known = set(installed().get_all("Provides-Extra"))
    named = {(path.name, extra) for path in TEXTS for group in NAMED.findall(path.read_text("utf-8"))
             for extra in group.split(",")}  # fmt: skip
    assert {"bench", "report", "profile", "compiler"} <= {extra for _, extra in named}
    assert {(name, extra) for name, extra in named if extra not in known} == set()


def test_an_installed_gemmule_gets_an_extra_without_an_index_that_has_it():
    installed()
    for package in ("pip", "jinja2", "matplotlib"):
        pytest.importorskip(package)
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--disable-pip-version-check"]
    done = subprocess.run([*command, "gemmule[report]"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "already satisfied: gemmule" in done.stdout
