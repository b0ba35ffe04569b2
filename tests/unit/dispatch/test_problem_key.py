"""What tells products apart for tuned configurations, and what does not."""

from __future__ import annotations

import dataclasses
import json

import pytest

from gemmule.core.errors import FileFormatError
from gemmule.dispatch.problem_key import ProblemKey, key_of, problem_of
from support.tuned_entries import OTHERS, PROBLEM, chosen, table

__all__ = ["table"]


@pytest.mark.parametrize("what", OTHERS)
def test_a_key_tells_apart_what_matters(what):
    assert key_of(OTHERS[what]) != key_of(PROBLEM)
    keys = [key_of(other) for other in OTHERS.values()]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    "same",
    [
        dataclasses.replace(PROBLEM, alpha=2.5),
        dataclasses.replace(PROBLEM, a=dataclasses.replace(PROBLEM.a, row_stride=1040)),
        dataclasses.replace(PROBLEM, a=dataclasses.replace(PROBLEM.a, alignment=256)),
        dataclasses.replace(
            PROBLEM,
            batch=(1,),
            **{name: dataclasses.replace(getattr(PROBLEM, name), batch_strides=(7,)) for name in "abd"},
        ),
    ],
    ids=["alpha", "padding of whole 16 bytes", "an address that is more aligned", "a batch of one"],
)
def test_a_key_leaves_out_what_does_not(same):
    assert key_of(same) == key_of(PROBLEM)


def test_a_shared_operand_is_not_one_for_each():
    own = OTHERS["batch"]
    shared = dataclasses.replace(own, b=dataclasses.replace(own.b, batch_strides=(0,)))
    assert key_of(shared) == key_of(own)._replace(shared="b")
    two = dataclasses.replace(own, batch=(3, 2), **{
        name: dataclasses.replace(getattr(own, name), batch_strides=(2 * step, step))
        for name, step in (("a", 520 * 1032), ("b", 1032 * 584), ("d", 520 * 584))
    })  # fmt: skip
    assert key_of(two).batch == (6,)


def test_matrices_of_two_strides_have_no_key(table):
    strided = dataclasses.replace(PROBLEM, a=dataclasses.replace(PROBLEM.a, row_stride=3000, col_stride=2))
    assert key_of(strided) is None
    assert chosen(strided).chosen_by != "tuned"


@pytest.mark.parametrize("what", [name for name in OTHERS if name != "pitch"])
def test_a_key_gives_a_product_that_has_it(what):
    key = key_of(OTHERS[what])
    problem = problem_of(key)
    assert key_of(problem) == key
    assert problem.beta == (problem.c is not None)
    assert ProblemKey.of_dict(json.loads(json.dumps(key.as_dict()))) == key


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"m": "520"}, "whole numbers"),
        ({"m": -1}, "whole numbers"),
        ({"m": True}, "whole numbers"),
        ({"layout": None}, "texts"),
    ],
)
def test_fields_of_a_wrong_kind_are_refused(fields, said):
    with pytest.raises(FileFormatError, match=said):
        ProblemKey.of_dict(key_of(PROBLEM).as_dict() | fields)
    with pytest.raises(FileFormatError, match="lacks"):
        ProblemKey.of_dict({"m": 1})
