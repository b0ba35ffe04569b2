"""Caches of results: of the last call, or of each tuple of configs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, Final, ParamSpec, TypeVar, cast

Args = ParamSpec("Args")
Result = TypeVar("Result")
First = TypeVar("First")
#: Results of a function that `cache_for_configs` keeps; then all of them make room.
_CAPACITY = 64
#: The second argument of a call with one.
_MISSING: Final = object()


def cache_last_call(function: Callable[Args, Result]) -> Callable[Args, Result]:
    """Cache the result of the last call of a function with one or two positional arguments, which must be immutable.

    A choice calls a kernel's `refuses` once, then its `why_not` with each config. Arguments are compared by identity:
    comparison by value would take as long as many a call.
    """
    uncached: Callable[..., Result] = function
    # Replaced as a whole, so that threads see arguments and result of one call.
    last: tuple[object, object, Result] | None = None

    # A choice calls dozens: any number of arguments, by name too, would take five times as long.
    @functools.wraps(function)
    def cached(first: object, second: object = _MISSING, /) -> Result:
        nonlocal last
        found = last
        if found is not None and found[0] is first and found[1] is second:
            return found[2]
        result = uncached(first) if second is _MISSING else uncached(first, second)
        last = first, second, result
        return result

    return cast("Callable[Args, Result]", cached)


def cache_for_configs(
    function: Callable[Concatenate[First, Args], Result],
) -> Callable[Concatenate[First, Args], Result]:
    """Cache the results of a function by the identity of its first argument, a tuple, and the values of the others.

    A kernel's configs are one tuple of the process; comparing their fields would take longer than the call.
    """
    results: dict[tuple[object, ...], tuple[First, Result]] = {}

    @functools.wraps(function)
    def cached(first: First, /, *args: Args.args, **named: Args.kwargs) -> Result:
        key = (id(first), args, tuple(named.items()) if named else ())
        found = results.get(key)
        if found is not None and found[0] is first:
            return found[1]
        result = function(first, *args, **named)
        if isinstance(first, tuple):
            if len(results) >= _CAPACITY:
                results.clear()
            results[key] = (first, result)
        return result

    return cached
