"""CITATION.cff names the version of the package."""

import re
from pathlib import Path

import gemmule

CITATION = Path(__file__).parents[3] / "CITATION.cff"


def test_citation_names_the_version():
    """The version is written in two places, which a release could tear apart."""
    found = re.search(r"^version: (\S+)$", CITATION.read_text(), re.MULTILINE)
    assert found is not None
    assert found[1] == gemmule.__version__
