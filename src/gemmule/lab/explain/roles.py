"""From the events of a pipeline to its timeline: who copies, multiplies and writes which k-tile, and who waits.

Nothing is known here of a kernel: a warp is what its events are, a k-tile what came with one phase of an mbarrier and
was multiplied, and a stage the place of that mbarrier.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from .instrument import Event, Token
from .steps import Happening, Rules, chain, happenings
from .timeline import DOES, Role, Span, Timeline, Wait


class _Reader:
    """The meaning of events: k-tiles, stages and roles."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.signalled: dict[Token, list[int]] = {}
        for number, event in enumerate(events):
            for token in event.signals:
                self.signalled.setdefault(token, []).append(number)
        # Phases of the loaded k-tiles of every CTA, in the order of the loads.
        self.k_tile_of: dict[Token, int] = {}
        self.stage_of: dict[Token, int] = {}
        self.cta_of: dict[Token, int] = {}
        per_cta: dict[int, set[Token]] = {}
        for event in events:
            per_cta.setdefault(event.cta, set()).update(event.reads)
        for cta, tokens in per_cta.items():
            places = sorted({token[1] for token in tokens})
            for number, token in enumerate(sorted(tokens, key=lambda one: self.signalled[one][0])):
                self.k_tile_of[token], self.stage_of[token] = number, places.index(token[1])
                self.cta_of[token] = cta
        self.roles = _roles(events)
        self.role_of = {(role.cta, warp): role for role in self.roles for warp in role.warps}
        self.events = events

    def role(self, event: Event) -> Role | None:
        return self.role_of.get((event.cta, event.warps[0]))

    def about(self, event: Event, own: Role) -> tuple[str, tuple[Role, ...]]:
        """Return the condition of a wait, and the roles that fulfil it."""
        token = event.waits[-1]
        numbers = self.signalled.get(token, [])
        found = [self.role(self.events[number]) for number in numbers]
        others = tuple(dict.fromkeys(role for role in found if role is not None))
        copies = any(self.events[number].kind == "copy" for number in numbers)
        if token[0] == "mbarrier":
            return ("slices" if token in self.k_tile_of else "C" if copies else "free stages"), others
        if token[0] in ("products", "read", "written"):
            return ("its products" if token[0] == "products" else "its stores"), (own,)
        if token[0] == "cluster":
            return "the cluster", ()
        # Where some arrive without waiting, the others wait for their data.
        giving = tuple(dict.fromkeys(self.role(self.events[n]) for n in numbers if not self.events[n].waits))
        handed = tuple(role for role in giving if role is not None and role != own)
        return ("its turn", handed) if handed else ("a barrier", others)


def _roles(events: Iterable[Event]) -> tuple[Role, ...]:
    does: dict[tuple[int, int], set[str]] = {}
    for event in events:
        for warp in event.warps:
            work = does.setdefault((event.cta, warp), set())
            if event.kind in ("copy", "products"):
                work.add("copies" if event.kind == "copy" else "multiplies")
            if event.written or event.kind == "store":
                work.add("writes")
    found = []
    for cta, group in sorted({(cta, warp // 4) for cta, warp in does}):
        warps = [warp for warp in range(4 * group, 4 * group + 4) if does.get((cta, warp))]
        if any("multiplies" in does[cta, warp] for warp in warps):
            every = set().union(*(does[cta, warp] for warp in warps))
            found.append(Role(cta, tuple(warps), tuple(word for word in DOES if word in every)))
        else:
            found += [Role(cta, (warp,), tuple(x for x in DOES if x in does[cta, warp])) for warp in warps]
    return tuple(found)


def timeline(events: Sequence[Event], rules: Rules, *, tiles: int, multiprocessors: int, persistent: bool) -> Timeline:
    """Make a timeline.

    Parameters
    ----------
    events : sequence of Event
        Those of all CTAs of the sample.
    rules : Rules
        Assumed durations.
    tiles : int
        Tiles that each CTA computes.
    multiprocessors : int
        CTA c runs on SM c modulo this.
    persistent : bool
        Whether CTAs of the launch that is explained compute several tiles.
    """
    found, reader = happenings(events, rules, multiprocessors), _Reader(events)
    end = max(here.done for here in found)
    last = max(range(len(found)), key=lambda number: found[number].done)
    parts = chain(found, last)
    path: dict[str, float] = {}
    for what, _, begin, until in parts:
        path[what] = path.get(what, 0.0) + until - begin
    path.pop("wait", None)
    critical = {number for what, number, _, _ in parts if what == "wait"}
    k_tiles = sum(cta == 0 for cta in reader.cta_of.values())
    fetched = sum(
        event.bytes for event in events if event.cta == 0 and any(token in reader.k_tile_of for token in event.signals)
    )
    flop = sum(event.flop for event in events if event.cta == 0)
    return Timeline(
        rules=rules,
        step=flop / k_tiles / rules.flop,
        tiles=tiles,
        k_tiles=k_tiles // tiles,
        stages=len(set(reader.stage_of.values())),
        ctas=1 + max(event.cta for event in events),
        multiprocessors=multiprocessors,
        persistent=persistent,
        roles=reader.roles,
        spans=_spans(found, reader),
        waits=_waits(found, reader, critical),
        path=path,
        idle=_idle(found, reader, k_tiles // tiles, multiprocessors, end),
        end=end,
        copied=fetched / k_tiles,
    )


def _spans(found: Sequence[Happening], reader: _Reader) -> tuple[Span, ...]:
    spans: dict[tuple[object, ...], Span] = {}

    def lasts(key: tuple[object, ...], span: Span) -> None:
        if (old := spans.get(key)) is not None:
            span = dataclasses.replace(old, begin=min(old.begin, span.begin), end=max(old.end, span.end))
        spans[key] = span

    for number, here in enumerate(found):
        event = here.event
        if (role := reader.role(event)) is None:
            continue
        if event.kind == "copy":
            for token in event.signals:
                if token in reader.k_tile_of:
                    cta, place, stage = reader.cta_of[token], reader.k_tile_of[token], reader.stage_of[token]
                    asker = next(one for one in reader.roles if one.cta == cta and "copies" in one.does)
                    asker = role if role.cta == cta else asker
                    lasts(("copy", token), Span("copy", asker, here.reached, here.done, cta, place, stage))
        elif event.kind == "products":
            for token in event.reads:
                place, stage = reader.k_tile_of[token], reader.stage_of[token]
                lasts(("products", role, token),
                      Span("products", role, here.begun, here.done, event.cta, place, stage))  # fmt: skip
        elif event.kind == "store":
            lasts(("store", number), Span("store", role, here.begun, here.done, event.cta))
        if event.written or event.shared_written:
            lasts(("write", number), Span("write", role, here.started, here.reached, event.cta))
        if event.waits and here.passed > here.reached:
            about, _ = reader.about(event, role)
            lasts(("wait", number), Span("wait", role, here.reached, here.passed, event.cta, about=about))
    whole = [span for span in spans.values() if span.what not in ("wait", "write")]
    whole += _joined(span for span in spans.values() if span.what in ("wait", "write"))
    return tuple(sorted(whole, key=lambda span: (span.begin, span.end, span.what)))


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Return spans with the concurrent ones of a role's warps joined."""
    found: list[Span] = []
    last: dict[tuple[Role, str, str], int] = {}
    for span in sorted(spans, key=lambda span: span.begin):
        key = (span.role, span.what, span.about)
        if key in last and span.begin <= found[last[key]].end:
            old = found[last[key]]
            found[last[key]] = dataclasses.replace(old, end=max(old.end, span.end))
        else:
            last[key] = len(found)
            found.append(span)
    return found


def _waits(found: Sequence[Happening], reader: _Reader, critical: set[int]) -> tuple[Wait, ...]:
    """Return how the roles of the first CTA wait."""
    per_warp: dict[tuple[Role, str, tuple[Role, ...]], dict[int, list[int]]] = {}
    for number, here in enumerate(found):
        event = here.event
        role = reader.role(event)
        if event.cta == 0 and role is not None and event.waits and here.passed > here.reached:
            per_warp.setdefault((role, *reader.about(event, role)), {}).setdefault(event.warps[0], []).append(number)
    result = []
    for (role, about, by), warps in per_warp.items():
        cycles = {warp: sum(found[n].passed - found[n].reached for n in numbers) for warp, numbers in warps.items()}
        longest = max(cycles, key=cycles.__getitem__)
        some = sum(number in critical for numbers in warps.values() for number in numbers)
        result.append(Wait(role, about, by, len(warps[longest]), cycles[longest], some))
    order = {role: number for number, role in enumerate(reader.roles)}
    return tuple(sorted(result, key=lambda wait: (order[wait.role], -wait.cycles)))


def _idle(
    found: Sequence[Happening], reader: _Reader, k_tiles: int, multiprocessors: int, end: float
) -> dict[tuple[str, str], float]:
    """Return when the tensor cores of the first SM have nothing to do, and what they wait for then."""
    order = sorted(
        (number for number, here in enumerate(found)
         if here.event.kind == "products" and here.event.cta % multiprocessors == 0),
        key=lambda number: found[number].begun,
    )  # fmt: skip
    idle: dict[tuple[str, str], float] = {}
    free = 0.0
    for number in order:
        here = found[number]
        if here.begun > free:
            place = min(reader.k_tile_of[token] for token in here.event.reads)
            when = "start" if not free else "slice" if place % k_tiles else "tile"
            for what, _, begin, until in chain(found, number)[1:]:
                if (shared := min(until, here.begun) - max(begin, free)) > 0:
                    idle[when, what] = idle.get((when, what), 0.0) + shared
        free = max(free, here.done)
    idle["end", "write"] = end - free
    return idle
