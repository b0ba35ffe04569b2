"""When events happen by rule, by hand: queues, completions, and the chain that leads to the end."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.lab.explain.steps import Rules, chain, happenings

RULES = Rules(flop=100.0, shared_bytes=10.0, copy_bytes=4.0, copy_latency=30.0)


@dataclasses.dataclass
class Event:
    kind: str
    warps: tuple = (0,)
    cta: int = 0
    instructions: int = 0
    passes: int = 0
    written: int = 0
    shared_written: int = 0
    waits: tuple = ()
    signals: tuple = ()
    bytes: int = 0
    shared_bytes: int = 0
    flop: int = 0
    reads: tuple = ()


def token(name, number=0):
    return (name, 0, number)


def test_copies_queue_and_arrive_after_the_latency():
    events = [
        Event("copy", instructions=5, bytes=40, signals=(token("full", 0),)),
        Event("copy", instructions=1, bytes=80, signals=(token("full", 1),)),
        Event("wait", (4,), instructions=2, waits=(token("full", 1),)),
    ]
    first, second, wait = happenings(events, RULES, 1)
    assert (first.reached, first.begun, first.done) == (5, 5, 5 + 10 + 30)
    # The second is asked for at once, and served behind the first.
    assert (second.reached, second.begun, second.done) == (6, 15, 15 + 20 + 30)
    assert (wait.reached, wait.passed, wait.awaited) == (2, 65, 1)


def test_a_completion_needs_all_who_contribute():
    full = token("full")
    events = [
        Event("arrive", (0,), instructions=50, signals=(full,)),
        Event("arrive", (1,), instructions=70, signals=(full,)),
        Event("wait", (2,), waits=(full,)),
        Event("wait", (3,), instructions=90, waits=(full,)),
        Event("wait", (5,), instructions=1, waits=(token("nobody"),)),
    ]
    *_, early, late, free = happenings(events, RULES, 1)
    assert (early.passed, early.awaited) == (70, 1)
    assert (late.passed, late.awaited) == (90, None)
    # What nobody completes was there from the start, as stages that begin empty are.
    assert (free.passed, free.awaited) == (1, None)


def test_products_of_two_warpgroups_queue_on_their_multiprocessor():
    one, two = (0, 1, 2, 3), (4, 5, 6, 7)
    events = [
        Event("products", one, flop=1000),
        Event("products", two, flop=1000, instructions=3),
        Event("products", one, cta=1, flop=1000),
        # Factors take longer than the products.
        Event("products", two, flop=100, shared_bytes=500),
    ]
    first, second, elsewhere, third = happenings(events, RULES, 2)
    assert [(x.begun, x.done) for x in (first, second, elsewhere, third)] == [(0, 10), (10, 20), (0, 10), (20, 70)]
    assert second.queued == 0
    assert happenings(events, RULES, 1)[2].begun == 10


def test_a_product_waits_for_all_four_warps():
    events = [Event("arrive", (2,), instructions=40), Event("products", (0, 1, 2, 3), flop=100)]
    assert happenings(events, RULES, 1)[1].begun == 40


def test_stores_of_threads_queue():
    events = [Event("end", (warp,), instructions=4, passes=100, written=64) for warp in range(3)]
    assert [found.reached for found in happenings(events, RULES, 1)] == [100, 200, 300]


def test_the_chain_leads_from_the_end_to_the_start():
    full, done = token("full"), token("done")
    events = [
        Event("copy", instructions=5, bytes=40, signals=(full,)),
        Event("wait", (4, 5, 6, 7), waits=(full,)),
        Event("products", (4, 5, 6, 7), instructions=2, flop=1000, signals=(done,)),
        Event("wait", (4, 5, 6, 7), waits=(done,)),
        Event("end", (4, 5, 6, 7), instructions=20, written=1),
    ]
    found = happenings(events, RULES, 1)
    parts = chain(found, 4)
    assert [what for what, *_ in parts] == ["write", "wait", "products", "instructions", "wait", "copy", "instructions"]
    assert sum(until - begin for _, _, begin, until in parts) == found[4].done == 5 + 40 + 2 + 10 + 20


@pytest.mark.parametrize("latency", [0.0, 100.0])
def test_rules_are_what_is_given(latency):
    events = [Event("copy", bytes=4, signals=(token("full"),))]
    assert happenings(events, dataclasses.replace(RULES, copy_latency=latency), 1)[0].done == 1 + latency
