"""The random campaign of benchmarks/fuzz on the host, and that it sees what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch
from planning import Setting, Target, problem_numbered
from recipes import GATED, SCHEDULE
from workers import check

HOST = Setting(seed=11, templates=len(SCHEDULE), most=40, libraries=("torch", "numpy"), target=Target("cpu"))
CAMPAIGN = Path(__file__).parents[2] / "benchmarks" / "fuzz" / "campaign.py"


def checked_by_torch(indices):
    """Problems with elements, whose results a test can spoil in place."""
    return [
        i for i in indices if all((p := problem_numbered(HOST, i)).result) and (p.library, p.gram) == ("torch", False)
    ]


def seeing(spoil, indices):
    """Return the problems of which a spoiled result is seen, and those of which it is not."""
    found = check(HOST, indices, spoil)
    return [one for one in found if one.failure], [one for one in found if not one.failure]


def test_right_results_are_right():
    assert [one.failure for one in check(HOST, range(len(SCHEDULE))) if one.failure] == []


def test_a_seed_gives_the_same_problems():
    assert problem_numbered(HOST, 17).describe() == problem_numbered(HOST, 17).describe()
    assert problem_numbered(HOST, 17).describe() != problem_numbered(HOST, 17 + len(SCHEDULE)).describe()


def test_an_element_that_is_off_is_seen():
    def spoil(got):
        # Of a complex number the imaginary part.
        got = torch.view_as_real(got) if got.is_complex() else got
        last = tuple(extent - 1 for extent in got.shape)
        old = got[last].double()
        # Another value than it was, NaN and infinity included.
        # Moved across 0 from small values: half of 6, and 3 more, would be 6 again.
        finite = float(old) / 2 + (3 if old < 0 else -3)
        got[last] = (7.0 if not old.isfinite() else finite) if got.is_floating_point() else ~got[last]

    def shows(problem):
        # Elements that are not needed, products of 8-bit floats and gated ones of all sizes, and what shares a scale of
        # NaN.
        vague = problem.precision == "float8" or problem.operation == "quantize" or problem.epilogue in GATED
        return problem.operation != "staircase" and not (vague and problem.values in ("wide", "special"))

    indices = [i for i in checked_by_torch(range(len(SCHEDULE))) if shows(problem_numbered(HOST, i))]
    seen, unseen = seeing(spoil, indices)
    assert len(indices) > 40
    assert not unseen
    assert all("elements wrong" in one.failure for one in seen)


def test_an_element_that_was_not_written_is_seen():
    def spoil(got):
        got[..., 0].fill_(float("nan") if got.is_floating_point() else -77)

    seen, unseen = seeing(spoil, checked_by_torch(range(len(SCHEDULE))))
    # Where NaN is expected, an element that was not written does not show.
    assert len(seen) > 3 * len(unseen)


def test_what_is_written_beside_the_result_is_seen():
    def spoil(got):
        before = got.storage_offset() - 1
        got.new_empty(0).set_(got.untyped_storage(), before, (1,)).fill_(1)

    given = [i for i in checked_by_torch(range(len(SCHEDULE))) if problem_numbered(HOST, i).target != "new"]
    seen, unseen = seeing(spoil, given)
    assert len(seen) > 20
    assert not unseen


def test_what_raises_is_a_failure_of_its_own_problem():
    def spoil(got):
        raise ValueError("on purpose")

    assert all("ValueError: on purpose" in one.failure for one in check(HOST, range(3), spoil))


def test_the_command_writes_a_record_for_each_kernel(tmp_path):
    command = [sys.executable, CAMPAIGN, "--executor", "cpu", "--problems", "30", "--seed", "5", "--workers", "1"]
    run = subprocess.run([*command, "--out", tmp_path], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    (path,) = tmp_path.glob("*.jsonl")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    checks = [record for record in records if record["record"] == "check"]
    assert sum(one["passed"] for one in checks) == 30
    assert {one["failed"] for one in checks} == {0}
    assert "fuzz ozaki_gemm" in {one["what"] for one in checks}
    again = subprocess.run([*command, "--only", "3"], capture_output=True, text=True, check=False)
    assert again.returncode == 0
    assert "right: greatest error" in again.stdout
