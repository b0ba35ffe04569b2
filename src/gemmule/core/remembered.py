"""The last answer to a question, for who asks the same again at once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

First = TypeVar("First")
Second = TypeVar("Second")
Answer = TypeVar("Answer")


def remembered(ask: Callable[[First, Second], Answer]) -> Callable[[First, Second], Answer]:
    """Let a function of two things that do not change answer the same two at once.

    A choice asks a kernel what it refuses, and then once more with each config. The very same objects are meant: to
    compare them would take as long as many an answer.
    """
    # Replaced as a whole: threads see one answer with what it was given for.
    last: list[tuple[First, Second, Answer]] = []

    @functools.wraps(ask)
    def answer(first: First, second: Second) -> Answer:
        for one, other, known in last:
            if one is first and other is second:
                return known
        found = ask(first, second)
        last[:] = [(first, second, found)]
        return found

    return answer
