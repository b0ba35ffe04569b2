"""Findings for other programs: records for JSON, SARIF 2.1.0, and annotations of GitHub."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from .report import Finding
from .source_text import shown_path

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
#: Kinds of findings and what they are, as SARIF's rules.
KINDS = {
    "race": "Two accesses to the same place, at least one a write, that nothing orders",
    "out of bounds": "An access outside of the operands, of shared or of local memory",
    "misaligned": "An address that is no multiple of the size of the access",
    "uninitialised": "A value that nobody wrote decides a branch or an address, or is stored",
    "barrier": "A barrier or mbarrier that is misused",
    "unfinished": "A warp ends, or memory is reused, before asynchronous operations are awaited",
    "deadlock": "Threads wait for what cannot come",
    "trap": "The kernel executed trap",
}


def record(finding: Finding) -> dict[str, Any]:
    """Return a finding as plain data: kind, kernel, place, message and who it is about."""
    source = None if finding.instruction is None else finding.instruction.source
    return {
        "kind": finding.kind,
        "kernel": finding.kernel_name,
        "file": None if source is None else shown_path(source.file),
        "line": None if source is None else source.line,
        "text": finding.line_text,
        "message": finding.message,
        "ptx": None if finding.instruction is None else str(finding.instruction),
        "cta": finding.cta,
        "warp": finding.warp,
        "lanes": list(finding.lanes),
        "space": finding.space,
        "address": finding.address,
        "times": finding.times,
    }


def sarif(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return findings as a SARIF log."""
    results = []
    for finding in findings:
        source = None if finding.instruction is None else finding.instruction.source
        result: dict[str, Any] = {"ruleId": finding.kind, "level": "error", "message": {"text": str(finding)}}
        if source is not None:
            uri = quote(shown_path(source.file).replace("\\", "/"))
            place = {"artifactLocation": {"uri": uri}, "region": {"startLine": max(source.line, 1)}}
            result["locations"] = [{"physicalLocation": place}]
        results.append(result)
    rules = [{"id": kind, "shortDescription": {"text": text}} for kind, text in KINDS.items()]
    driver = {"name": "gemmule check", "rules": rules}
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def annotation(finding: Finding) -> str:
    """Return a finding as a command that GitHub's runner shows next to the source line."""
    source = None if finding.instruction is None else finding.instruction.source
    place = "" if source is None else f" file={_escaped(shown_path(source.file), ',:')},line={max(source.line, 1)}"
    return f"::error{place}::{_escaped(str(finding))}"


def _escaped(text: str, more: str = "") -> str:
    for sign in "%\r\n" + more:
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text
