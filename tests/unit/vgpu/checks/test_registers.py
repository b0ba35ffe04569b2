"""Unwritten values count where memory, a branch or an address gets them, not where masked lanes compute along."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.vgpu import CheckError, FaultError, Options
from support.ptx.snippets import at, run

HALF = "setp.lt.u32 %p1, %tid, 16;\nmov.u32 %r2, 0;\n@%p1 mov.u32 %r5, 7;\n"
STORE = at("out", 4) + "st.global.b32 [%address], {};"


def findings(body):
    try:
        run(body, {"out": np.zeros(32, np.uint32)}, 32, 1, "", Options(checks=True))
    except CheckError as error:
        return error.findings
    return ()


def test_lanes_that_are_masked_compute_along():
    body = HALF + "add.u32 %r6, %r5, 1;\nmul.lo.u32 %r7, %r6, %r6;\n" + at("out", 4)
    assert findings(body + "@%p1 st.global.b32 [%address], %r7;") == ()


def test_a_stored_result_of_an_unwritten_value_names_where_it_was_computed():
    body = HALF + ".loc 1 8 0\nadd.u32 %r6, %r5, 1;\nmul.lo.u32 %r7, %r6, %r6;\n.loc 1 9 0\n"
    (finding,) = findings(body + STORE.format("%r7"))
    assert (finding.kind, finding.source, finding.lanes) == ("uninitialised", "snippet.py:9", tuple(range(16, 32)))
    assert "computed in line 8 from %r5, which was not written" in str(finding)


@pytest.mark.parametrize(
    "use",
    [
        "add.u32 %r6, %r5, 1;\nsetp.eq.u32 %p2, %r6, 7;\n@%p2 bra END;\n" + STORE.format("%r2") + "\nEND:\n",
        "and.b32 %r6, %r5, 1;\ncvt.u64.u32 %d9, %r6;\nadd.u64 %d9, %d9, %p_out;\nld.global.b8 %r7, [%d9];\n",
    ],
)
def test_a_branch_and_an_address(use):
    try:
        found = findings(HALF + use)
    except FaultError as error:
        found = error.findings
    assert {finding.kind for finding in found} == {"uninitialised"}


def test_a_selection_of_which_one_value_is_written():
    assert findings(HALF + "selp.b32 %r6, %r5, %r2, %p1;\n" + STORE.format("%r6")) == ()
    (finding,) = findings(HALF + "selp.b32 %r6, %r5, %r5, %p1;\n" + STORE.format("%r6"))
    assert finding.kind == "uninitialised"
    (finding,) = findings(HALF + "setp.eq.u32 %p2, %r5, 1;\nselp.b32 %r6, 1, 2, %p2;\n" + STORE.format("%r6"))
    assert finding.kind == "uninitialised"
