"""The parts of the command's time add up to the whole."""

import sys
import threading
import time

from command_parts import Spans, observed


def test_a_part_counts_without_those_within_it():
    spans = Spans()
    slow = spans.timed("inner", lambda: time.sleep(0.05))
    begin = time.monotonic()
    with spans.part("outer"):
        time.sleep(0.02)
        slow(), slow()
    assert spans.main["inner"] >= 0.1
    assert spans.main["outer"] >= 0.02
    assert 0.12 <= sum(spans.main.values()) <= time.monotonic() - begin


def test_other_threads_stand_apart():
    spans = Spans()
    with spans.part("outer"):
        thread = threading.Thread(target=spans.timed("inner", lambda: time.sleep(0.05)))
        thread.start(), thread.join()
    assert spans.beside["inner"] >= 0.05
    assert spans.main.keys() == {"outer"}


def test_functions_are_timed_as_soon_as_they_are_imported(monkeypatch, tmp_path):
    (tmp_path / "timed_here.py").write_text("def slow(): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    spans, join = Spans(), threading.Thread.join
    with observed(spans, {"timed_here": {"slow": "slow"}}):
        from timed_here import slow

        slow()
    assert threading.Thread.join is join
    sys.modules.pop("timed_here")
    assert spans.main.keys() >= {"imports", "slow"}
