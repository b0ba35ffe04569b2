"""Tables of what the virtual GPU's checks find: removed instructions, and NVIDIA's examples."""

from __future__ import annotations

from pages.checked_kernels import examples_table, removals_table

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


def test_examples_with_their_findings():
    first = {"record": "example", "repository": "NVIDIA/cutlass", "commit": "0123456789abcdef", "file": "a.py"}
    table = examples_table([
        EXPERIMENT,
        first | {"what": "plain", "schedules": ["late", "eager"], "wrong": [], "findings": []},
        first | {"what": "half", "schedules": ["late", "eager"], "wrong": ["late"],
                 "findings": [{"message": "no fence", "reason": "there is none"}]},
        first | {"file": "b.py", "what": "grouped", "error": "PTX line 3: not known"},
        first | {"file": "c.py", "what": "refused once", "error": "PTX line 3: not known"},
        EXPERIMENT,
        first | {"file": "c.py", "what": "again", "schedules": ["late"], "wrong": [], "findings": []},
    ])  # fmt: skip
    assert table.startswith("NVIDIA/cutlass, commit 0123456789.")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]
    assert rows[2:] == [
        ["`a.py`", "plain", "right under late, eager", ""],
        ["`a.py`", "half", "wrong under late", "1"],
        ["`b.py`", "grouped", "does not run: PTX line 3: not known", ""],
        ["`c.py`", "again", "right under late", ""],
    ]
    assert '1. "no fence": there is none.' in table
