"""A problem that is computed again and again: its launches decided and packed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gemmule.core.launch import Launch
from gemmule.core.problem import GemmProblem, TransposeProblem
from gemmule.core.spec import Choice

from .direct import DirectLaunch, direct_launch
from .execute import Launches, bound_launches, launches_of
from .memory import LentMemory
from .replay import Queue
from .workspaces import Workspaces, clear, needs_zeros

#: Most launches of one problem that are cached: packing more costs little of the whole.
MAX_REPEATED_LAUNCHES = 32

# Alignment of the driver's allocations, in bytes.
_ALIGNMENT = 256


def repeated(
    problem: GemmProblem | TransposeProblem,
    choice: Choice,
    operands: Sequence[str],
    addresses: Sequence[int],
    ordinal: int,
) -> Queue | None:
    """Return a function that queues a problem at other addresses; None for no launch, or for too many to cache.

    Parameters
    ----------
    problem, choice
        As of `execute.run_kernel`.
    operands : sequence of str
        Names of the operands, in the order in which calls give their addresses.
    addresses : sequence of int
        Addresses of one call; those of others are at least as aligned as the problem states.
    """
    return _packed(launches_of(problem, choice, ordinal, operands), operands, addresses, ordinal)


def run_packed(
    problem: GemmProblem | TransposeProblem, choice: Choice, pointers: Mapping[str, int], ordinal: int, stream: int
) -> Queue | None:
    """Queue a problem, and return what queues it at other addresses, as `repeated` does, by the same packed launches.

    The parameters are those of `execute.run_kernel`.
    """
    operands, addresses = tuple(pointers), tuple(pointers.values())
    work = launches_of(problem, choice, ordinal, operands)
    queue = _packed(work, operands, addresses, ordinal)
    if queue is not None:
        queue(addresses, stream)
        return queue
    with Workspaces(ordinal, stream) as workspaces:
        for launch in bound_launches(work, pointers, ordinal, stream, workspaces):
            launch()
    return None


def _packed(work: Launches, operands: Sequence[str], addresses: Sequence[int], ordinal: int) -> Queue | None:
    if not 0 < work.number <= MAX_REPEATED_LAUNCHES:
        return None
    if work.number == 1 and not work.workspaces:
        (step,) = work.steps()
        if all(place == (name, 0) for name, place in step.places.items()):
            return direct_launch(step.kernel, step.launch, operands, addresses).queue
    return _Several(work, operands, addresses, ordinal).queue


class _Several:
    """Launches one after another, with their workspaces, which are one piece of memory."""

    def __init__(self, work: Launches, operands: Sequence[str], addresses: Sequence[int], ordinal: int) -> None:
        self._ordinal = ordinal
        begins: dict[str, int] = {}
        self._bytes = 0
        for name, nbytes in work.workspaces.items():
            begins[name] = self._bytes
            self._bytes += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        self._memory = LentMemory(self._bytes, ordinal) if self._bytes else None
        # The workspaces' memory comes behind the operands; until it is there, an aligned address stands in for its.
        order = {name: place for place, name in enumerate(operands)}
        given = (*addresses, _ALIGNMENT)
        self._steps: list[tuple[DirectLaunch, tuple[tuple[int, int], ...]]] = []
        # Recipes of launches that find zeros, with the places of their operands and workspaces, by their numbers.
        self._cleared: dict[int, tuple[Launch, dict[str, tuple[int, int]]]] = {}
        for step in work.steps():
            places = {
                name: (order[of], beyond) if of in order else (len(order), begins[of] + beyond)
                for name, (of, beyond) in step.places.items()
            }
            first = [given[place] + beyond for place, beyond in places.values()]
            launch = direct_launch(step.kernel, step.launch, tuple(places), first)
            if needs_zeros(step.launch):
                self._cleared[len(self._steps)] = (step.launch, places)
            self._steps.append((launch, tuple(places.values())))

    def queue(self, addresses: tuple[int, ...], stream: int) -> None:
        """Queue them."""
        if self._memory is None:
            # Workspaces of no bytes have a place, too: where K is 0, nothing is packed.
            self._queue((*addresses, 0), stream)
        else:
            self._memory.lend(lambda address: self._queue((*addresses, address), stream), stream)

    def _queue(self, addresses: tuple[int, ...], stream: int) -> None:
        for number, (launch, places) in enumerate(self._steps):
            if number in self._cleared:
                recipe, named = self._cleared[number]
                clear(recipe, {n: addresses[at] + beyond for n, (at, beyond) in named.items()}, self._ordinal, stream)
            launch.queue(tuple([addresses[place] + beyond for place, beyond in places]), stream)
