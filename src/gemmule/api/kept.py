"""What is kept of products that were computed, so that the next call looks it up and launches.

A product is known by all that its plan depends on: types, shapes, strides and alignment of its arrays, the device, and
the arguments. Addresses and the stream are not part of it; they are read at every call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from gemmule.dispatch.select import generation, register_clear
from gemmule.runtime.stream import stream_handle

from . import recent
from .known_arrays import Described, KnownArrays, known_library

#: Products that are kept; the oldest makes room.
MOST_KEPT = 2048
#: Guards that are made for a product: states of the library in which none of them holds are not followed for ever.
MOST_GUARDS = 8


class Kept:
    """A product whose launches are decided.

    Parameters
    ----------
    queue : callable
        Queues it, given addresses and stream.
    overlap : sequence of (int, int)
        For each input the differences, its address less the output's, between which the two may overlap.
    new : callable
        Makes the output, where the caller gives none.
    began : int
        Generation of choices in which it was planned.
    beside : sequence of (int, int)
        The same for each array but the last input, which is written too: that for the absolute maximum. Empty where
        there is none.
    """

    __slots__ = ("_a", "_b", "_beside", "_others", "again", "generation", "guards", "new", "queue")

    def __init__(
        self,
        queue: recent.Queue,
        overlap: Sequence[tuple[int, int]],
        new: Callable[[], Any],
        began: int,
        beside: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.queue, self.new, self.generation = queue, new, began
        # What repeats it for two arrays of its kind, and for one that is A and B.
        self.again: list[recent.Again | None] = [None, None]
        self.guards = 0
        self._a, self._b, *self._others = overlap
        self._beside = beside

    def apart(self, addresses: tuple[int, ...], in_place: bool) -> bool:
        """Whether the output is surely apart from the inputs, from C unless it is the output itself."""
        at = addresses[-1]
        low, high = self._a
        if low < addresses[0] - at < high:
            return False
        low, high = self._b
        if low < addresses[1] - at < high:
            return False
        if not self._others:
            return True
        # C stands first of the others, and may be the output itself.
        others = zip(addresses[2 + in_place : -1], self._others[in_place:], strict=True)
        return not any(low < address - at < high for address, (low, high) in others)

    def maximum_apart(self, addresses: tuple[int, ...], given: bool) -> bool:
        """Whether the array for the absolute maximum is surely apart from the others.

        The output is among the addresses if it is given.
        """
        *inputs, at = addresses[:-1] if given else addresses
        others = zip((*inputs, *addresses[-1:]) if given else inputs, self._beside, strict=False)
        return not any(low < address - at < high for address, (low, high) in others)


# By type of array; None for those whose products are not kept.
_libraries: dict[type, KnownArrays | None] = {}
# Types that are no arrays need no place there.
_MOST_TYPES = 64
_kept: dict[Any, Kept] = {}
_adding = threading.Lock()


def find(key: Any) -> Kept | None:
    """Return the product that is known by this, if it is kept."""
    return _kept.get(key)


def forget() -> None:
    """Forget what was decided: kernels or configs would now be chosen otherwise."""
    with _adding:
        _kept.clear()
        recent.forget()


register_clear(forget)


def library_for(kind: type) -> KnownArrays | None:
    """Return the library of a type of array, if products of it are kept."""
    return _libraries[kind] if kind in _libraries else _first_seen(kind)


def _first_seen(kind: type) -> KnownArrays | None:
    library = known_library(kind)
    with _adding:
        if len(_libraries) < _MOST_TYPES:
            _libraries[kind] = library
    return library


def add(
    library: KnownArrays,
    key: Any,
    queue: recent.Queue,
    inputs: Sequence[Any],
    result: Any,
    began: int,
    *,
    maximum: bool = False,
) -> None:
    """Keep what queues a product, under what it is known by; not one that was planned before choices were forgotten.

    Its inputs are in the order of the addresses; the last of them may be that for the absolute maximum.
    """
    beside = _overlap(library, (*inputs[:-1], result), inputs[-1]) if maximum else ()
    kept = Kept(queue, _overlap(library, inputs, result), library.maker(result), began, beside)
    with _adding:
        if began != generation():
            return
        while len(_kept) >= MOST_KEPT:
            # Those that are found by their arrays go with it.
            recent.forget()
            del _kept[next(iter(_kept))]
        _kept[key] = kept


def repeat(
    library: KnownArrays,
    found: Kept,
    known: Described,
    arrays: tuple[Any, ...],
    out: Any,
    stream: Any,
    *,
    in_place: bool = False,
) -> Any:
    """Compute what is kept with other arrays; return None where a plan has to look at them.

    Parameters
    ----------
    library, found
        Of the product.
    known : tuple
        What the library says of the arrays.
    arrays : tuple
        The inputs, some of which may be None.
    out : array or None
        The output, if it is given.
    stream : int, stream or None
        As the caller names it.
    in_place : bool
        Whether C is the output.
    """
    _, addresses, current = known
    now = current if stream is None else stream_handle(stream)
    if out is not None:
        if not found.apart(addresses, in_place):
            return None
        result = out
    else:
        result = found.new() if now == current else library.made_on(found.new, library.device(arrays[0]), now)
    found.queue(addresses if out is not None else (*addresses, library.address(result)), now)
    if out is not None and library.wrote is not None:
        library.wrote(out)
    if now != current:
        from gemmule.runtime.retain import retain

        # Its library may give the memory to others as soon as its own stream allows it.
        retain((arrays, out), library.device(result), now)
    return result


def _overlap(library: KnownArrays, arrays: Sequence[Any], written: Any) -> list[tuple[int, int]]:
    """Return for each array the differences of its address to that of another, between which they may overlap."""
    low, high = library.reach(written)
    reaches = [library.reach(x) for x in arrays]
    return [(low - ends, high - begins) for begins, ends in reaches]


def make_recent(
    library: KnownArrays,
    kept: Kept,
    key: tuple[Any, ...],
    inputs: Sequence[Any],
    out: Any,
    addresses: tuple[int, ...],
    result: Any,
) -> None:
    """Let the next call with these arrays find the product by them.

    Parameters
    ----------
    library, kept
        Of the product.
    key : tuple
        What the call will be looked up by.
    inputs : sequence of array
        A, B, and C and the bias as far as there are these.
    out : array or None
        The output that was given.
    addresses : tuple of int
        Of the arrays that were given.
    result : array
        What this call has filled.
    """
    # A guard takes no array twice, but for A that is B too.
    if (
        len(set(map(id, inputs[1:]))) < len(inputs) - 1
        or any(x is inputs[0] for x in inputs[2:])
        or any(address & recent.LOW for address in addresses)
    ):
        return
    if not library.guards_kinds and recent.find(key) is not recent.seen_once:
        # Of arrays that come once nothing is made.
        again: recent.Again | None = recent.seen_once
    elif not library.guards_kinds:
        again = library.again(kept, tuple(inputs), out, result)
    elif (again := kept.again[twice := inputs[0] is inputs[1]]) is None or recent.find(key) is again:
        # There is no guard, or the one there is does not let these arrays through, in this state of the library.
        if kept.guards == MOST_GUARDS:
            return
        kept.guards += 1
        again = library.again(kept, tuple(inputs), out, result)
        if again is not None:
            kept.again[twice] = again
    if again is not None:
        with _adding:
            if kept.generation == generation():
                recent.remember(key, again)
