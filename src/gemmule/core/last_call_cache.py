"""Answers that are remembered: the last one, for who asks the same again at once, or one for each list of configs."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

Given = ParamSpec("Given")
Answer = TypeVar("Answer")
Of = TypeVar("Of")
#: Most answers that `cache_for_configs` keeps of a function.
_MOST = 64


def cache_last_call(ask: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """Let a function of things that do not change answer the same ones at once, which are given by position.

    A choice asks a kernel what it refuses, and then once more with each config. The very same objects are meant: to
    compare them would take as long as many an answer.
    """
    # Replaced as a whole: threads see one answer with what it was given for.
    last: list[tuple[tuple[object, ...], Answer]] = []

    @functools.wraps(ask)
    def answer(*given: Given.args, **named: Given.kwargs) -> Answer:
        for known, found in last:
            if not named and all(map(operator.is_, known, given)):
                return found
        found = ask(*given, **named)
        if not named:
            last[:] = [(given, found)]
        return found

    return answer


def cache_for_configs(
    ask: Callable[Concatenate[Of, Given], Answer],
) -> Callable[Concatenate[Of, Given], Answer]:
    """Let a function keep its answers for each tuple that it is first given, and for the values of what follows.

    A kernel's own configs are one tuple, which stays: to compare their fields would take longer than the answer.
    """
    known: dict[tuple[object, ...], tuple[Of, Answer]] = {}

    @functools.wraps(ask)
    def answer(of: Of, /, *given: Given.args, **named: Given.kwargs) -> Answer:
        key = (id(of), *given, *named.items())
        found = known.get(key)
        if found is not None and found[0] is of:
            return found[1]
        value = ask(of, *given, **named)
        if isinstance(of, tuple) and len(known) < _MOST:
            known[key] = (of, value)
        return value

    return answer
