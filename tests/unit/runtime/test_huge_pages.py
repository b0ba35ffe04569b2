"""Host memory in huge pages."""

from __future__ import annotations

import mmap

import pytest

from gemmule.runtime import huge_pages as module
from gemmule.runtime.huge_pages import HUGE_PAGE, huge_pages


@pytest.mark.parametrize("nbytes", [HUGE_PAGE, 3 * HUGE_PAGE + 12_345])
def test_memory_begins_at_a_huge_page_and_can_be_written(nbytes):
    memory = huge_pages(nbytes)
    assert memory.nbytes == nbytes
    assert memory.ctypes.data % HUGE_PAGE == 0
    assert not memory.any()
    memory[...] = 7
    assert (memory == 7).all()


def test_a_system_without_huge_pages_gives_its_own(monkeypatch):
    class Plain(mmap.mmap):
        def madvise(self, *_):
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(module.mmap, "mmap", Plain)
    assert huge_pages(HUGE_PAGE).nbytes == HUGE_PAGE
