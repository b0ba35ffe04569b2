"""Frozen dataclasses with lazy methods do as those of `dataclasses` do."""

import copy
import dataclasses
import inspect
import pickle
from typing import ClassVar

import pytest

from gemmule.core.dataclass import dataclass


def classes(decorate):
    """Return a class and a subclass of it, decorated."""

    class Pair:
        """Two numbers, and what is not compared."""

        first: int
        second: float = 2.5
        names: list = dataclasses.field(default_factory=list, compare=False)
        hidden: int = dataclasses.field(default=7, repr=False)
        unset: int = dataclasses.field(init=False, compare=False, repr=False)
        count: ClassVar[int] = 3
        late: int = dataclasses.field(default=1, kw_only=True)

        def __post_init__(self):
            object.__setattr__(self, "unset", self.first + 1)

    Pair = decorate(Pair)

    class Triple(Pair):
        third: str = "3"
        second: float = 5.5

        def __repr__(self):
            return "own"

    return Pair, decorate(Triple)


OURS, THEIRS = dataclass(frozen=True), dataclasses.dataclass(frozen=True)


def outcome(call):
    """Return the result, or the error's type and text."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


CALLS = (
    lambda pair, _: repr(pair(1)),
    lambda pair, _: repr(pair(1, 2, ["x"], 4, late=5)),
    lambda pair, _: pair(),
    lambda pair, _: pair(1, 2, [], 4, 5),
    lambda pair, _: pair(1, unset=3),
    lambda pair, _: (pair(1).unset, pair(1).hidden, pair(1).late, pair.count),
    lambda pair, _: pair(1).names is pair(1).names,
    lambda pair, _: (pair(1) == pair(1), pair(1, names=[3]) == pair(1), pair(1) == pair(2), pair(1) == 1),
    lambda pair, _: (hash(pair(1)) == hash(pair(1)), hash(pair(1)) == hash(pair(2))),
    lambda pair, triple: (pair(1) == triple(1), triple(1) == triple(1), len({triple(1), triple(1), triple(2)})),
    lambda _, triple: (repr(triple(1)), triple(1).second, triple(1, third="x").third),
    lambda pair, _: setattr(pair(1), "first", 3),
    lambda pair, _: setattr(pair(1), "other", 3),
    lambda pair, _: delattr(pair(1), "first"),
    lambda _, triple: setattr(triple(1), "third", 3),
    lambda pair, _: repr(dataclasses.replace(pair(1), second=9.5)),
    lambda pair, _: dataclasses.replace(pair(1), unset=9),
    lambda _, triple: dataclasses.asdict(triple(1)),
    lambda pair, triple: [[one.name for one in dataclasses.fields(cls)] for cls in (pair, triple)],
    lambda pair, triple: [cls.__match_args__ for cls in (pair, triple)],
    lambda pair, triple: [
        [str(one).partition(" =")[0] for one in inspect.signature(cls).parameters.values()] for cls in (pair, triple)
    ],
    lambda pair, _: repr(copy.deepcopy(pair(1, names=[1]))),
    lambda pair, _: (hasattr(pair, "names"), hasattr(pair, "first"), pair.second),
)


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_as_of_dataclasses(number):
    call = CALLS[number]
    assert outcome(lambda: call(*classes(OURS))) == outcome(lambda: call(*classes(THEIRS)))


def test_each_kind_inherits_from_the_other():
    for base, own in ((OURS, THEIRS), (THEIRS, OURS)):
        pair, _ = classes(base)

        @own
        class Mixed(pair):
            fourth: int = 4

        assert (Mixed(1).first, Mixed(1).fourth, Mixed(1) == Mixed(1)) == (1, 4, True)
        with pytest.raises(dataclasses.FrozenInstanceError):
            Mixed(1).fourth = 5


def test_a_hash_and_an_equality_of_its_own_stay():
    @OURS
    class Same:
        number: int

        def __eq__(self, other):
            return True

        def __hash__(self):
            return 3

    assert Same(1) == Same(2)
    assert hash(Same(1)) == 3


def test_one_array_is_compared_as_of_dataclasses():
    @OURS
    class One:
        value: object

    class Odd:
        def __eq__(self, other):
            return []

        def __hash__(self):
            return 1

    assert One(1) == One(1)
    assert (One(Odd()) == One(Odd())) is False


@OURS
class Stored:
    """At module level, for pickle."""

    number: int = 1


def test_pickled():
    assert pickle.loads(pickle.dumps(Stored(3))) == Stored(3)
