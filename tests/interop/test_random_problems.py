"""The random problems of benchmarks/random_problems.py on the host, and that they see what is wrong."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from random_draw import draw
from random_workers import Setting, check

HOST = Setting(seed=11, most=40, cupy=False, device="cpu", executor="host")


def seeing(spoil, indices=range(60)):
    """Return the problems with elements of whom a spoiled result is seen, and those of whom it is not."""
    large = [i for i in indices if all(draw(HOST.seed, i, most=HOST.most, cupy=False).result)]
    found = check(HOST, large, spoil)
    return [one for one in found if one.failure], [one for one in found if not one.failure]


def test_right_results_are_right():
    assert [one.failure for one in check(HOST, range(80)) if one.failure] == []


def test_a_seed_gives_the_same_problems():
    assert draw(5, 17) == draw(5, 17)
    assert draw(5, 17) != draw(6, 17)


def test_an_element_that_is_off_is_seen():
    def spoil(got):
        last = tuple(extent - 1 for extent in got.shape)
        # Another value than it was, NaN and infinity included.
        old = got[last].float()
        got[last] = (7.0 if not old.isfinite() else float(old) * 1.5 + 3) if got.is_floating_point() else ~got[last]

    seen, _ = seeing(spoil)
    assert len(seen) >= 40
    assert all("elements wrong" in one.failure for one in seen)


def test_an_element_that_was_not_written_is_seen():
    seen, unseen = seeing(lambda got: got[..., -1].fill_(float("nan") if got.is_floating_point() else -77))
    # Where NaN is expected, an element that was not written does not show.
    assert len(seen) > 3 * len(unseen)


def test_what_is_written_beside_the_result_is_seen():
    def spoil(got):
        storage = got.untyped_storage()
        got.new_empty(0).set_(storage, 0, (storage.nbytes() // got.element_size(),))[-1] = 1

    given = [i for i in range(60) if draw(HOST.seed, i, most=HOST.most, cupy=False).target != "new"]
    seen, unseen = seeing(spoil, given)
    assert seen
    assert not unseen


def test_what_raises_is_a_failure_of_its_own_problem():
    def spoil(got):
        raise ValueError("on purpose")

    found = check(HOST, range(3), spoil)
    assert all("ValueError: on purpose" in one.failure for one in found)
