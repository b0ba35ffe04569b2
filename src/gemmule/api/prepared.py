"""Products that were computed before: what was decided is kept, so that a call looks it up and launches.

A call is known by all that its plan depends on: types, shapes, strides and alignment of its arrays, the device, and the
arguments. Addresses and the stream are not part of it; they are read at every call. Whatever is unusual - another kind
of array, a stream that is named, an output that may overlap - is planned afresh, so that there is one place where
things are refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gemmule.core.errors import KernelFailedError
from gemmule.dispatch.select import forgets_choices, generation

from . import recent
from .known_arrays import KnownArrays, known_library, usual_scalars
from .plan import Plan
from .products import plan_product

#: Queues a product, given addresses and stream.
Queue = Callable[[tuple[int, ...], int], None]
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
    overlap : tuple of (int, int)
        For each input the differences, its address less the output's, between which the two may overlap.
    new : callable
        Makes the output, where the caller gives none.
    began : int
        Generation of choices in which it was planned.
    """

    __slots__ = ("_a", "_b", "_others", "again", "generation", "guards", "new", "queue")

    def __init__(
        self,
        queue: Queue,
        overlap: tuple[tuple[int, int], ...],
        new: Callable[[], Any],
        began: int,
    ) -> None:
        self.queue, self.new, self.generation = queue, new, began
        self.again: recent.Again | None = None
        self.guards = 0
        self._a, self._b, *self._others = overlap

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

    @property
    def overlap(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The differences of A's address, and of B's, at which the output may overlap."""
        return self._a, self._b


# By type of array; None for those whose products are not kept.
_libraries: dict[type, KnownArrays | None] = {}
# Types that are no arrays need no place there.
_MOST_TYPES = 64
_kept: dict[Any, Kept] = {}
_adding = threading.Lock()


def product(
    operation: str,
    a: Any,
    b: Any,
    c: Any,
    alpha: Any,
    beta: Any,
    out: Any,
    out_dtype: Any,
    precision: Any,
    stream: Any,
    executor: Any,
    bias: Any = None,
) -> Any:
    """Compute a product, by what was decided before where the call is known. The parameters are those of `gemm`."""
    kind = type(a)
    library = _libraries[kind] if kind in _libraries else _first_seen(kind)
    known = None
    if library is not None and stream is None and (operation == "matmul" or usual_scalars(alpha, beta)):
        known = library.describe(a, b, (c, bias, out), (operation, alpha, beta, out_dtype, precision, executor))
    if library is not None and known is not None:
        key, addresses, now = known
        try:
            kept = _kept.get(key)
        except TypeError:
            # An argument by which nothing can be found: the plan says whether it is understood.
            kept = known = None
        if kept is not None:
            if out is None:
                result = kept.new()
                kept.queue((*addresses, library.address(result)), now)
                if out_dtype is precision is executor is None:
                    at = (id(a), id(b), id(None)) if operation == "matmul" else called(a, b, c, bias, None, alpha, beta)
                    make_recent(library, kept, at, (a, b, c, bias), None, addresses, result)
                return result
            if kept.apart(addresses, c is out):
                kept.queue(addresses, now)
                if out_dtype is precision is executor is None:
                    at = (id(a), id(b), id(out)) if operation == "matmul" else called(a, b, c, bias, out, alpha, beta)
                    make_recent(library, kept, at, (a, b, c, bias), out, addresses, out)
                return out
    began = generation()
    plan = plan_product(
        operation,
        a,
        b,
        c=c,
        alpha=alpha,
        beta=beta,
        out=out,
        out_dtype=out_dtype,
        precision=precision,
        stream=stream,
        executor=executor,
        bias=bias,
    )
    result = plan.execute()
    if library is not None and known is not None:
        key, addresses, _ = known
        inputs = {"a": a, "b": b, "c": c, "bias": bias}
        given = {role: x for role, x in inputs.items() if x is not None}
        _keep(library, plan, key, given, addresses, result, given=out is not None, began=began)
    return result


def called(a: Any, b: Any, c: Any, bias: Any, out: Any, alpha: Any, beta: Any, epilogue: str | None = None) -> Any:
    """Return what a call of `gemm` whose scalars are numbers is found by among those of late."""
    return id(a), id(b), id(c), id(bias), id(out), alpha, beta, epilogue


def make_recent(
    library: KnownArrays,
    kept: Kept,
    key: tuple[Any, ...],
    arrays: tuple[Any, ...],
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
    arrays : tuple
        A, B, C and the bias, some of which may be None.
    out : array or None
        The output that was given.
    addresses : tuple of int
        Of the arrays that there are.
    result : array
        What this call has filled.
    """
    inputs = tuple([x for x in arrays if x is not None])
    # A guard takes no array twice.
    if len(set(map(id, inputs))) < len(inputs) or any(address & recent.LOW for address in addresses):
        return
    again = kept.again
    if again is None or recent.find(key) is again:
        # There is no guard, or the one there is does not let these arrays through, in this state of the library.
        if kept.guards == MOST_GUARDS:
            return
        kept.guards += 1
        again = library.again(kept, inputs, out, result)
        if again is not None:
            kept.again = again
    if again is not None:
        with _adding:
            if kept.generation == generation():
                recent.remember(key, again)


def find(key: Any) -> Kept | None:
    """Return the product that is known by this, if it is kept."""
    return _kept.get(key)


def forget() -> None:
    """Forget what was decided: kernels or configs would now be chosen otherwise."""
    with _adding:
        _kept.clear()
        recent.forget()


forgets_choices(forget)


def library_for(kind: type) -> KnownArrays | None:
    """Return the library of a type of array, if products of it are kept."""
    return _libraries[kind] if kind in _libraries else _first_seen(kind)


def _first_seen(kind: type) -> KnownArrays | None:
    library = known_library(kind)
    with _adding:
        if len(_libraries) < _MOST_TYPES:
            _libraries[kind] = library
    return library


def _keep(
    library: KnownArrays,
    plan: Plan,
    key: Any,
    inputs: Mapping[str, Any],
    addresses: tuple[int, ...],
    result: Any,
    *,
    given: bool,
    began: int,
) -> None:
    """Keep what a plan decided, if it is one of launches on a GPU."""
    from gemmule.runtime.repeated import repeated

    if plan.executor != "gpu" or plan.choice is None or plan.problem is None or key in _kept:
        return
    if not given:
        addresses = (*addresses, library.address(result))
    names = {role: role for role in inputs}
    if "bias" in inputs:
        # One that lies as the result does takes the place of C.
        names["bias"] = "e0" if "e0" in plan.problem.operands() else "c"
        if names["bias"] in inputs:
            return
    operands = (*names.values(), "d")
    try:
        queue = repeated(plan.problem, plan.choice, operands, addresses, library.device(inputs["a"]))
    except KernelFailedError:
        # Another kernel took its place, and will be planned the next time.
        return
    if queue is not None:
        add(library, key, queue, inputs.values(), result, began)


def add(library: KnownArrays, key: Any, queue: Queue, inputs: Iterable[Any], result: Any, began: int) -> None:
    """Keep what queues a product, under what it is known by; its inputs are in the order of the addresses.

    Not one that was planned before choices were forgotten.
    """
    low, high = library.reach(result)
    overlap = []
    for x in inputs:
        begins, ends = library.reach(x)
        overlap.append((low - ends, high - begins))
    kept = Kept(queue, tuple(overlap), library.maker(result), began)
    with _adding:
        if began != generation():
            return
        while len(_kept) >= MOST_KEPT:
            # Those that are found by their arrays go with it.
            recent.forget()
            del _kept[next(iter(_kept))]
        _kept[key] = kept
