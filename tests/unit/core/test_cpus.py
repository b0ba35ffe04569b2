"""How many CPUs this process may use."""

from __future__ import annotations

import os

import pytest

from gemmule.core.cpus import usable_cpus


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no threads")
def test_cpus_that_this_process_may_not_use_do_not_count():
    every = os.sched_getaffinity(0)
    assert usable_cpus() == len(every)
    os.sched_setaffinity(0, {min(every)})
    try:
        assert usable_cpus() == 1
    finally:
        os.sched_setaffinity(0, every)


def test_without_affinity_all_cpus_of_the_machine_count(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert usable_cpus() == 7
