"""The table of a random campaign, and the verdicts of compute-sanitizer."""

from __future__ import annotations

import pytest
from sanitizer import Run, record_of

from pages.fuzz_campaigns import fuzz_block


def check(kernel, problems, wrong, worst, types):
    return {
        "record": "check", "what": f"fuzz {kernel}", "passed": problems - wrong, "failed": wrong, "skipped": 0,
        "problems": problems, "wrong": wrong, "worst_share": worst, "seed": 5, "wanted": 50, "seconds": 99.6,
        "prepared_s": 40.2, "kernels_compiled": 7, "by": {"types": types, "library": {"torch": problems}},
    }  # fmt: skip


def test_a_row_for_each_kernel():
    text = fuzz_block([
        {"record": "experiment"}, {"record": "check", "what": "memcheck hopper_gemm", "passed": 1},
        check("mma_sync_gemm", 30, 1, 0.98, {"float16": 20, "int8": 10}),
        check("hopper_gemm", 10, 0, 0.5, {"float16": 10}),
    ])  # fmt: skip
    assert "Seed 5: 40 of 50 problems checked, 1 wrong; 7 compiled kernels, 100 s, 40 of them before" in text
    assert "| mma_sync_gemm | 30 | 75.0 % | 1 | 0.980 |" in text
    assert "| hopper_gemm | 10 | 25.0 % | 0 | 0.500 |" in text
    assert "| types | float16 30, int8 10 |" in text
    assert "| library | torch 40 |" in text


CLEAN = "========= COMPUTE-SANITIZER\nh09\n2 kernel runs\n========= ERROR SUMMARY: 0 errors\n"


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (Run(0, CLEAN, 3.0), "passed"),
        (Run(0, CLEAN.replace("2 kernel", "0 kernel"), 3.0), "failed"),
        (Run(9, CLEAN.replace("0 errors", "3 errors"), 3.0), "failed"),
        (Run(1, "Traceback", 3.0), "failed"),
        (Run(None, "", 3.0), "skipped"),
    ],
)
def test_what_a_tool_says_of_a_kernel(found, verdict):
    record = record_of("memcheck", "hopper_gemm", found)
    assert record["what"] == "memcheck hopper_gemm"
    assert [name for name in ("passed", "failed", "skipped") if record[name]] == [verdict]
    assert ("report" in record) == (verdict != "passed")


def test_racecheck_counts_hazards():
    hazards = (
        "COMPUTE-SANITIZER\n2 kernel runs\n========= RACECHECK SUMMARY: {} hazards displayed ({} errors, 0 warnings)"
    )
    assert record_of("racecheck", "hopper_gemm", Run(0, hazards.format(0, 0), 1.0))["passed"]
    assert record_of("racecheck", "hopper_gemm", Run(9, hazards.format(1, 1), 1.0))["failed"]
