"""``GEMMULE_RECORD``: products are written once each, and come back as products to tune."""

from __future__ import annotations

import dataclasses
import json

import pytest

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT32
from gemmule.core.layout import contiguous
from gemmule.core.problem import TransposeProblem
from gemmule.dispatch import recording
from gemmule.dispatch.choices import choice_cache
from gemmule.dispatch.problem_key import key_of
from gemmule.dispatch.recording import RecordingWarning
from gemmule.dispatch.select import choose
from gemmule.lab.products import gemm_problem
from gemmule.lab.tuning.shapes import read_shapes, why_not_measured

HOPPER = Arch.parse("sm_90a")
PROBLEM = gemm_problem(24, 40, 56, "float16", "float32", "tn")


@pytest.fixture(autouse=True)
def _nothing_chosen(monkeypatch, tmp_path):
    monkeypatch.setenv("GEMMULE_TUNED", str(tmp_path / "none.json"))
    monkeypatch.setattr(recording, "_written", set())
    choice_cache.clear_choices()
    yield
    choice_cache.clear_choices()


def call(problem, chip="NVIDIA H200"):
    choose(problem, HOPPER, multiprocessors=132, chip=chip)


def test_every_product_is_written_once(tmp_path, monkeypatch):
    file = tmp_path / "shapes.jsonl"
    monkeypatch.setenv("GEMMULE_RECORD", str(file))
    other = gemm_problem(1, 40, 56, "float16", "float32", "tn")
    for problem in (PROBLEM, PROBLEM, other, dataclasses.replace(PROBLEM, alpha=2.0)):
        call(problem)
    call(TransposeProblem(8, 8, (), contiguous(FLOAT32, 8, 8), contiguous(FLOAT32, 8, 8).transposed()))
    # What is not for a GPU is not recorded.
    call(gemm_problem(8, 8, 8, "float32", "float32", "nn"), chip=None)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(one["m"], one["n"], one["k"], one["layout"]) for one in lines] == [(24, 40, 56, "tn"), (1, 40, 56, "nn")]
    assert {one["chip"] for one in lines} == {"H200 SXM 141 GB"}
    found = read_shapes(file, "bfloat16", "nn")
    assert [key_of(one) for one in found] == [key_of(PROBLEM), key_of(other)]
    assert [why_not_measured(one) for one in found] == [None, None]


def test_nothing_is_written_unasked(tmp_path, monkeypatch):
    monkeypatch.delenv("GEMMULE_RECORD", raising=False)
    monkeypatch.chdir(tmp_path)
    call(PROBLEM)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_does_not_stop_the_product(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMMULE_RECORD", str(tmp_path / "missing" / "shapes.jsonl"))
    with pytest.warns(RecordingWarning, match="cannot be recorded"):
        call(PROBLEM)


def test_what_the_laboratory_does_not_measure_is_told():
    added = dataclasses.replace(PROBLEM, c=PROBLEM.d, beta=1)
    padded = dataclasses.replace(PROBLEM, b=dataclasses.replace(PROBLEM.b, row_stride=41))
    assert "adds C" in why_not_measured(added)
    assert "alignment" in why_not_measured(padded)
    assert why_not_measured(gemm_problem(127, 127, 127, "bfloat16", "bfloat16", "nn")) is None
    assert why_not_measured(gemm_problem(128, 128, 128, "bfloat16", "bfloat16", "nn", misaligned=True)) is None
