"""Times of a pipeline's events, by rules: the virtual GPU gives the dependencies, and has no clock.

Every event happens as early as what it waits for allows. A warp issues an instruction a cycle. What its loads and
stores pass through L1 and shared memory, products on the tensor cores, and copies on the way from the L2 cache, queue
up at their SM, first come, first served. The rules are those of `Rules`: no clock of a GPU was read.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence

from .instrument import Event, Token

# Events that complete asynchronously.
_ASYNCHRONOUS = ("products", "copy", "store")


@dataclasses.dataclass(frozen=True)
class Rules:
    """Assumed durations, in cycles of an SM."""

    flop: float  #: Operations of the tensor cores in a cycle: the chip's peak.
    shared_bytes: float = 128.0  #: Bytes that shared memory delivers in one.
    copy_bytes: float = 64.0  #: Bytes that TMA gets from the L2 cache in one, and puts there: an assumption.
    copy_latency: float = 600.0  #: Cycles from a request to the first byte: an assumption.


@dataclasses.dataclass
class Happening:
    """When an event happened, in cycles."""

    event: Event  #: The event.
    started: float = 0.0  #: When the last of its warps was done with the event before.
    reached: float = 0.0  #: When its warps had issued the instructions up to it.
    passed: float = 0.0  #: When they went on.
    #: begun, done: When a copy, a product or a store began and was complete; else both are `passed`.
    begun: float = 0.0
    done: float = 0.0
    after: int | None = None  #: The event of its last warp before, that it followed when it `started`.
    awaited: int | None = None  #: The event that it waited for before it `passed`.
    queued: int | None = None  #: The event that its unit served before it had `begun`.


class _Unit:
    """Something that serves one after another."""

    def __init__(self) -> None:
        self.free = 0.0
        self.last: int | None = None

    def serve(self, number: int, at: float, cycles: float) -> tuple[float, int | None]:
        """Return when it begins, and whom it waited for."""
        begun, before = max(at, self.free), self.last if self.free > at else None
        self.free, self.last = begun + cycles, number
        return begun, before


class _Completion:
    """A token: how many have yet to contribute, and when and by whom it was complete."""

    def __init__(self) -> None:
        self.missing = 0
        self.at = 0.0
        self.by: int | None = None

    def give(self, number: int, at: float) -> None:
        self.missing -= 1
        if at >= self.at:
            self.at, self.by = at, number


def happenings(events: Sequence[Event], rules: Rules, multiprocessors: int) -> list[Happening]:
    """Return when each event happens, in their order.

    Parameters
    ----------
    events : sequence of Event
        Those of each warp in its order.
    rules : Rules
        Assumed durations.
    multiprocessors : int
        CTA c runs on SM c modulo this.
    """
    found = [Happening(event) for event in events]
    completions: dict[Token, _Completion] = {}
    queues: dict[tuple[int, int], list[int]] = {}
    for number, event in enumerate(events):
        for token in event.signals:
            completions.setdefault(token, _Completion()).missing += 1
        for warp in event.warps:
            queues.setdefault((event.cta, warp), []).append(number)
    units = {(kind, sm): _Unit() for kind in ("L1", "tensor", "copy", "read") for sm in range(multiprocessors)}
    free = dict.fromkeys(queues, 0.0)
    before: dict[tuple[int, int], int | None] = dict.fromkeys(queues)
    place = dict.fromkeys(queues, 0)
    # Ready events, the earliest first: an event begins to be issued, is reached, or may be passed.
    ready: list[tuple[float, int, str]] = []
    waiting: dict[Token, list[int]] = {}

    def offer(number: int) -> None:
        event = events[number]
        keys = [(event.cta, warp) for warp in event.warps]
        if all(place[key] < len(queues[key]) and queues[key][place[key]] == number for key in keys):
            last = max(keys, key=free.__getitem__)
            found[number].started, found[number].after = free[last], before[last]
            heapq.heappush(ready, (free[last], number, "issue"))

    def give(number: int, at: float) -> None:
        for token in events[number].signals:
            completions[token].give(number, at)
            if not completions[token].missing:
                for other in waiting.pop(token, []):
                    heapq.heappush(ready, (max(at, found[other].reached), other, "pass"))

    for number in dict.fromkeys(queue[0] for queue in queues.values()):
        offer(number)
    while ready:
        now, number, step = heapq.heappop(ready)
        event, here = events[number], found[number]
        sm = event.cta % multiprocessors
        if step == "issue":
            here.reached = now + event.instructions
            if event.passes:
                begun, _ = units["L1", sm].serve(number, now, event.passes)
                here.reached = max(here.reached, begun + event.passes)
            heapq.heappush(ready, (here.reached, number, "reach"))
            continue
        if step == "reach":
            here.begun = here.done = now
            if event.kind == "products":
                cycles = max(event.flop / rules.flop, event.shared_bytes / rules.shared_bytes)
                here.begun, here.queued = units["tensor", sm].serve(number, now, cycles)
                here.done = here.begun + cycles
            elif event.kind == "copy":
                cycles = event.bytes / rules.copy_bytes
                here.begun, here.queued = units["copy", sm].serve(number, now, cycles)
                here.done = here.begun + cycles + rules.copy_latency
            elif event.kind == "store":
                cycles = event.bytes / rules.copy_bytes
                here.begun, here.queued = units["read", sm].serve(number, now, cycles)
                here.done = here.begun + cycles
            give(number, here.done)
        # Tokens that nobody of these CTAs gives were there from the start.
        late = [token for token in event.waits if token in completions]
        missing = next((token for token in late if completions[token].missing), None)
        if missing is not None:
            waiting.setdefault(missing, []).append(number)
            continue
        last = max(late, key=lambda token: completions[token].at, default=None)
        here.passed = here.reached
        if last is not None and completions[last].at > here.reached:
            here.passed, here.awaited = completions[last].at, completions[last].by
        if event.kind not in _ASYNCHRONOUS:
            here.begun = here.done = here.passed
        for warp in event.warps:
            key = (event.cta, warp)
            free[key], before[key] = here.passed, number
            place[key] += 1
        following = [queues[key][place[key]] for key in ((event.cta, warp) for warp in event.warps)
                     if place[key] < len(queues[key])]  # fmt: skip
        for other in dict.fromkeys(following):
            offer(other)
    return found


def chain(found: Sequence[Happening], last: int) -> list[tuple[str, int, float, float]]:
    """Return the causes of an event's end, backwards: (cause, number of the event, from, to).

    A cause is ``products``, ``copy``, ``store``, ``write`` (a warp's own stores), ``instructions`` or ``wait``: the
    event waited for the next one of the list, which takes no time of its own.
    """
    parts = []
    number: int | None = last
    asynchronous = found[last].event.kind in _ASYNCHRONOUS
    limit = found[last].done
    while number is not None:
        here = found[number]
        if asynchronous:
            # Only a service that the next one had to wait for counts.
            parts.append((here.event.kind, number, here.begun, min(here.done, limit)))
            limit = here.begun
            if here.queued is not None:
                number = here.queued
                continue
        elif here.awaited is not None:
            parts.append(("wait", number, here.passed, here.passed))
            number = here.awaited
            asynchronous = found[number].event.kind in _ASYNCHRONOUS
            continue
        what = "write" if here.event.written or here.event.shared_written else "instructions"
        parts.append((what, number, here.started, here.reached))
        number, asynchronous = here.after, False
    return parts
