"""What the virtual GPU's checks find: in kernels without one of their instructions, and in examples of NVIDIA's."""

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


def _verdict(record: Record) -> str:
    if "error" in record:
        return f"does not run: {record['error']}"
    wrong = record["wrong"]
    return f"wrong under {', '.join(wrong)}" if wrong else f"right under {', '.join(record['schedules'])}"


def examples_table(records: Sequence[Record]) -> str:
    """Return a row for each variant of an example: whether its numbers are right, and what the checks find.

    Of several record files, each with its experiment block, the last that has an example counts for it.
    """
    by_file: dict[str, list[Record]] = {}
    here: set[str] = set()
    for record in records:
        if record["record"] == "experiment":
            here = set()
        elif record["record"] == "example":
            if record["file"] not in here:
                by_file[record["file"]] = []
                here.add(record["file"])
            by_file[record["file"]].append(record)
    chosen = [record for runs in by_file.values() for record in runs]
    reasons = {one["message"]: one["reason"] for record in chosen for one in record.get("findings", ())}
    numbers = {message: number for number, message in enumerate(reasons, 1)}
    rows = [
        [
            f"`{record['file']}`",
            record["what"],
            _verdict(record),
            ", ".join(str(numbers[one["message"]]) for one in record.get("findings", ())),
        ]
        for record in chosen
    ]
    table = markdown(["example", "variant", "numbers", "findings"], rows)
    (source,) = {(record["repository"], record["commit"][:10]) for record in chosen}
    notes = [f'{number}. "{message}": {reasons[message]}.' for message, number in numbers.items()]
    return "\n".join([f"{source[0]}, commit {source[1]}.", "", table, "", *notes])


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
