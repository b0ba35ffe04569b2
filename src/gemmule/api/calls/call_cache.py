"""The call cache: what was decided for a call, so that the next one like it is looked up and launched.

Calls are found by the identity of their arrays, and by a description: all that a plan depends on, which are types,
shapes, strides and alignment of the arrays, the device, and the arguments. Addresses and the stream are no part of it;
they are read at every call. Whatever is unusual, and an output that may overlap an input, is left to the plan, which is
where calls are refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gemmule.dispatch.choices.choice_cache import generation, register_clear
from gemmule.executor.tiles import Array
from gemmule.runtime.arrays import call_arrays_of
from gemmule.runtime.arrays.descriptions import (
    CallArrays,
    DeviceCallArrays,
    executor_in_environment,
)
from gemmule.runtime.replay import LOW, Queue, Replay

from ..planning.plan import Plan
from .cached_calls import CachedCall, DeviceCall, HostCall

#: Options of a `matmul` that has none.
PLAIN = ("matmul", 1, 0, None, None, None)


def layout_of(a: Array, b: Array) -> tuple[Any, ...]:
    """Return the key of `matmul` with two NumPy arrays alone; it writes this out itself."""
    return executor_in_environment(), a.dtype, b.dtype, a.shape, b.shape, a.strides, b.strides


def seen_once(*_: Any) -> None:
    """Stand for a product that was called once with arrays: compute nothing."""


class CallCache:
    """Calls that were planned, found by the identity of their arrays and by their description.

    Attributes
    ----------
    by_identity : dict of tuple to Replay
        Replays by the identities of the arrays: for `matmul` those of A, B and the output, for `gemm` also alpha, beta
        and the name of the epilogue, then C and the bias if there is one of them. The arrays themselves may be others
        by now.
    by_description : dict of tuple to CachedCall
        Calls by their description.
    by_layout : dict of tuple to callable
        Of `matmul` with two NumPy arrays alone, NumPy's function that multiplies such on the host, by type, shapes and
        strides, and ``GEMMULE_EXECUTOR``. It is called without floating point errors, and takes unaligned arrays.
    by_shapes : dict of tuple to Replay
        Of libraries whose guards let all arrays of a kind through, the replays of the latter that are found by shapes
        and arguments alone: the guard checks the rest of the description.
    """

    #: Calls that are found by their description; the oldest half is evicted.
    MOST_CALLS = 2048
    #: Replays that are found by arrays, or by shapes; the oldest half is evicted.
    MOST_REPLAYS = 4096
    #: Guards that are made for a call: states of the library in which none of them holds are not followed for ever.
    MOST_GUARDS = 8
    # Types that are no arrays need no place.
    _MOST_TYPES = 64

    def __init__(self) -> None:
        self.by_identity: dict[tuple[Any, ...], Replay] = {}
        self.by_description: dict[tuple[Any, ...], CachedCall] = {}
        self.by_shapes: dict[tuple[Any, ...], Replay] = {}
        self.by_layout: dict[tuple[Any, ...], Callable[[Array, Array], Array]] = {}
        # By type of array; None for those whose calls are not cached.
        self.libraries: dict[type, CallArrays | None] = {}
        self._adding = threading.Lock()

    def library(self, kind: type) -> CallArrays | None:
        """Return the library of a type of array, if calls with it are cached."""
        return self.libraries[kind] if kind in self.libraries else self._first_seen(kind)

    def _first_seen(self, kind: type) -> CallArrays | None:
        library = call_arrays_of(kind)
        with self._adding:
            if len(self.libraries) < self._MOST_TYPES:
                self.libraries[kind] = library
        return library

    def forget(self) -> None:
        """Forget what was decided: kernels or configs would now be chosen otherwise."""
        with self._adding:
            self.by_description.clear()
            self.by_identity.clear()
            self.by_shapes.clear()
            self.by_layout.clear()

    def add(
        self,
        library: DeviceCallArrays,
        key: tuple[Any, ...],
        queue: Queue,
        inputs: Sequence[Any],
        result: Any,
        began: int,
        *,
        maximum: bool = False,
    ) -> None:
        """Cache what queues a call under its description, unless it was planned before choices were forgotten.

        Its inputs are in the order of the addresses; the last of them may be that for the absolute maximum.
        """
        absmax_overlap = _overlap(library, (*inputs[:-1], result), inputs[-1]) if maximum else ()
        call = DeviceCall(queue, _overlap(library, inputs, result), library.maker(result), began, absmax_overlap)
        self.add_call(key, call, began)

    def add_call(self, key: tuple[Any, ...], call: CachedCall, began: int) -> None:
        """Cache a call under its description, unless it was planned before choices were forgotten."""
        with self._adding:
            if began == generation():
                self._add(key, call)

    def add_on_host(
        self, library: CallArrays, plan: Plan, given: tuple[Any, ...], options: tuple[Any, ...], began: int
    ) -> None:
        """Cache a product of arrays in host memory, unless it was planned before choices were forgotten.

        The arrays that were given are A, B, C, the bias and the output, some of which may be None.
        """
        product, host = plan.product, library.host
        # The B of a gated activation holds two factors. Of an empty product there is nothing to run again.
        if (
            host is None
            or product is None
            or plan.execution.gemm is None
            or (product.ending is not None and product.ending.expression.gated)
        ):
            return
        shape = product.shape
        host.learn(given)
        a, b, *others = given
        described = library.describe(a, b, tuple(others), options)
        if described is not None:
            call = HostCall(plan, host.host_maker(shape.result, product.out_dtype))
            quick = (
                call.quick
                if type(a) is np.ndarray and options == PLAIN and not any(x is not None for x in others)
                else None
            )
            with self._adding:
                if began != generation():
                    return
                self._add(described[0], call)
                if quick is not None:
                    _evict(self.by_layout, self.MOST_CALLS)
                    self.by_layout[layout_of(a, b)] = quick

    def _add(self, key: tuple[Any, ...], call: CachedCall) -> None:
        # Replays of calls that are evicted stay: they hold all that they need, and are as right as before.
        _evict(self.by_description, self.MOST_CALLS)
        self.by_description[key] = call

    def remember(self, key: tuple[Any, ...], replay: Replay) -> None:
        """Let the next call with these arrays find a replay by them."""
        _evict(self.by_identity, self.MOST_REPLAYS)
        self.by_identity[key] = replay

    def add_replay(
        self,
        library: DeviceCallArrays,
        call: DeviceCall,
        keys: tuple[tuple[Any, ...], tuple[Any, ...]],
        inputs: Sequence[Any],
        out: Any,
        addresses: tuple[int, ...],
        result: Any,
    ) -> None:
        """Let the next call with these arrays, or arrays of these shapes, find the product by them.

        Parameters
        ----------
        library, call
            Descriptions of the product's arrays.
        keys : tuple of (tuple, tuple)
            Key of the next call: the identities of its arrays, and their shapes.
        inputs : sequence of array
            A, B, and C and the bias as far as there are these.
        out : array or None
            The output that was given.
        addresses : tuple of int
            Of the arrays that were given.
        result : array
            Result of this call.
        """
        # A guard takes no array twice, but for A that is B too.
        if (
            len(set(map(id, inputs[1:]))) < len(inputs) - 1
            or any(x is inputs[0] for x in inputs[2:])
            or any(address & LOW for address in addresses)
        ):
            return
        key, shapes = keys
        if not library.guards_kinds and self.by_identity.get(key) is not seen_once:
            # Arrays seen once get no replay.
            replay: Replay | None = seen_once
        elif not library.guards_kinds:
            replay = library.replay(call, tuple(inputs), out, result)
        elif (replay := call.replays[twice := inputs[0] is inputs[1]]) is None or self.by_identity.get(key) is replay:
            # There is no guard, or the one there is does not let these arrays through, in this state of the library.
            if call.guards == self.MOST_GUARDS:
                return
            call.guards += 1
            replay = library.replay(call, tuple(inputs), out, result)
            if replay is not None:
                call.replays[twice] = replay
        if replay is not None:
            with self._adding:
                if call.generation == generation():
                    self.remember(key, replay)
                    if library.guards_kinds:
                        _evict(self.by_shapes, self.MOST_REPLAYS)
                        self.by_shapes[shapes] = replay


def _evict(cached: dict[Any, Any], most: int) -> None:
    """Drop the oldest half of a dictionary that is full; other threads may look up and add meanwhile."""
    if len(cached) >= most:
        for key in list(cached)[: (most + 1) // 2]:
            cached.pop(key, None)


def _overlap(library: DeviceCallArrays, arrays: Sequence[Any], written: Any) -> list[tuple[int, int]]:
    """Return for each array the differences of its address to that of another, between which they may overlap."""
    low, high = library.byte_bounds(written)
    bounds = [library.byte_bounds(x) for x in arrays]
    return [(low - ends, high - begins) for begins, ends in bounds]


#: The calls of this process.
CALLS = CallCache()
register_clear(CALLS.forget)
