"""Misuse of mbarriers: one that several lanes initialise."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.vgpu import CheckError, Options
from support.ptx.snippets import run

SHARED = ".shared .align 8 .b64 arrived;"


def findings(guard):
    body = f"mov.u32 %r1, arrived;\nsetp.eq.u32 %p1, %lane, 0;\n{guard} mbarrier.init.shared.b64 [%r1], 1;"
    try:
        run(body, {"out": np.zeros(1, np.uint32)}, 32, 1, SHARED, Options(checks=True))
    except CheckError as error:
        return error.findings
    return ()


@pytest.mark.parametrize(("guard", "kinds"), [("@%p1", []), ("", ["barrier"])])
def test_one_thread_initialises(guard, kinds):
    found = findings(guard)
    assert [one.kind for one in found] == kinds
    assert all("32 lanes initialise the mbarrier" in one.message for one in found)
