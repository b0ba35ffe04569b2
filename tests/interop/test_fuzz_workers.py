"""Processes of the random campaign that end or hang: what they were at is run again one by one, and named."""

from __future__ import annotations

import os
import time

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import workers
from planning import Setting, Target

HOST = Setting(seed=11, templates=3, most=20, libraries=("torch",), target=Target("cpu"))


def work_but_not_that(setting, pipe):
    """End at problem 4, and hang at problem 5."""
    pipe.send("ready")
    while (asked := pipe.recv()) is not None:
        what, numbers = asked
        if what == "plan":
            pipe.send([workers.template(setting, number).planned for number in numbers])
            continue
        if 4 in numbers:
            os._exit(3)
        if 5 in numbers:
            time.sleep(1000)
        pipe.send([workers.Verdict(index, "k", {}) for index in numbers])


def test_problems_that_end_or_stop_their_process_are_named():
    started = workers.Workers(HOST, 1, work_but_not_that, 8.0)
    started.plan()
    found = {one.index: one.failure for some in started.run(9, time.time() + 300) for one in some}
    started.end()
    assert sorted(found) == list(range(9))
    assert {index: failure for index, failure in found.items() if failure} == {
        4: "it ended the process", 5: "it did not end",
    }  # fmt: skip
