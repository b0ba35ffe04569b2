"""What was traced before is not brought into its canonical form again, and never taken for something else."""

from __future__ import annotations

import itertools

import gemmule.epilogue as ep
from gemmule.core import tracing as traced
from gemmule.core.tracing import accumulated, lowered, matrix_input, number_input


def values():
    acc, x, y, s = accumulated(), matrix_input("x", 1), matrix_input("y", 2), number_input("s", 3)
    return [
        acc, acc + x, x + acc, acc - x, x - acc, acc + y, acc + x + y, acc + (x + y), acc * s, acc + s, acc * 0.0,
        acc * -0.0, acc * 2, acc * 2.5, acc * float("nan"), ep.where(acc < x, acc, x), ep.where(acc < x, x, acc),
        ep.where(acc <= x, acc, x), ep.exp(acc), ep.log(acc), (acc + x) * (acc + x), -acc, matrix_input("y", 1) + acc,
        # The places of parameters order them.
        x * y, matrix_input("x", 2) * matrix_input("y", 1),
    ]  # fmt: skip


def test_the_second_time_gives_what_the_first_gave():
    for value, same in zip(values(), values(), strict=True):
        assert lowered(same, "it") is lowered(value, "it")


def test_it_is_what_would_be_found_without_it():
    traced._cache.clear()
    for _, value in itertools.product(range(2), values()):
        assert lowered(value, "it") == traced._canonical(value, "it")


def test_what_is_kept_is_bounded():
    for number in range(2 * traced._MOST_CACHED):
        lowered(accumulated() * number, "it")
        assert len(traced._cache) <= traced._MOST_CACHED
