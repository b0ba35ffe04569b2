"""Synchronisation of CTAs through global memory: a release leaves a message, an acquire of that word receives it.

A message holds the clocks of the warp that leaves it, of its own cluster and of those it received. A cluster has
clocks for messages that its warps took, which its barriers pass on like all others. Time n of such a clock stands for
its first n messages: a message that is taken by a warp that has all of them becomes the next. Besides the
instructions that release and acquire, a fence before a relaxed store, or after a relaxed load, makes the same of them.
An atomic operation adds to the message that is there; another store takes its place.
"""

from __future__ import annotations

import numpy as np

from gemmule.core.errors import UnsupportedError

from ..dataflow.polling import is_strong
from ..engine.batch import Batch
from ..engine.lanes import Lanes
from ..engine.observer import Access, Observer
from ..ptx.module import Instruction, Kernel
from ..types import Array
from .clocks import MOST_MESSAGES, Clocks, has_messages

#: For each cluster, by its number, the clocks of its agents.
Message = dict[int, Array]
_RELEASES, _ACQUIRES = frozenset({"release", "acq_rel"}), frozenset({"acquire", "acq_rel"})
#: Scopes that reach other clusters, as a fence names them, and those that do not; an instruction that names none does.
_WIDE, _NARROW = frozenset({"gpu", "sys", "gl"}), frozenset({"cta", "cluster"})


class Messages(Observer):
    """Follows messages; they persist from batch to batch.

    Parameters
    ----------
    clocks : Clocks
        The warps' clocks.
    """

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._left: dict[int, Message] = {}

    def begin(self, kernel: Kernel) -> None:
        self._used = has_messages(kernel)
        self._left = {}

    def batch_begins(self, batch: Batch) -> None:
        # CTAs are counted from 1, and the first of a cluster names it, as in `GlobalRaces`.
        self._clusters = [cta + 1 for cta in batch.ctas[:: batch.cluster_ctas]]
        # For each clock the messages that its times stand for, and for each message its clock and time.
        self._taken: list[list[list[Message]]] = [[] for _ in self._clusters]
        self._times: list[dict[int, tuple[Message, int, int]]] = [{} for _ in self._clusters]
        # Messages that a relaxed store leaves after a fence, and those of relaxed loads that a fence would receive.
        self._fenced: dict[int, Message] = {}
        self._found: dict[int, list[Message]] = {}

    def memory_fenced(self, batch: Batch, instruction: Instruction, lanes: Lanes) -> None:
        """See lanes fence memory: they receive messages loaded before, and later stores may leave their clocks."""
        del batch
        if not self._used or _WIDE.isdisjoint(instruction.modifiers):
            return
        for warp in np.unique(lanes.index // 32).tolist():
            for message in self._found.pop(warp, []):
                self._take(warp, message)
            self._fenced[warp] = self._tell(warp)

    def access(self, access: Access) -> None:
        """See loads and stores take and leave messages."""
        if not self._used or access.space != "global":
            return
        modifiers = set(access.instruction.modifiers)
        wide = _NARROW.isdisjoint(modifiers) and (access.atomic or is_strong(access.instruction))
        if not wide:
            if access.write and self._left:
                for place in set(access.address.tolist()) & self._left.keys():
                    del self._left[place]
            return
        pairs = set(zip((access.lanes.index // 32).tolist(), access.address.tolist(), strict=True))
        for warp, place in sorted(pairs):
            message = self._left.get(place)
            if access.read and message is not None:
                if modifiers & _ACQUIRES:
                    self._take(warp, message)
                elif all(one is not message for one in self._found.setdefault(warp, [])):
                    self._found[warp].append(message)
            if access.write:
                sent = self._tell(warp) if modifiers & _RELEASES else self._fenced.get(warp)
                if access.read and message is not None:
                    sent = message if sent is None else _both(message, sent)
                if sent is None:
                    self._left.pop(place, None)
                else:
                    self._left[place] = sent

    def knows(self, warps: Array, cta: Array, column: Array, clock: Array) -> Array:
        """Return whether accesses by other clusters happened before those of warps.

        Parameters
        ----------
        warps : array of int
            Warps of the batch.
        cta : array of int
            For each the first CTA of another cluster, counted from 1.
        column, clock : array of int
            Warps of that cluster, and times.
        """
        known = np.zeros(len(warps), np.bool_)
        if not self._used:
            return known
        for warp in np.unique(warps).tolist():
            message = self._message(warp)
            for cluster in np.unique(cta[warps == warp]).tolist():
                if cluster in message:
                    mask = (warps == warp) & (cta == cluster)
                    known[mask] = message[cluster][column[mask]] >= clock[mask]
        return known

    def _message(self, warp: int) -> Message:
        """Return all clocks of a warp as a message."""
        clocks = self._clocks
        place = warp // clocks.columns.generic
        row = clocks.known[warp]
        message = {self._clusters[place]: row[: clocks.columns.messages].copy()}
        for number, taken in enumerate(self._taken[place]):
            if time := int(row[clocks.columns.messages + number]):
                message = _both(message, taken[time - 1])
        return message

    def _tell(self, warp: int) -> Message:
        """Return all clocks of a warp as a message, and advance its own."""
        message = self._message(warp)
        self._clocks.tick(np.array([warp]))
        return message

    def _take(self, warp: int, message: Message) -> None:
        """Let a warp receive a message."""
        clocks = self._clocks
        place = warp // clocks.columns.generic
        held = clocks.known[warp, clocks.columns.messages :]
        _, number, time = self._times[place].get(id(message), (message, 0, 0))
        if not 0 < time <= held[number] + 1:
            number, time = self._next(place, held, message)
        held[number] = max(held[number], time)
        own = message.get(self._clusters[place])
        if own is not None:
            clocks.known[warp, : clocks.columns.messages] = np.maximum(
                clocks.known[warp, : clocks.columns.messages], own
            )

    def _next(self, place: int, held: Array, message: Message) -> tuple[int, int]:
        """Return the clock and the time for a message, given a warp's times of all such clocks."""
        taken = self._taken[place]
        number = next((number for number, all_of in enumerate(taken) if held[number] == len(all_of)), len(taken))
        if number == MOST_MESSAGES:
            raise UnsupportedError(
                f"the checks follow messages by {MOST_MESSAGES} independent ways to a cluster, and there are more; "
                "launch fewer CTAs"
            )
        if number == len(taken):
            taken.append([message])
        else:
            taken[number].append(_both(taken[number][-1], message))
        self._times[place][id(message)] = message, number, len(taken[number])
        return number, len(taken[number])


def _both(one: Message, other: Message) -> Message:
    """Return two messages as one."""
    return one | {key: np.maximum(one[key], row) if key in one else row for key, row in other.items()}
