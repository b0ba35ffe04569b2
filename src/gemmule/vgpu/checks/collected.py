"""Findings of the checks, each place once."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from ..engine.batch import Batch
from ..engine.observer import Observer
from ..ptx.module import Instruction
from ..report import CheckError, DeadlockError, FaultError, Finding
from ..types import Array

#: The mend where several warps write one place.
ONE_WRITER = "let one thread write it, or all of them by an atomic operation"


class Collected:
    """Findings by kind and instruction: the first of each, with the number of times.

    Parameters
    ----------
    compiled : bool
        Whether the kernel comes from a compiler whose choices its author cannot change: `note` then adds no finding.

    Attributes
    ----------
    notes : list of Finding
        Remarks, which are no findings.
    """

    def __init__(self, compiled: bool = False) -> None:
        self._compiled = compiled
        self.notes: list[Finding] = []
        self._found: dict[tuple[str, str, int], Finding] = {}

    def add(
        self, batch: Batch, kind: str, message: str, instruction: Instruction | None, index: Array, **where: Any
    ) -> None:
        """Add a finding about lanes of a batch; `where` is space and address."""
        self.take(batch.finding(kind, message, instruction, index, **where))

    def note(self, batch: Batch, kind: str, message: str, instruction: Instruction, index: Array) -> None:
        """Add a finding that is a choice of a compiler; a note where one made the kernel."""
        if not self._compiled:
            self.add(batch, kind, message, instruction, index)
        elif all(one.instruction != instruction for one in self.notes):
            self.notes.append(batch.finding(kind, message, instruction, index))

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

    @contextlib.contextmanager
    def before_faults(self) -> Iterator[None]:
        """Put the findings so far before those of a fault or deadlock that ends the run inside the block."""
        try:
            yield
        except (FaultError, DeadlockError) as error:
            if not self._found:
                raise
            raise type(error)((*self.findings, *error.findings)) from error

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
