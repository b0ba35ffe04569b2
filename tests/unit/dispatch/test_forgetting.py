"""What was chosen or planned while choices are forgotten is not found afterwards."""

from __future__ import annotations

import threading
import types

import pytest

from gemmule.api.calls.cached_calls import DeviceCall
from gemmule.api.calls.call_cache import CALLS
from gemmule.core.arch import Arch
from gemmule.dispatch import select, tuned_table
from gemmule.dispatch.choices import choice_cache
from gemmule.lab.products import gemm_problem
from support.tuned_entries import LIBRARY

HOPPER = Arch.parse("sm_90a")
PROBLEM = gemm_problem(24, 40, 56, "float16", "float32", "tn")


@pytest.fixture(autouse=True)
def _nothing_chosen():
    choice_cache.clear_choices()
    yield
    choice_cache.clear_choices()


def choose():
    return select.choose(PROBLEM, HOPPER, multiprocessors=132)


def test_a_choice_made_while_choices_are_forgotten_is_not_kept(monkeypatch):
    asked, original = [], select._choose

    def choosing(*given):
        asked.append(given)
        choice = original(*given)
        if len(asked) == 1:
            # As another thread may, when this one has looked at the tables as they were.
            choice_cache.clear_choices()
        return choice

    monkeypatch.setattr(select, "_choose", choosing)
    choose()
    choose()
    assert len(asked) == 2
    choose()
    assert len(asked) == 2


def test_a_grouped_or_quantised_choice_made_while_choices_are_forgotten_is_not_kept():
    asked = []

    @choice_cache.cached_choice
    def choosing(problem, arch, multiprocessors, chip):
        asked.append(problem)
        if len(asked) == 1:
            choice_cache.clear_choices()
        return problem

    for _ in range(3):
        choosing(PROBLEM, HOPPER)
    assert len(asked) == 2


def test_a_product_planned_before_choices_were_forgotten_is_not_kept():
    began = choice_cache.generation()
    choice_cache.clear_choices()
    CALLS.add(LIBRARY, "stale", None, (0, 16), 32, began)
    assert CALLS.by_description.get("stale") is None
    CALLS.add(LIBRARY, "fresh", None, (0, 16), 32, choice_cache.generation())
    assert CALLS.by_description.get("fresh") is not None


@pytest.mark.parametrize("forgotten", [False, True])
def test_arrays_do_not_find_a_product_that_was_forgotten(forgotten):
    product = DeviceCall(lambda addresses, stream: None, ((0, 0), (0, 0)), lambda: None, choice_cache.generation())
    again = object()
    library = types.SimpleNamespace(replay=lambda *given: again, guards_kinds=True)
    if forgotten:
        choice_cache.clear_choices()
    CALLS.add_replay(library, product, (("arrays",), ("shapes",)), (object(), object()), None, (256, 512, 1024), None)
    assert CALLS.by_identity.get(("arrays",)) is (None if forgotten else again)


def test_a_table_that_is_read_while_tables_are_forgotten_is_not_kept(monkeypatch):
    reading, go_on = threading.Event(), threading.Event()

    def read(chip, user):
        reading.set()
        assert go_on.wait(60)
        return object()

    monkeypatch.setattr(tuned_table, "TunedTable", read)
    monkeypatch.setattr(tuned_table, "_tables", {})
    reader = threading.Thread(target=tuned_table.table_for, args=("a GPU",))
    forgetter = threading.Thread(target=tuned_table.clear_tables)
    reader.start()
    assert reading.wait(60)
    forgetter.start()
    forgetter.join(0.1)
    go_on.set()
    reader.join()
    forgetter.join()
    assert tuned_table._tables == {}
