"""Local memory that a thread did not write: a finding where the value goes somewhere."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.vgpu import CheckError, Options
from support.ptx.snippets import at, run

DECLARED = ".local .align 16 .b8 mine[32];"
WRITE = "mov.u32 %r2, mine;\nst.local.v4.b32 [%r2], {%tid, %tid, %tid, %tid};\n"


def launch(load, stored):
    body = WRITE + load + at("out", 4) + f"st.global.b32 [%address], {stored};"
    run(body, {"out": np.zeros(32, np.uint32)}, 32, 1, DECLARED, Options(checks=True))


@pytest.mark.parametrize(
    ("load", "stored"),
    [
        ("ld.local.b32 %r3, [%r2+12];\n", "%r3"),
        ("ld.local.v4.b32 {%r3, %r4, %r5, %r6}, [%r2];\n", "%r6"),
        ("ld.local.v2.b32 {%r3, %r4}, [%r2+16];\n", "%tid"),
    ],
)
def test_written_and_unused_values_are_clean(load, stored):
    launch(load, stored)


@pytest.mark.parametrize(
    ("load", "stored", "start"),
    [("ld.local.b32 %r3, [%r2+16];\n", "%r3", 16), ("ld.local.v2.b32 {%r3, %r4}, [%r2+24];\n", "%r4", 28)],
)
def test_an_unwritten_value_that_is_stored_is_found(load, stored, start):
    with pytest.raises(CheckError, match=f"^uninitialised.*4 bytes at {start} of its local memory, which the thread"):
        launch(load, stored)


def test_lanes_are_told_apart():
    # Lane t reads word t % 8, of which four are written.
    load = "and.b32 %r4, %tid, 7;\nmad.lo.u32 %r4, %r4, 4, %r2;\nld.local.b32 %r3, [%r4];\n"
    with pytest.raises(CheckError) as caught:
        launch(load, "%r3")
    (one,) = caught.value.findings
    assert one.lanes == tuple(lane for lane in range(32) if lane % 8 >= 4)
