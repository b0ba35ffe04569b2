"""Products that were computed before: what was decided is kept, so that a call looks it up and launches.

A call is known by all that its plan depends on: types, shapes, strides and alignment of its arrays, the device, and the
arguments. Addresses and the stream are not part of it; they are read at every call. Whatever is unusual - another kind
of array, a stream that is named, an output that may overlap - is planned afresh, so that there is one place where
things are refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from gemmule.core.errors import KernelFailedError

from .known_arrays import KnownArrays, known_library, usual_scalars
from .plan import Plan
from .products import plan_product

#: Products that are kept; the oldest makes room.
MOST_KEPT = 2048


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
    """

    __slots__ = ("_a", "_b", "_c", "new", "queue")

    def __init__(
        self,
        queue: Callable[[tuple[int, ...], int], None],
        overlap: tuple[tuple[int, int], ...],
        new: Callable[[], Any],
    ) -> None:
        self.queue, self.new = queue, new
        self._a, self._b, *rest = overlap
        self._c = rest[0] if rest else None

    def apart(self, addresses: tuple[int, ...], in_place: bool) -> bool:
        """Whether the output is surely apart from the inputs, from C unless it is the output itself."""
        at = addresses[-1]
        low, high = self._a
        if low < addresses[0] - at < high:
            return False
        low, high = self._b
        if low < addresses[1] - at < high:
            return False
        if self._c is None or in_place:
            return True
        low, high = self._c
        return not low < addresses[2] - at < high


_libraries: dict[type, KnownArrays] = {}
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
) -> Any:
    """Compute a product, by what was decided before where the call is known. The parameters are those of `gemm`."""
    library = _libraries.get(type(a))
    known = None
    if library is not None and stream is None and (operation == "matmul" or usual_scalars(alpha, beta)):
        known = library.describe(a, b, c, out, (operation, alpha, beta, out_dtype, precision, executor))
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
                return result
            if kept.apart(addresses, c is out):
                kept.queue(addresses, now)
                return out
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
    )
    result = plan.execute()
    if library is None:
        _make_known(type(a))
    elif known is not None:
        key, addresses, _ = known
        _keep(library, plan, key, (a, b, *([c] if c is not None else [])), addresses, result, given=out is not None)
    return result


def forget() -> None:
    """Forget what was decided: kernels or configs would now be chosen otherwise."""
    with _adding:
        _kept.clear()


def _make_known(kind: type) -> None:
    library = known_library(kind)
    if library is not None:
        with _adding:
            _libraries[kind] = library


def _keep(
    library: KnownArrays,
    plan: Plan,
    key: Any,
    inputs: tuple[Any, ...],
    addresses: tuple[int, ...],
    result: Any,
    *,
    given: bool,
) -> None:
    """Keep what a plan decided, if it is one of launches on a GPU."""
    from gemmule.runtime.repeated import repeated

    if plan.executor != "gpu" or plan.choice is None or plan.problem is None or key in _kept:
        return
    if not given:
        addresses = (*addresses, library.address(result))
    names = ("a", "b", "c", "d") if len(inputs) > 2 else ("a", "b", "d")
    try:
        queue = repeated(plan.problem, plan.choice, names, addresses, library.device(inputs[0]))
    except KernelFailedError:
        # Another kernel took its place, and will be planned the next time.
        return
    if queue is None:
        return
    low, high = library.reach(result)
    overlap = []
    for x in inputs:
        begins, ends = library.reach(x)
        overlap.append((low - ends, high - begins))
    kept = Kept(queue, tuple(overlap), library.maker(result))
    with _adding:
        while len(_kept) >= MOST_KEPT:
            del _kept[next(iter(_kept))]
        _kept[key] = kept
