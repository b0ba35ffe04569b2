"""Mutated kernels: their synchronisation, and the run until the first finding."""

from __future__ import annotations

import pytest

from gemmule.vgpu import launcher
from gemmule.vgpu.checks import Collected


def synchronisation(kernel):
    """Barriers, mbarriers, fences, and the groups and waits of copies and products."""
    groups = {"commit_group", "wait_group", "wait_all"}
    for instruction in kernel.instructions:
        modifiers, name = set(instruction.modifiers), instruction.name
        of_products = name == "wgmma" and "mma_async" not in modifiers
        if name in ("bar", "barrier", "mbarrier", "fence") or of_products or (name == "cp" and groups & modifiers):
            yield instruction


class FirstFinding(Collected):
    """Findings of which the first ends the run: one is enough, and the rest of the run takes time."""

    def add(self, *what, **more):
        super().add(*what, **more)
        self.check()


@pytest.fixture(autouse=True)
def first_finding_is_enough(monkeypatch):
    """End every run with its first finding."""
    monkeypatch.setattr(launcher, "Collected", FirstFinding)
