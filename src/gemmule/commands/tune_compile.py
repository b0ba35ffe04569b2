"""Compilation of the candidates of ``gemmule tune``, in parallel processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import CompileError
from .progress import steps_progress

if TYPE_CHECKING:
    from ..compiler.pool import Job
    from ..core.arch import Arch
    from ..core.spec import Choice
    from ..lab.tuning.tuner import Search


def jobs(searches: Iterable[Search], arch: Arch) -> dict[Job, list[tuple[Search, Choice]]]:
    """Return the compilation jobs, each with the candidates that need it."""
    from ..compiler.pool import jobs_of

    found: dict[Job, list[tuple[Search, Choice]]] = {}
    for search in searches:
        for choice in search.choices():
            for job in jobs_of(choice, search.problem, arch):
                found.setdefault(job, []).append((search, choice))
    return found


def compiled(searches: Sequence[Search], arch: Arch, workers: int | None) -> list[Search]:
    """Compile in parallel processes; return the searches without the candidates that do not compile."""
    from ..compiler.pool import compile_all

    wanted = jobs(searches, arch)
    failed: set[tuple[int, str, Any]] = set()
    with steps_progress("compiling", len(wanted)) as step:
        for job, result in compile_all(list(wanted), workers):
            if isinstance(result, CompileError):
                click.echo(f"left out: {job} does not compile: {result}", err=True)
                failed |= {(id(search), choice.spec.name, choice.config) for search, choice in wanted[job]}
            step(job.spec.name, 1)
    found = []
    for search in searches:
        tried = tuple(c for c in search.candidates if (id(search), c.spec.name, c.config) not in failed)
        found.append(dataclasses.replace(search, candidates=tried))
    return found
