"""Records in the repository are cited, or are draws, which all stay (docs/lab.md); what pages cite is there."""

from __future__ import annotations

import json
import re
from pathlib import Path

from pages.blocks import pages

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "results"
#: Folders whose files cite records, beside pages, by their endings.
CITING = ("src", "tests", "tools", "benchmarks/records", "benchmarks/experiments", "benchmarks/fuzz")
ENDINGS = {".py", ".json", ".jsonl", ".sh"}
#: A record by its time, by its file, or by a picture of it.
CITED = re.compile(r"\b\d{8}T\d{6}(?:-[a-z0-9-]+)?")


def citations(text: str) -> set[str]:
    return set(CITED.findall(text))


def stands_for(citation: str, record: str) -> bool:
    """Whether a citation is of a record."""
    return record.partition("-")[0] == citation or f"{citation}-".startswith(f"{record}-")


def is_draw(path: Path) -> bool:
    """Whether a record is of random products whose seed follows from the measured commit."""
    with path.open() as lines:
        first = json.loads(next(lines))
    seeds = {draw["seed"] for draw in first.get("draws", ())}
    return seeds == {int(str(first["commit"])[:8], 16)}


def uncited(records: list[Path], cited: set[str]) -> list[str]:
    """Return the names of records that nothing cites and that are no draws."""
    by_time: dict[str, list[str]] = {}
    for one in cited:
        by_time.setdefault(one.partition("-")[0], []).append(one)
    return [
        path.name
        for path in records
        if not any(stands_for(one, path.stem) for one in by_time.get(path.stem.partition("-")[0], ()))
        and not is_draw(path)
    ]


def dead(cited: set[str], records: list[Path]) -> list[str]:
    """Return the citations that are of no record."""
    return sorted(one for one in cited if not any(stands_for(one, path.stem) for path in records))


RECORDS = sorted(RESULTS.iterdir())


def test_each_record_is_cited_or_a_draw():
    files = [path for folder in CITING for path in (ROOT / folder).rglob("*") if path.suffix in ENDINGS]
    cited = citations("\n".join(path.read_text() for path in (*files, *pages(ROOT))))
    assert uncited(RECORDS, cited) == []


def test_cited_records_are_there():
    assert dead(citations("\n".join(page.read_text() for page in pages(ROOT))), RECORDS) == []


def test_an_uncited_record_and_a_dead_citation_are_found(tmp_path):
    names = ("20260101T000000-host-01234567ab", "20260101T000000-host-01234567ab-2", "20260102T000000-host-01234567ab")
    records = [tmp_path / f"{name}.jsonl" for name in names]
    seeds = (0x01234567, 0x01234568, 0x01234567)
    for path, seed in zip(records, seeds, strict=True):
        path.write_text(json.dumps({"record": "experiment", "commit": "01234567ab", "draws": [{"seed": seed}]}) + "\n")
    assert uncited(records, set()) == [records[1].name]
    assert uncited(records, {names[1]}) == uncited(records, {"20260101T000000"}) == []
    assert uncited(records, {names[0]}) == [records[1].name]
    assert dead({"20260101T000000", f"{names[2]}-draws-dark", names[0], "20260102T000000-host-0123"}, records) == [
        "20260102T000000-host-0123"
    ]
