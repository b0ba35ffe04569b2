"""Tables of what the virtual GPU's checks find: removed instructions, and NVIDIA's examples."""

from __future__ import annotations

from pages.checked_kernels import foreign_table, removals_table

EXPERIMENT = {"record": "experiment"}


def removal(text, reason, line):
    return {"line": line, "text": text, "reason": reason}


def test_removals_by_kernel_and_schedule():
    fences = [removal("wgmma.fence.sync.aligned", "one is enough", line) for line in (7, 9)]
    last = removal("mbarrier.arrive.shared.b64 %rd1, [%r1]", "nobody waits", 11)
    table = removals_table([
        EXPERIMENT,
        {"record": "removals", "kernel": "h1", "removed": 20, "left_after": {"late": 5, "random": 3}, "false_alarms": 0,
         "unseen": [*fences, last]},
        {"record": "removals", "kernel": "h2", "removed": 4, "left_after": {"late": 0, "random": 0}, "false_alarms": 1,
         "unseen": []},
        {"record": "check", "what": "tests", "passed": 2},
        {"record": "removals", "kernel": "h1", "removed": 1, "left_after": {"late": 1, "random": 1}, "false_alarms": 7,
         "unseen": [removal("bar.sync 0", "an older run", 3)]},
    ])  # fmt: skip
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]
    assert rows[0][2:4] == ["found under late", "then under random"]
    assert rows[2] == ["`h1`", "20", "15", "2", "85%", "2 `wgmma.fence`, 1 `mbarrier.arrive`", "0"]
    assert rows[3] == ["`h2`", "4", "4", "0", "100%", "", "1"]
    assert rows[4][:2] + rows[4][4:5] == ["all", "24", "88%"]
    assert "- `wgmma.fence`: one is enough." in table
    assert "- `mbarrier.arrive`: nobody waits." in table
    assert "older" not in table


def run_of(kernel, **more):
    record = {"record": "foreign_kernel", "repository": "a/b", "commit": "0123456789abcdef", "kernel": kernel}
    record |= {"what": "float16", "right": {"late": True, "random": True}, "seconds": {"late": 0.5, "random": 1.25}}
    return record | {"findings": []} | more


def test_kernels_of_others_have_a_row_each_and_their_findings_below():
    old = run_of("gemm.py", right={"late": False})
    mutants = {"made": 12, "found": 9, "equivalent": [{"count": 2, "reason": "barriers behind the last read"}]}
    table = foreign_table([old, run_of("gemm.py", mutants=mutants), run_of("add.py", findings=["race: it races"])])
    assert table.splitlines()[2:] == [
        "| `gemm.py` | a/b 0123456789 | float16 | right under late, random |  | 1.25 | 9 of 10 |",
        "| `add.py` | a/b 0123456789 | float16 | right under late, random | 1 | 1.25 |  |",
        "| all |  |  |  |  |  | 90% of 10 |",
        "",
        "1. race: it races.",
        "- `gemm.py`, mutants that change nothing: 2 barriers behind the last read.",
    ]


def test_wrong_numbers_name_their_schedules():
    assert "wrong under random" in foreign_table([run_of("gemm.py", right={"late": True, "random": False})])
