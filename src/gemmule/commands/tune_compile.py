"""Compiling what ``gemmule tune`` will measure, in parallel processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
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
    """Return what must be compiled, each with the candidates that need it."""
    from ..compiler.pool import Job as Compiling

    found: dict[Job, list[tuple[Search, Choice]]] = {}
    for search in searches:
        for choice in search.choices():
            found.setdefault(Compiling(choice.spec, choice.config, choice.signature(search.problem), arch), []).append(
                (search, choice)
            )
            if then := choice.following(search.problem):
                job = Compiling(then.spec, then.config, then.spec.signature(then.problem, then.config), arch)
                found.setdefault(job, []).append((search, choice))
    return found


def compiled(searches: Sequence[Search], arch: Arch, workers: int | None) -> list[Search]:
    """Compile in parallel processes; return the searches without the candidates that do not compile."""
    wanted = jobs(searches, arch)
    failed: set[tuple[int, str, Any]] = set()
    with steps_progress("compiling", len(wanted)) as step:
        for job, error in _compiling(list(wanted), workers):
            if error is not None:
                click.echo(f"left out: {job} does not compile: {error}", err=True)
                failed |= {(id(search), choice.spec.name, choice.config) for search, choice in wanted[job]}
            step(job.spec.name, 1)
    found = []
    for search in searches:
        tried = tuple(c for c in search.candidates if (id(search), c.spec.name, c.config) not in failed)
        found.append(dataclasses.replace(search, candidates=tried))
    return found


def _compiling(jobs: Sequence[Job], workers: int | None) -> Iterator[tuple[Job, CompileError | None]]:
    """Compile, and yield what failed and what did not, even where a config makes the compiler itself fall over."""
    from concurrent.futures.process import BrokenProcessPool

    from ..compiler.pool import compile_all

    left = dict.fromkeys(jobs)
    # The second time finds most in the cache; what still breaks is compiled by itself.
    for portions in ([list(left)], [list(left)], None):
        for portion in portions if portions is not None else [[job] for job in left]:
            wanted = [job for job in portion if job in left]
            try:
                for job, result in compile_all(wanted, workers):
                    del left[job]
                    yield job, result if isinstance(result, CompileError) else None
            except BrokenProcessPool:
                if portions is None:
                    del left[wanted[0]]
                    yield wanted[0], CompileError("the compiler's process ended without a word")
        if not left:
            return
