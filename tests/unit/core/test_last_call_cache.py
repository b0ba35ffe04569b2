"""The last answer is given again to who asks with the same objects, and to nobody else."""

from __future__ import annotations

import pytest

from gemmule.core.last_call_cache import cache_last_call


@pytest.fixture
def asked():
    return []


@pytest.fixture
def summed(asked):
    @cache_last_call
    def summed(first, second):
        asked.append((first, second))
        return [*first, *second]

    return summed


def test_the_same_objects_are_asked_about_once(summed, asked):
    one, other = [1], [2]
    assert summed(one, other) is summed(one, other)
    assert len(asked) == 1


def test_equal_objects_are_not_the_same(summed, asked):
    one, other = [1], [2]
    summed(one, other)
    assert summed([1], other) == summed(one, [2]) == [1, 2]
    one.append(3)
    assert summed(one, other) == [1, 3, 2]
    assert len(asked) == 4


def test_each_of_the_two_counts(summed):
    one, other, third = [1], [2], [3]
    assert summed(one, other) == [1, 2]
    assert summed(one, third) == [1, 3]
    assert summed(third, third) == [3, 3]
    assert summed(one, other) == [1, 2]


def test_another_number_of_arguments_is_another_call():
    @cache_last_call
    def total(*numbers):
        return sum(numbers)

    assert (total(1, 2), total(1), total(1, 2), total(1)) == (3, 1, 3, 1)


def test_an_error_is_no_answer():
    answers = iter([ValueError("no"), 7])

    @cache_last_call
    def ask(first, second):
        answer = next(answers)
        if isinstance(answer, ValueError):
            raise answer
        return answer

    with pytest.raises(ValueError, match="no"):
        ask(1, 2)
    assert ask(1, 2) == 7
