"""The operations of a plan in order, each with the stream that it runs on and what it waits for.

The same list is counted, simulated and run, so that what is predicted is what happens.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Hashable, Iterable, Iterator

from ...tiles.slots import Slots
from .operation import (
    AB_IN,
    C_IN,
    C_OUT,
    LANES,
    LAST,
    MIRRORING,
    Convert,
    Load,
    Mirror,
    Multiply,
    Op,
    Part,
    Reflect,
    Slice,
    Store,
    length,
)  # fmt: skip
from .plan import FIVE_BUFFERS, RESIDENT, DevicePlan, Step

#: A strip is no thinner than this.
_LEAST_STRIP = 256


class _Held:
    """Buffers of slices: content and last use of each."""

    def __init__(self, count: int) -> None:
        self._slots = Slots(count)
        self._loaded: dict[int, int] = {}
        self._used: dict[int, dict[str, int]] = {}

    def claim(self, key: Hashable) -> tuple[int, bool]:
        return self._slots.claim(key)

    def load(self, slot: int, number: int) -> None:
        self._loaded[slot] = number

    def loaded(self, slot: int) -> int:
        return self._loaded[slot]

    def use(self, slot: int, stream: str, number: int) -> None:
        # The last use on each stream is enough.
        self._used.setdefault(slot, {})[stream] = number

    def used(self, slot: int) -> tuple[int, ...]:
        return tuple(self._used.pop(slot, {}).values())


class _Tiles:
    """Buffers of tiles: which tile has which, and what must be over before the next one may."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._turn = itertools.count()
        self._of: dict[tuple[int, int], int] = {}
        self._free_after: dict[int, tuple[int, ...]] = {}

    def take(self, tile: tuple[int, int]) -> tuple[int, tuple[int, ...]]:
        """Give a tile its buffer; return it, and the operations that free it from the tile before."""
        slot = next(self._turn) % self._count
        self._of[tile] = slot
        return slot, self.before(slot)

    def of(self, tile: tuple[int, int]) -> int:
        return self._of[tile]

    def before(self, slot: int) -> tuple[int, ...]:
        return self._free_after.get(slot, ())

    def leave(self, tile: tuple[int, int], *numbers: int) -> None:
        self._free_after[self._of.pop(tile)] = numbers


def operations(plan: DevicePlan, done: Container[tuple[int, int]] = (), most: int | None = None) -> Iterator[Op]:
    """Yield what a plan does, in order.

    Parameters
    ----------
    done : container of tuple of int
        Tiles (i, j) that are there already, and are left out.
    most : int, optional
        Ends after so many tiles, as if others followed; not for plans in which all tiles stay.
    """
    return _Schedule(plan, done).run(most)


class _Schedule:
    def __init__(self, plan: DevicePlan, done: Container[tuple[int, int]]) -> None:
        self.plan = plan
        self.done = done
        self.numbers = itertools.count()
        self.a = _Held(plan.slots[0])
        self.b = self.a if plan.symmetric else _Held(plan.slots[1])
        self.sums = _Tiles(plan.c_tiles)
        self.results = _Tiles(plan.buffers["out"][0]) if plan.converts_results else None
        self.mirrors = _Tiles(plan.buffers["mirror"][0]) if "mirror" in plan.buffers else None
        self.c_read: tuple[int, ...] = ()
        self.lanes = LANES[: plan.lanes]
        # All products of a part of the result run on one stream, in order.
        self.lane_of: dict[tuple[int, int], str] = {}
        self.turn = itertools.cycle(self.lanes)
        self.last_tile: tuple[int, int] | None = None
        # Tiles that are finished in strips: they follow from the plan alone, as strips may have other bits than whole
        # tiles.
        self.stripped: frozenset[tuple[int, int]] = frozenset()
        # The last product of a tile on the diagonal.
        self.summed: dict[tuple[int, int], int] = {}

    def run(self, most: int | None) -> Iterator[Op]:
        plan = self.plan
        steps: Iterable[Step] = (step for step in plan.steps() if (step.i, step.j) not in self.done)
        last_tile = None
        if most is None:
            steps = list(steps)
            self.last_tile = last_tile = (steps[-1].i, steps[-1].j) if steps else None
            if plan.strips > 1 and plan.strategy != FIVE_BUFFERS:
                self.stripped = plan.last_tiles
        tiles = 0
        for step in steps:
            tile = (step.i, step.j)
            tiles += step.first
            if most is not None and tiles > most:
                return
            before: tuple[int, ...] = ()
            if step.first:
                slot, before = self.sums.take(tile)
                self.lane_of[tile] = next(self.turn)
                if plan.stairs and plan.strategy != RESIDENT and tile == last_tile:
                    self.lane_of[tile] = LAST[0]
                if plan.product.c is not None:
                    load = self._load_c(step, slot, before)
                    yield load
                    before = (*before, load.number)
            slices = []
            if plan.product.k:
                for ops, part in (self._operand_slice(step, "a"), self._operand_slice(step, "b")):
                    yield from ops
                    slices.append(part)
                    before += (self._held(len(slices)).loaded(part.slot),)
            else:
                slices = [Slice(0, (0, 0)), Slice(0, (0, 0))]
            if plan.in_strips(tile):
                yield from self._diagonal(step, slices, before)
                continue
            cut = step.last and tile in self.stripped
            yield from self._finish(step, slices, before, plan.strips if cut else 1)

    def _held(self, place: int) -> _Held:
        return self.a if place == 1 else self.b

    def _load_c(self, step: Step, slot: int, before: tuple[int, ...]) -> Load:
        plan = self.plan
        assert plan.product.c is not None
        rows, cols = _part(plan.rows(step.i)), _part(plan.cols(step.j))
        if "c" in plan.buffers:
            slot, before = 0, self.c_read
        size = length(rows) * length(cols) * plan.product.c.itemsize
        return Load(next(self.numbers), C_IN, before, "c", rows, cols, slot, size)

    def _operand_slice(self, step: Step, operand: str) -> tuple[list[Load], Slice]:
        """Return the load of an operand's slice, if it is not there, and where the slice is."""
        plan = self.plan
        outer = _part(plan.rows(step.i) if operand == "a" else plan.cols(step.j))
        # In a symmetric product the slices of B are those of A, transposed.
        name = "a" if plan.symmetric else operand
        held = self.a if name == "a" else self.b
        slot, there = held.claim((outer, step.inner))
        ops = []
        if not there:
            rows, cols = (outer, step.inner) if name == "a" else (step.inner, outer)
            item = (plan.product.a if name == "a" else plan.product.b).itemsize
            size = length(rows) * length(cols) * item
            ops.append(Load(next(self.numbers), AB_IN, held.used(slot), name, rows, cols, slot, size))
            held.load(slot, ops[0].number)
        return ops, Slice(slot, outer)

    def _finish(self, step: Step, slices: list[Slice], before: tuple[int, ...], strips: int) -> Iterator[Op]:
        """Yield the products of a step, and, at the end of a tile, what takes it away."""
        plan, tile = self.plan, (step.i, step.j)
        target, stream = self.sums.of(tile), self.lane_of[tile]
        cols = _part(plan.cols(step.j))
        parts = _strips(_part(plan.rows(step.i)), strips)
        for place, rows in enumerate(parts):
            number = next(self.numbers)
            a, b = slices
            yield Multiply(
                number, stream, before if place == 0 else (), tile, rows, cols, step.inner, a, b, target, step.first,
                step.last,
            )  # fmt: skip
            if place == len(parts) - 1:
                for held, part in ((self.a, a), (self.b, b)):
                    held.use(part.slot, stream, number)
                if step.first and "c" in plan.buffers:
                    self.c_read = (number,)
            if step.last:
                yield from self._take_away(tile, rows, cols, number, place == 0, place == len(parts) - 1)

    def _take_away(
        self, tile: tuple[int, int], rows: Part, cols: Part, number: int, begins: bool, ends: bool
    ) -> Iterator[Op]:
        plan = self.plan
        source = self.sums.of(tile)
        if self.results is not None:
            before: tuple[int, ...] = ()
            if begins:
                _, before = self.results.take(tile)
            target = self.results.of(tile)
            convert = Convert(next(self.numbers), self.lane_of[tile], before, tile, rows, cols, source, target)
            yield convert
            number, source = convert.number, target
        size = length(rows) * length(cols) * plan.product.out.itemsize
        mirrored = plan.symmetric and tile[0] != tile[1]
        store = Store(
            next(self.numbers), C_OUT, (number,), tile, rows, cols, source, size, ends and not mirrored, False
        )
        yield store
        over = [store.number]
        if ends and mirrored:
            for op in self._mirror(tile, source, number):
                yield op
                if isinstance(op, Mirror):
                    over.append(op.number)
        if ends:
            # A converted tile no longer needs its sum.
            self.sums.leave(tile, *(over if self.results is None else (number,)))
            if self.results is not None:
                self.results.leave(tile, *over)

    def _diagonal(self, step: Step, slices: list[Slice], before: tuple[int, ...]) -> Iterator[Op]:
        """Yield the products of a tile on the diagonal, strip by strip from below, and what takes each away.

        A strip is stored with its whole lines: what is right of the diagonal came from the strips below it.
        """
        plan, tile = self.plan, (step.i, step.j)
        left, right = _part(plan.cols(step.j))
        target = self.sums.of(tile)
        rows = _part(plan.rows(step.i))
        # Unfinished tiles need no cut, where elements above the diagonal are left out anyway.
        strips = plan.diagonal(step.i) if step.last or not plan.stairs else [rows]
        lanes = self.lanes if len(strips) > 1 else (self.lane_of[tile],)
        if plan.stairs and step.last and tile == self.last_tile:
            lanes = LAST
        if plan.stairs and tile in self.summed and lanes != (self.lane_of[tile],):
            before = (*before, self.summed[tile])
        a, b = slices
        # The last operations of each stream that the sum is free after, and the one that lines are whole after.
        over: dict[str, int] = {}
        reflected: tuple[int, ...] = ()
        unshared: tuple[int, ...] = ()
        source, stored = target, 0
        if step.last and self.results is not None:
            source, unshared = self.results.take(tile)
        for place, rows in enumerate(strips):
            stream = lanes[place % len(lanes)]
            # Later operations on the same stream need not wait again.
            first = place < len(lanes)
            number, cols = next(self.numbers), (left, rows[1])
            yield Multiply(
                number, stream, before if first else (), tile, rows, cols, step.inner, a, b, target, step.first,
                step.last, plan.below(step.i, rows),
            )  # fmt: skip
            self.a.use(a.slot, stream, number)
            self.summed[tile] = number
            if not step.last:
                continue
            if self.results is not None:
                number = next(self.numbers)
                yield Convert(number, stream, unshared if first else (), tile, rows, cols, target, source)
            over[stream] = number
            for part, columns in _squares(rows, plan.stairs):
                # Above the diagonal of the strip itself nothing was computed.
                reflected = (next(self.numbers),)
                yield Reflect(*reflected, MIRRORING, (number,), tile, part, columns, source)
            stored = next(self.numbers)
            size = length(rows) * (right - left) * plan.product.out.itemsize
            yield Store(
                stored, C_OUT, (number, *reflected), tile, rows, (left, right), source, size,
                place == len(strips) - 1, False,
            )  # fmt: skip
            if rows[0] > left:
                reflected = (next(self.numbers),)
                yield Reflect(*reflected, MIRRORING, (number,), tile, rows, (left, rows[0]), source)
        if step.last:
            # The last one was stored after everything was reflected.
            self.sums.leave(tile, *((stored,) if self.results is None else over.values()))
            if self.results is not None:
                self.results.leave(tile, stored)

    def _mirror(self, tile: tuple[int, int], source: int, finished: int) -> Iterator[Op]:
        """Yield what takes the transpose of a whole finished tile away: lines of strips would be short."""
        assert self.mirrors is not None
        rows, cols = _part(self.plan.rows(tile[0])), _part(self.plan.cols(tile[1]))
        target, before = self.mirrors.take(tile)
        mirror = Mirror(next(self.numbers), MIRRORING, (finished, *before), tile, rows, cols, source, target)
        yield mirror
        size = length(rows) * length(cols) * self.plan.product.out.itemsize
        store = Store(next(self.numbers), C_OUT, (mirror.number,), tile, cols, rows, target, size, True, True)
        yield store
        self.mirrors.leave(tile, store.number)


def _strips(rows: Part, count: int) -> list[Part]:
    height = max(-(-length(rows) // count), _LEAST_STRIP)
    height = -(-height // _LEAST_STRIP) * _LEAST_STRIP
    return [(start, min(start + height, rows[1])) for start in range(rows[0], rows[1], height)]


def _squares(rows: Part, side: int) -> Iterator[tuple[Part, Part]]:
    """Yield the part below squares of that side on the diagonal, in rows and columns; nothing where it is 0."""
    count = -(-length(rows) // side) if side else 0
    if count < 2:
        return
    middle = rows[0] + (count + 1) // 2 * side
    yield (middle, rows[1]), (rows[0], middle)
    yield from _squares((rows[0], middle), side)
    yield from _squares((middle, rows[1]), side)


def _part(part: slice) -> Part:
    return int(part.start), int(part.stop)
