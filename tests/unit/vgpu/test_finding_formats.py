"""Findings as SARIF and annotations: places that other programs can read."""

from __future__ import annotations

import pytest

from gemmule.vgpu.finding_formats import KINDS, annotation, record, sarif
from gemmule.vgpu.ptx.module import Instruction, SourceLine
from gemmule.vgpu.report import Finding


def finding(file):
    instruction = Instruction(0, "st", (), (), None, 7, "st [x]", SourceLine(file, 3, 1))
    return Finding("race", "writes it,\nand 100% of it", "scale", instruction, (0, 0, 0), 1, (0,))


@pytest.mark.parametrize(
    ("file", "uri", "escaped"),
    [("my kernels/k.py", "my%20kernels/k.py", "my kernels/k.py"), ("a,b:c%.py", "a%2Cb%3Ac%25.py", "a%2Cb%3Ac%25.py")],
)
def test_names_of_files_are_escaped(file, uri, escaped):
    (run,) = sarif([finding(file)])["runs"]
    (place,) = run["results"][0]["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == uri
    assert annotation(finding(file)).startswith(f"::error file={escaped},line=3::race in scale")
    assert record(finding(file))["file"] == file


def test_an_annotation_is_one_line():
    assert annotation(finding("k.py")).count("\n") == 0
    assert "writes it,%0Aand 100%25 of it" in annotation(finding("k.py"))


def test_every_kind_is_a_rule():
    (run,) = sarif([finding("k.py")])["runs"]
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} == set(KINDS)
