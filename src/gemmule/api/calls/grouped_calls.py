"""Calls of `grouped_gemm`: found in the call cache, or planned and cached."""

from __future__ import annotations

from typing import Any

from gemmule.core.block_scales import SCALES
from gemmule.core.grouped_problem import MATRICES, OFFSETS
from gemmule.dispatch.choices.choice_cache import generation
from gemmule.runtime.replay import Replay, queue_of_parts
from gemmule.runtime.stream import stream_handle

from ..epilogues.gated import GATE_BIAS, SECOND, UP_BIAS
from ..planning.grouped_device_products import grouped_queue
from ..planning.grouped_products import plan_groups
from ..planning.plan import Plan
from ..validation.grouped_product import GroupedArguments
from ..validation.scales import name_of
from .cached_calls import DeviceCall
from .call_cache import CALLS


def multiply_groups(
    call: GroupedArguments, options: tuple[Any, ...], inputs: tuple[Any, ...], shapes: tuple[Any, ...]
) -> Any:
    """Compute a grouped product, and cache it where the next call may find it.

    Parameters
    ----------
    call : GroupedArguments
        The arguments.
    options : tuple
        Those that are no arrays and part of the key.
    inputs : tuple of array
        Those that are arrays, but the output.
    shapes : tuple
        As of `shapes_of`; empty where the call is not found by them.
    """
    library: Any = CALLS.library(type(call.a))
    if library is None or library is library.host or not _can_be_cached(call):
        return plan_groups(call).execute()
    out, stream = call.out, call.stream
    guarded = library.guards_kinds and bool(shapes)
    arrays = call.divider[1], call.bias, call.scale_a, call.scale_b, out
    described = library.describe(call.a, call.b, arrays, options)
    # Arrays in host memory have no stream.
    if described is None or described[2] is None:
        return plan_groups(call).execute()
    found = CALLS.by_description.get(described[0])
    if isinstance(found, DeviceCall):
        result = found.run(library, described, inputs, out, stream)
        if result is not None:
            if guarded and (stream is None or stream_handle(stream) == described[2]):
                keys = (options, *map(id, (*inputs, out))), shapes
                CALLS.add_replay(library, found, keys, inputs, out, described[1], result)
            return result
    began = generation()
    plan = plan_groups(call)
    result = plan.execute()
    problem: Any = plan.problem
    if problem is not None:
        queue = queue_of_parts(grouped_queue(problem, library.device(call.a), began), _begins(plan, library, inputs))
        CALLS.add(library, described[0], queue, inputs, result, began)
    return result


def shapes_of(options: tuple[Any, ...], inputs: tuple[Any, ...], out: Any) -> tuple[Any, ...]:
    """Return the key of a call among replays, of which a guard checks the rest."""
    try:
        return options, inputs[0].dtype, out is None, *[x.shape for x in inputs]
    except (AttributeError, RuntimeError):
        # Something is no array, or has no shape: a nested tensor.
        return ()


def replay_by(shapes: tuple[Any, ...]) -> Replay | None:
    """Return the replay of a call that `shapes_of` describes, if there is one."""
    try:
        return CALLS.by_shapes.get(shapes)
    except TypeError:
        # Extents that a trace has symbols for have no hash.
        return None


def _begins(plan: Plan, library: Any, inputs: tuple[Any, ...]) -> tuple[tuple[int, int], ...]:
    """Return for each operand of a launch the array of the call, and how far behind its first element it begins."""
    places = {"a": 0, "b": 1, OFFSETS: 2, MATRICES: 2, SECOND: 1, "bias": 3, GATE_BIAS: 3, UP_BIAS: 3}
    places |= {role: len(inputs) - len(SCALES) + place for place, role in enumerate(SCALES)}
    addresses = [library.address(x) for x in inputs]
    begins = [(places[role], address - addresses[places[role]]) for role, address in plan.places.values()]
    return (*begins, (len(inputs), 0))


def is_name(option: Any) -> bool:
    """Return whether an option is left out, a string or one of PyTorch's types."""
    return option is None or type(option) is str or getattr(type(option), "__module__", "") == "torch"


def _can_be_cached(call: GroupedArguments) -> bool:
    """Return whether a call with arrays on a GPU may be found by its description."""
    plain = call.executor is None and all(map(is_name, (call.out_dtype, call.precision, call.epilogue)))
    # Other scales are converted, to arrays that the call does not have.
    read = all(name_of(x) == "float32" for x in call.scales.values())
    # Both, or a bias with indices of matrices, are refused by the plan.
    one = (call.offsets is None) != (call.matrices is None) and (call.matrices is None or call.bias is None)
    return one and plain and read
