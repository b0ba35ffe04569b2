"""Forms of Hopper's instructions, held against the record of a GPU: the same memory, byte by byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hopper_forms import Launched, all_forms, digest

from gemmule.vgpu import FaultError

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
FORMS = {(form.group, form.name): form for form in all_forms()}


def records():
    """Return the newest record that has forms."""
    for path in sorted(RESULTS.glob("*.jsonl"), reverse=True):
        found = [json.loads(line) for line in path.read_text().splitlines()]
        if "/hopper_forms.py" in found[0]["command"] and found[1]["record"] == "form":
            return found[1:]
    raise AssertionError("no record of benchmarks/records/hopper_forms.py is committed")


def quick_first(records, some=2):
    """A few of each group; the others are for test-all."""
    seen = {}
    for record in records:
        seen[record["group"]] = seen.get(record["group"], 0) + 1
        marks = () if seen[record["group"]] <= some else pytest.mark.slow
        yield pytest.param(record, marks=marks, id=f"{record['group']}-{record['form']}")


@pytest.mark.parametrize("record", list(quick_first(records())))
def test_the_hardware_left_the_same_memory(record):
    form = FORMS.get((record["group"], record["form"]))
    if form is None:
        pytest.skip("there is no such form any more")
    if "hardware_error" in record:
        with pytest.raises(FaultError, match=r"boxes begin at|before the first"):
            Launched(form).on_virtual()
        return
    assert record["equal"] == record["elements"] > 0
    assert digest(Launched(form).on_virtual()) == record["sha256"]
