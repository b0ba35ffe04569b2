"""Uses of wgmma's registers that a compiler has put behind a fence are notes; without any fence they are races."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.vgpu.checks.collected import Collected


class Batch:
    """Makes findings of nothing but their texts."""

    def finding(self, kind, message, instruction, index):
        from gemmule.vgpu.report import Finding

        return Finding(kind, message, "k", instruction)


@pytest.mark.parametrize(("compiled", "findings", "notes"), [(False, 1, 0), (True, 0, 1)])
def test_what_only_the_compiler_can_change_is_a_note(compiled, findings, notes):
    collected = Collected(compiled=compiled)
    for _ in range(2):
        collected.note(Batch(), "race", "no wgmma.fence", None, np.zeros(1, int))
    assert (len(collected.findings), len(collected.notes)) == (findings, notes)
