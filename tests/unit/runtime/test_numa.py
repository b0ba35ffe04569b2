"""Which processors a GPU is attached to, and threads that run there."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from gemmule.runtime.numa import bound_to, processors_near
from support.system_calls import failing, replaced


@pytest.fixture
def system(tmp_path):
    for node, cpus in enumerate(("0-3,8\n", "4-7\n")):
        place = tmp_path / f"devices/system/node/node{node}"
        place.mkdir(parents=True)
        (place / "cpulist").write_text(cpus)
    for bus, node in (("0000:1b:00.0", "0"), ("0000:9c:00.0", "1"), ("0000:aa:00.0", "-1")):
        place = tmp_path / f"bus/pci/devices/{bus}"
        place.mkdir(parents=True)
        (place / "numa_node").write_text(f"{node}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("bus", "expected"),
    [
        ("0000:1B:00.0", {0, 1, 2, 3, 8}),
        ("00000000:9C:00.0", {4, 5, 6, 7}),
        ("0000:AA:00.0", set()),
        ("0000:bb:00.0", set()),
    ],
)
def test_processors_of_a_gpu(system, bus, expected):
    assert processors_near(bus, system) == expected


def test_one_node_is_no_choice(system):
    (system / "devices/system/node/node1/cpulist").unlink()
    (system / "devices/system/node/node1").rmdir()
    assert processors_near("0000:1b:00.0", system) == set()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no threads")
def test_threads_run_where_the_block_says():
    every = os.sched_getaffinity(0)
    one = frozenset([max(every)])
    seen = []
    with bound_to(one):
        thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
        seen.append(os.sched_getaffinity(0))
    assert seen == [one, one]
    assert os.sched_getaffinity(0) == every
    # Where it may not run at all, it stays where it is.
    with bound_to(frozenset([max(every) + 1])):
        assert os.sched_getaffinity(0) == every
    with pytest.raises(KeyError), bound_to(one):
        raise KeyError
    assert os.sched_getaffinity(0) == every


def test_where_binding_is_forbidden_threads_stay(monkeypatch):
    replaced(monkeypatch, "sched_getaffinity", lambda _: {0, 1})
    failing(monkeypatch, "sched_setaffinity", errno.EPERM)
    with pytest.raises(KeyError, match="own"), bound_to(frozenset({1})):
        raise KeyError("own")


@pytest.mark.parametrize("text", ["", "one"])
def test_a_description_that_cannot_be_read_says_nothing(text, tmp_path):
    (place := tmp_path / "bus/pci/devices/0000:18:00.0").mkdir(parents=True)
    (place / "numa_node").write_text(text)
    assert processors_near("00000000:18:00.0", tmp_path) == frozenset()
