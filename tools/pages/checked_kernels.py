"""What the virtual GPU's checks find: in kernels without one of their instructions, and in kernels of others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from .markdown import markdown

Record = Mapping[str, Any]


def _opcode(text: str) -> str:
    """Return an instruction's name and first modifier: what it does, without its operands."""
    return ".".join(text.split(maxsplit=1)[0].split(".")[:2])


def removals_table(records: Sequence[Record]) -> str:
    """Return a row for each kernel: how many removals each schedule leaves unnoticed; and why, of what all leave.

    Of several records of a kernel the first counts.
    """
    by_kernel: dict[str, Record] = {}
    for record in records:
        if record["record"] == "removals":
            by_kernel.setdefault(record["kernel"], record)
    runs = list(by_kernel.values())
    schedules = list(runs[0]["left_after"])
    reasons = {(x["reason"], _opcode(x["text"])): None for run in runs for x in run["unseen"]}
    rows = []
    for run in runs:
        left = list(run["left_after"].values())
        found = [before - after for before, after in zip([run["removed"], *left], left, strict=False)]
        kinds = Counter(_opcode(x["text"]) for x in run["unseen"])
        row = [f"`{run['kernel']}`", str(run["removed"]), *map(str, found), f"{sum(found) / run['removed']:.0%}"]
        rows.append([*row, ", ".join(f"{count} `{kind}`" for kind, count in kinds.items()), str(run["false_alarms"])])
    removed = sum(run["removed"] for run in runs)
    share = f"{1 - sum(len(run['unseen']) for run in runs) / removed:.0%}"
    rows.append(["all", str(removed), *("" for _ in schedules), share, "", ""])
    by_schedule = [f"found under {schedules[0]}", *(f"then under {schedule}" for schedule in schedules[1:])]
    table = markdown(["kernel", "removed", *by_schedule, "found", "not found", "false alarms"], rows)
    return "\n".join([table, "", *(f"- `{kind}`: {why}." for why, kind in reasons)])


def foreign_table(records: Sequence[Record]) -> str:
    """Return a row for each kernel of others: whether its numbers are right, what the checks find, and in what time.

    Of several records of a kernel the last counts. Below are the findings, and the mutants that none finds.
    """
    runs = {
        (one["repository"], one["kernel"], one["what"]): one for one in records if one["record"] == "foreign_kernel"
    }
    findings = {one: None for run in runs.values() for one in run["findings"]}
    numbers = {finding: number for number, finding in enumerate(findings, 1)}
    rows, lines = [], [f"{number}. {finding}." for finding, number in numbers.items()]
    found = real = 0
    for run in runs.values():
        wrong, mutants = [name for name, right in run["right"].items() if not right], run.get("mutants")
        verdict = f"wrong under {', '.join(wrong)}" if wrong else f"right under {', '.join(run['right'])}"
        row = [f"`{run['kernel']}`", f"{run['repository']} {run['commit'][:10]}", run["what"], verdict]
        row += [", ".join(str(numbers[one]) for one in run["findings"]), f"{max(run['seconds'].values()):.2f}"]
        if mutants is None:
            rows.append([*row, ""])
            continue
        same = sum(one["count"] for one in mutants["equivalent"])
        found, real = found + mutants["found"], real + mutants["made"] - same
        rows.append([*row, f"{mutants['found']} of {mutants['made'] - same}"])
        if same:
            why = "; ".join(f"{one['count']} {one['reason']}" for one in mutants["equivalent"])
            lines.append(f"- `{run['kernel']}`, mutants that change nothing: {why}.")
    if real:
        rows.append(["all", "", "", "", "", "", f"{found / real:.0%} of {real}"])
    table = markdown(["kernel", "from", "variant", "numbers", "findings", "s", "mutants found"], rows)
    return "\n".join([table, "", *lines]).rstrip()


def sanitizer_table(records: Sequence[Record]) -> str:
    """Return the findings of compute-sanitizer: a row for each kernel, a column for each of its tools."""
    found = {tuple(one["what"].split(" ", 1)): one for one in records if one["record"] == "check"}
    tools = [*dict.fromkeys(tool for tool, _ in found)]
    words = {(1, 0): "passed", (0, 1): "failed"}
    rows = [
        [kernel, *(words[one["passed"], one["failed"]] if (one := found.get((tool, kernel))) else "" for tool in tools)]
        for kernel in sorted({kernel for _, kernel in found})
    ]
    return markdown(["kernel", *tools], rows)
