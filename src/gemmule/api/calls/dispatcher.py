"""The dispatcher: a call that the call cache finds is launched, any other is planned, and cached.

Whatever is unusual - another kind of array, an output that may overlap - is planned afresh, so that there is one place
where things are refused.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, cast

from gemmule.core.dtype import FLOAT32
from gemmule.core.problem import TransposeProblem
from gemmule.dispatch.select import generation
from gemmule.runtime.arrays.descriptions import CallArrays, Described, DeviceCallArrays
from gemmule.runtime.replay import Queue
from gemmule.runtime.stream import stream_handle

from ..epilogues.epilogue_key import Traced, traced_epilogue
from ..epilogues.gated import WHOLE
from ..planning.plan import Plan
from ..planning.products import plan_product
from ..planning.transposes import Order, plan_transpose
from ..validation.product import ABSMAX, ProductArguments
from .call_cache import CALLS, DeviceCall, HostCall
from .jax_programs import JaxPrograms, programs_for

#: Stands for the axes of `matrix_transpose`.
LAST_TWO = object()

#: The options of a call as they are looked up; its arrays beside A, B and the output by role, C first; its epilogue.
_Lookup = tuple[tuple[Any, ...], Mapping[str, Any], Traced | None]


def product(call: ProductArguments) -> Any:
    """Compute a product."""
    a, b, out, stream = call.a, call.b, call.out, call.stream
    library = CALLS.library(type(a))
    if library is None:
        programs = programs_for(type(a))
        return plan_product(call).execute() if programs is None else _product_by_program(programs, call)
    lookup = _lookup(call)
    if lookup is None:
        return plan_product(call).execute()
    options, inputs, traced = lookup
    # What a name stands for is known by it; a function is traced.
    by_arrays = library.guarded and traced is None and call.out_dtype is call.precision is call.executor is None
    if by_arrays and library.guards_kinds and (result := _replayed(call)) is not None:
        return result
    described = library.describe(a, b, (*inputs.values(), out), options)
    began = 0
    if described is not None:
        found = CALLS.by_description.get(described[0])
        if found is not None and (result := _repeated(library, found, described, call, inputs)) is not None:
            if (
                by_arrays
                and isinstance(found, DeviceCall)
                and (stream is None or stream_handle(stream) == described[2])
            ):
                given = tuple([x for x in (a, b, *inputs.values()) if x is not None])
                keys = identities(call), _shapes(call)
                CALLS.add_replay(cast("DeviceCallArrays", library), found, keys, given, out, described[1], result)
            return result
        if described[2] is not None:
            began = generation()
    plan = plan_product(call, traced=traced.made if traced is not None else None)
    result = plan.execute()
    if plan.executor == "cpu":
        if traced is None and stream is None:
            CALLS.add_on_host(library, plan, (a, b, call.c, call.bias, out), options)
    elif described is not None and described[2] is not None:
        roles = {role: x for role, x in {"a": a, "b": b, **inputs}.items() if x is not None}
        _add_product(cast("DeviceCallArrays", library), plan, described, roles, result, began)
    return result


def usual_scalars(alpha: Any, beta: Any) -> bool:
    """Return whether alpha and beta are numbers that equal only what means the same: no NaN, and not 0.0 for -0.0."""
    kinds = (int, float)
    return type(alpha) in kinds and type(beta) in kinds and bool(alpha) and alpha == alpha and beta == beta


def identities(call: ProductArguments) -> tuple[Any, ...]:
    """Return what a call whose scalars are numbers, and whose epilogue is a name, is found by among replays.

    `matmul` and `gemm` write it out themselves, as another call would take them longer than to find it.
    """
    if call.operation == "matmul":
        return id(call.a), id(call.b), id(call.out)
    at = (id(call.a), id(call.b), id(call.out), call.alpha, call.beta, call.epilogue)
    return at if call.c is call.bias is None else (*at, id(call.c), id(call.bias))


def _shapes(call: ProductArguments) -> tuple[Any, ...]:
    """Return what such a call is found by with other arrays, of which a guard checks the rest."""
    a, b, c, out = call.a, call.b, call.c, call.out
    at = (a.shape, b.shape, a.dtype, a is b, out is None)
    if call.operation == "matmul":
        return at
    # Arrays that are missing, or one and the same, are none to the guard.
    return (*at, call.alpha, call.beta, call.epilogue, c is None, call.bias is None, c is out)


def _replayed(call: ProductArguments) -> Any:
    """Return the result of a call with other arrays than before, of a kind that a guard lets through; else None."""
    if not CALLS.by_shapes:
        return None
    try:
        replay = CALLS.by_shapes.get(_shapes(call))
    except (AttributeError, RuntimeError):
        # B is no array, or one that has no shape: a nested tensor.
        return None
    if replay is None:
        return None
    stream = None if call.stream is None else stream_handle(call.stream)
    result = replay(call.a, call.b, call.out, call.c, call.bias, stream)
    if result is not None:
        CALLS.remember(identities(call), replay)
    return result


def _lookup(call: ProductArguments) -> _Lookup | None:
    """Return what a call is looked up by beside its arrays; None where it is planned every time."""
    said = 0.0 if call.beta is None else call.beta
    if call.operation != "matmul" and not usual_scalars(call.alpha, said):
        return None
    options: tuple[Any, ...] = (call.operation, call.alpha, said, call.out_dtype, call.precision, call.executor)
    inputs: Mapping[str, Any] = {"c": call.c, "bias": call.bias}
    traced = None
    if not _only_named(call):
        traced = traced_epilogue(call)
        inputs, options = traced.inputs, (*options, *traced.does)
    elif call.epilogue is not None:
        options = (*options, call.epilogue)
    if call.beta is None and call.c is not None and not (traced and traced.made[0].expression.names_c):
        # Nothing would read it: the plan says so.
        return None
    if not (call.out_dtype is call.precision is call.executor is None or _can_be_found_by(options)):
        return None
    return options, inputs, traced


def _only_named(call: ProductArguments) -> bool:
    """Whether what is done to a product, apart from its bias, is known by a name alone, if it is anything."""
    args = call.epilogue_args
    plain = (args is None or (isinstance(args, Mapping) and not args)) and call.gated is call.absmax is None
    return plain and (call.epilogue is None or type(call.epilogue) is str)


def _can_be_found_by(options: tuple[Any, ...]) -> bool:
    """Whether a product can be looked up by these: if not, the plan says what is wrong with them."""
    try:
        hash(options)
    except (TypeError, ValueError):
        # The latter of a memoryview that can be written.
        return False
    return True


def _repeated(
    library: CallArrays,
    found: DeviceCall | HostCall,
    described: Described,
    call: ProductArguments,
    inputs: Mapping[str, Any],
) -> Any:
    """Return the result of a call that is cached; None where a plan has to look at the arrays."""
    in_place, absmax = call.c is call.out, call.absmax
    if isinstance(found, HostCall):
        host = library.host
        return None if host is None or call.stream is not None else found.run(host, described, call.out, in_place)
    if absmax is not None and not found.maximum_apart(described[1], call.out is not None):
        return None
    arrays = (call.a, call.b, *inputs.values())
    result = found.run(cast("DeviceCallArrays", library), described, arrays, call.out, call.stream, in_place=in_place)
    if result is not None and absmax is not None and library.wrote is not None:
        library.wrote(absmax)
    return result


def _add_product(
    library: DeviceCallArrays,
    plan: Plan,
    described: Described,
    inputs: Mapping[str, Any],
    result: Any,
    began: int,
) -> None:
    """Cache what a plan decided, if it is one of launches on a GPU; the inputs are those that were given, by role."""
    queue, key = plan.execution.queue, described[0]
    if plan.executor != "gpu" or queue is None or key in CALLS.by_description:
        return
    order = {role: place for place, role in enumerate(inputs)}
    addresses = tuple([library.address(x) for x in inputs.values()])
    # Of each operand the array, and how far behind its first element it begins.
    begins = []
    for role, address in plan.places.values():
        place = order[role if role in order else WHOLE[role]]
        begins.append((place, address - addresses[place]))
    if ABSMAX in inputs:
        begins.append((order[ABSMAX], 0))
    begins.append((len(inputs), 0))
    queue = _moved(queue, tuple(begins))
    if ABSMAX in inputs:
        queue = _clearing(queue, order[ABSMAX], library.device(inputs["a"]))
    CALLS.add(library, key, queue, tuple(inputs.values()), result, began, maximum=ABSMAX in inputs)


def _moved(queue: Queue, begins: tuple[tuple[int, int], ...]) -> Queue:
    """Return what queues a product given the addresses of arrays, of which its operands are parts."""
    if all(own == (place, 0) for place, own in enumerate(begins)):
        return queue

    def queue_parts(addresses: tuple[int, ...], stream: int) -> None:
        queue(tuple([addresses[place] + beyond for place, beyond in begins]), stream)

    return queue_parts


def _clearing(queue: Queue, place: int, device: int) -> Queue:
    """Return what clears the absolute maximum before a product."""
    from gemmule.runtime.memory import clear

    def queue_both(addresses: tuple[int, ...], stream: int) -> None:
        clear(addresses[place], FLOAT32.itemsize, device, stream)
        queue(addresses, stream)

    return queue_both


def _product_by_program(programs: JaxPrograms, call: ProductArguments) -> Any:
    """Compute a product of JAX's arrays, by a program of XLA's from the second call on."""
    lookup = _lookup(call)
    if lookup is None:
        return plan_product(call).execute()
    options, inputs, traced = lookup
    key = programs.describe(call.a, call.b, (*inputs.values(), call.out), options)
    cached = key is not None and call.stream is None and call.absmax is None
    if cached:
        result = programs.run(key, tuple([x for x in (call.a, call.b, *inputs.values()) if x is not None]))
        if result is not None:
            return result
    plan = plan_product(call, traced=traced.made if traced is not None else None)
    result = plan.execute()
    if cached:
        roles = {role: x for role, x in {"a": call.a, "b": call.b, **inputs}.items() if x is not None}
        programs.keep_product(plan, key, roles, result)
    return result


def transposed(x: Any, axes: Any, order_of: Order, out: Any, stream: Any, executor: str | None) -> Any:
    """Transpose an array.

    Parameters
    ----------
    x, out, stream, executor
        As of `transpose`.
    axes : sequence of int, None, or LAST_TWO
        What tells it from other transposes of `x`.
    order_of : callable
        The same for any number of dimensions.
    """
    simply = executor is None and (axes is None or axes is LAST_TWO)
    if simply:
        replay = CALLS.by_identity.get((axes, id(x), id(out)))
        if replay is not None:
            result = replay(x, x, out, None, None, None if stream is None else stream_handle(stream))
            if result is not None:
                return result
    library = CALLS.library(type(x))
    # Within one array other kernels are at work.
    looked_up = out is not x and (executor is None or isinstance(executor, str))
    if library is None:
        programs = programs_for(type(x)) if stream is None and looked_up else None
        if programs is not None:
            return _transposed_by_program(programs, x, axes, order_of, out, executor)
    described, began = None, 0
    # The host's are not cached.
    if library is not None and library is not library.host and looked_up:
        if simply and library.guards_kinds and (result := _replayed_transpose(x, axes, out, stream)) is not None:
            return result
        # In the place of B the array stands once more.
        described = library.describe(x, x, (None, out), ("transpose", _named(axes), executor))
        if described is not None and described[2] is None:
            described = None
    if described is not None:
        device_library, found = cast("DeviceCallArrays", library), CALLS.by_description.get(described[0])
        if isinstance(found, DeviceCall):
            result = found.run(device_library, described, (x,), out, stream)
            if result is not None:
                if simply and device_library.guarded and (stream is None or stream_handle(stream) == described[2]):
                    keys = (axes, id(x), id(out)), (axes, x.shape, x.dtype, out is None)
                    CALLS.add_replay(device_library, found, keys, (x, x), out, described[1], result)
                return result
        began = generation()
    plan = plan_transpose(x, order_of, out=out, stream=stream, executor=executor)
    result = plan.execute()
    if described is not None:
        queue, problem = plan.execution.queue, plan.problem
        # Another array that lies where this one does says nothing of arrays that are apart.
        if queue is not None and isinstance(problem, TransposeProblem) and not problem.in_place:
            CALLS.add(cast("DeviceCallArrays", library), described[0], queue, (x, x), result, began)
    return result


def _replayed_transpose(x: Any, axes: Any, out: Any, stream: Any) -> Any:
    """Return what `_replayed` does, of a transpose."""
    if not CALLS.by_shapes:
        return None
    try:
        replay = CALLS.by_shapes.get((axes, x.shape, x.dtype, out is None))
    except RuntimeError:
        # It has no shape: a nested tensor.
        return None
    if replay is None:
        return None
    result = replay(x, x, out, None, None, None if stream is None else stream_handle(stream))
    if result is not None:
        CALLS.remember((axes, id(x), id(out)), replay)
    return result


def _transposed_by_program(
    programs: JaxPrograms, x: Any, axes: Any, order_of: Order, out: Any, executor: str | None
) -> Any:
    """Transpose an array of JAX's, by a program of XLA's from the second call on."""
    key = programs.describe(x, x, (None, out), ("transpose", _named(axes), executor))
    if key is not None and (result := programs.run(key, (x,))) is not None:
        return result
    plan = plan_transpose(x, order_of, out=out, stream=None, executor=executor)
    result = plan.execute()
    if key is not None:
        programs.keep_transpose(plan, key, x, result)
    return result


def _named(axes: Any) -> Any:
    """Return axes as they are looked up; what is no sequence of whole numbers is known by itself alone."""
    if axes is None or axes is LAST_TWO:
        return axes
    if not isinstance(axes, Sequence):
        # Looking at an iterator would use it up.
        return object()
    try:
        return tuple(map(operator.index, axes))
    except TypeError:
        return object()
