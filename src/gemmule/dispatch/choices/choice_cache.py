"""The caches of choices and of what follows from them, and how all of them are cleared."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gemmule.core.arch import Arch
from gemmule.core.spec import Choice

from ..tuned_table import reload_tables

#: Most cached choices.
MOST_CHOICES = 4096
# Number of invalidations. It is part of the key: a choice that was made before one and cached after it is never found.
_generation = [0]
#: Functions that clear caches derived from choices.
_clear_functions: list[Callable[[], object]] = []


def clear_choices() -> None:
    """Clear this process's caches of plans and kernel choices.

    Call it after a change of ``GEMMULE_EXECUTOR``, ``GEMMULE_PACK``, ``GEMMULE_RECORD`` or the user's tuned table:
    cached calls ignore the change otherwise. `load_pack` calls it itself.
    """
    # Before the next generation, which makes none of its choices by the old files.
    reload_tables()
    _generation[0] += 1
    for clear in _clear_functions:
        clear()


def generation() -> int:
    """Return the number of invalidations; a choice made before one must not be cached after it."""
    return _generation[0]


def register_clear(clear: Callable[[], object]) -> None:
    """Register a function that clears a cache derived from choices, for `clear_choices`."""
    _clear_functions.append(clear)


def cached_choice(choose: Callable[[Any, Arch, int | None, str | None], Choice]) -> Callable[..., Choice]:
    """Return a choice that is cached until choices are cleared; what a GPU is comes by names, as of `choose`."""

    @functools.lru_cache(MOST_CHOICES)
    def cached(problem: Any, arch: Arch, multiprocessors: int | None, chip: str | None, generation: int) -> Choice:
        del generation
        return choose(problem, arch, multiprocessors, chip)

    def chosen(problem: Any, arch: Arch, /, *, multiprocessors: int | None = None, chip: str | None = None) -> Choice:
        return cached(problem, arch, multiprocessors, chip, generation())

    register_clear(cached.cache_clear)
    return functools.update_wrapper(chosen, choose)
