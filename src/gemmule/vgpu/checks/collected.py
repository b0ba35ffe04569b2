"""Findings of the checks, each place once."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..engine.batch import Batch
from ..engine.observer import Observer
from ..ptx.module import Instruction
from ..report import CheckError, Finding
from ..types import Array


class Collected:
    """Findings by kind and instruction: the first of each, with the number of times.

    Parameters
    ----------
    schedule : str
        The schedule, where findings are to name it.
    """

    def __init__(self, schedule: str = "") -> None:
        self._schedule = schedule
        self._found: dict[tuple[str, str, int], Finding] = {}

    def add(
        self, batch: Batch, kind: str, message: str, instruction: Instruction | None, index: Array, **where: Any
    ) -> None:
        """Add a finding about lanes of a batch; `where` is space and address."""
        self.take(batch.finding(kind, message, instruction, index, **where))

    def take(self, finding: Finding) -> None:
        """Add a finding."""
        key = (finding.kind, finding.kernel, -1 if finding.instruction is None else finding.instruction.index)
        known = self._found.get(key)
        if known is None:
            self._found[key] = finding
        else:
            self._found[key] = dataclasses.replace(known, times=known.times + finding.times)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return the findings in the order of their first appearance."""
        return tuple(self._found.values())

    def check(self) -> None:
        """Raise the findings.

        Raises
        ------
        CheckError
            If there are any.
        """
        if self._found:
            raise CheckError(self.findings)


class Check(Observer):
    """An observer that collects findings.

    Parameters
    ----------
    collected : Collected
        Receives the findings.
    """

    def __init__(self, collected: Collected) -> None:
        self._collected = collected
