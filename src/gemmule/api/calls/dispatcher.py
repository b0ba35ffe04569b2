"""The dispatcher: a call that the call cache finds is launched, any other is planned, and cached.

Whatever is unusual - another kind of array, an output that may overlap - is planned afresh, so that there is one place
where things are refused.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from gemmule.core.dtype import FLOAT32
from gemmule.core.problem import TransposeProblem
from gemmule.dispatch.choices.choice_cache import generation
from gemmule.runtime.arrays.descriptions import Described, DeviceCallArrays
from gemmule.runtime.replay import Queue, queue_of_parts
from gemmule.runtime.stream import stream_handle

from ..epilogues.epilogue_key import Traced, traced_epilogue
from ..epilogues.gated import WHOLE
from ..planning.plan import Plan
from ..planning.products import plan_product
from ..planning.transposes import Order, plan_transpose
from ..validation.product import ABSMAX, ProductArguments
from .cached_calls import DeviceCall, HostCall
from .call_cache import CALLS
from .jax_programs import JaxPrograms, programs_for

#: Stands for the axes of `matrix_transpose`.
LAST_TWO = object()

_find = CALLS.by_description.get


def product(call: ProductArguments, identities: tuple[Any, ...] | None = None) -> Any:
    """Compute a product.

    Parameters
    ----------
    call : ProductArguments
        The arguments.
    identities : tuple, optional
        Key of the failed look-up among replays; None without a look-up.
    """
    a, c, out, stream = call.a, call.c, call.out, call.stream
    # On the GPU or on the host, by the description.
    library: Any = CALLS.libraries.get(type(a)) or CALLS.library(type(a))
    if library is None:
        return _product_of_others(call)
    epilogue, traced, alpha, beta = call.epilogue, None, call.alpha, call.beta
    beta_or_zero = 0.0 if beta is None else beta
    conj = call.conj
    if call.operation != "matmul" and not usual_scalars(alpha, beta_or_zero):
        return plan_product(call).execute()
    by_arrays = library.guarded and call.out_dtype is call.precision is call.executor is None and not conj
    # A name identifies an epilogue; a function is traced.
    simple = call.epilogue_args is call.gated is call.absmax is None and (epilogue is None or type(epilogue) is str)
    unread = beta is None and c is not None
    if by_arrays and simple and not unread and library.guards_kinds and CALLS.by_shapes:
        replay = CALLS.by_shapes.get(_shapes(call))
        if replay is not None:
            result = replay(a, call.b, out, c, call.bias, None if stream is None else stream_handle(stream))
            if result is not None:
                CALLS.remember(identities or _identities(call), replay)
                return result
    options: tuple[Any, ...] = (call.operation, alpha, beta_or_zero, call.out_dtype, call.precision, call.executor)
    others = (c, call.bias, out)
    if conj:
        options = (*options, conj)
    if simple or _only_named(call):
        if epilogue is not None:
            options = (*options, epilogue)
    else:
        traced = traced_epilogue(call)
        others, options = (*traced.inputs.values(), out), (*options, *traced.does)
        unread = unread and not traced.made[0].expression.names_c
    # The plan rejects a C that nothing would read, and invalid options.
    if unread or not (call.out_dtype is call.precision is call.executor is None or _can_be_found_by(options)):
        return plan_product(call).execute()
    described = library.describe(a, call.b, others, options)
    if described is not None:
        found = _find(described[0])
        if type(found) is HostCall:
            result = None if stream is not None else found.run(library, described, out, c is out)
            if result is not None:
                return result
        elif type(found) is DeviceCall:
            result = _repeated(library, found, described, call, others)
            if result is not None:
                if by_arrays and traced is None and (stream is None or stream_handle(stream) == described[2]):
                    given = tuple([x for x in (a, call.b, *others[:-1]) if x is not None])
                    keys = identities or _identities(call), _shapes(call)
                    CALLS.add_replay(library, found, keys, given, out, described[1], result)
                return result
    began = generation()
    plan = plan_product(call, traced=traced.made if traced is not None else None)
    result = plan.execute()
    if plan.product is not None:
        if traced is None and stream is None and not conj:
            CALLS.add_on_host(library, plan, (a, call.b, *others), options, began)
    elif described is not None and described[2] is not None:
        _add_product(library, plan, described, _roles(call, traced), result, began)
    return result


def cached_gemm(
    a: Any, b: Any, c: Any = None, *, beta: float = 0.0, out: Any = None, bias: Any = None, precision: Any = None
) -> Queue | None:
    """Return a function that queues a cached call of `gemm` with arrays like these, given their addresses, or None.

    The parameters are those of `gemm`, and the addresses those of A, B, C, the bias and the output, as far as there are
    these. The caller answers for their alignment, their overlap, and the kinds of its arrays.
    """
    library: Any = CALLS.library(type(a))
    if library is None:
        return None
    described = library.describe(a, b, (c, bias, out), ("gemm", 1.0, beta, None, precision, None))
    found = None if described is None else _find(described[0])
    return found.queue if isinstance(found, DeviceCall) else None


def cached_product(call: ProductArguments) -> DeviceCall | None:
    """Return what the call cache has of a product with an epilogue that is traced, or None."""
    library: Any = CALLS.library(type(call.a))
    traced = traced_epilogue(call)
    options = (call.operation, call.alpha, call.beta, call.out_dtype, call.precision, call.executor, *traced.does)
    described = library.describe(call.a, call.b, (*traced.inputs.values(), call.out), options)
    found = None if described is None else _find(described[0])
    return found if isinstance(found, DeviceCall) else None


def _roles(call: ProductArguments, traced: Traced | None) -> dict[str, Any]:
    """Return the arrays of a call but the output, by role, in the order in which they are described."""
    inputs = {"c": call.c, "bias": call.bias} if traced is None else traced.inputs
    return {role: x for role, x in {"a": call.a, "b": call.b, **inputs}.items() if x is not None}


def usual_scalars(alpha: Any, beta: Any) -> bool:
    """Return whether alpha and beta are numbers that equal only what means the same: no NaN, and not 0.0 for -0.0."""
    kinds = (int, float)
    return type(alpha) in kinds and type(beta) in kinds and bool(alpha) and alpha == alpha and beta == beta


def _identities(call: ProductArguments) -> tuple[Any, ...]:
    """Return the key among replays of a call whose scalars are numbers, and whose epilogue is a name.

    `matmul` and `gemm` write it out themselves, as another call would take them longer than to find it.
    """
    if call.operation == "matmul":
        return id(call.a), id(call.b), id(call.out)
    at = (id(call.a), id(call.b), id(call.out), call.alpha, call.beta, call.epilogue)
    return at if call.c is call.bias is None else (*at, id(call.c), id(call.bias))


def _shapes(call: ProductArguments) -> tuple[Any, ...]:
    """Return the key of such a call with other arrays, of which a guard checks the rest."""
    a, b, c, out = call.a, call.b, call.c, call.out
    try:
        at = (a.shape, b.shape, a.dtype, a is b, out is None)
    except (AttributeError, RuntimeError):
        # B is no array, or one of them has no shape: a nested tensor.
        return ()
    if call.operation == "matmul":
        return at
    # Arrays that are missing, or one and the same, are none to the guard.
    return (*at, call.alpha, call.beta, call.epilogue, c is None, call.bias is None, c is out)


def _only_named(call: ProductArguments) -> bool:
    """Whether the epilogue of a product, besides its bias, is absent or identified by a name."""
    args = call.epilogue_args
    plain = (args is None or (isinstance(args, Mapping) and not args)) and call.gated is call.absmax is None
    return plain and (call.epilogue is None or type(call.epilogue) is str)


def _can_be_found_by(options: tuple[Any, ...]) -> bool:
    """Whether a product can be looked up by these; if not, the plan rejects them."""
    try:
        hash(options)
    except (TypeError, ValueError):
        # The latter of a memoryview that can be written.
        return False
    return True


def _repeated(
    library: DeviceCallArrays, found: DeviceCall, described: Described, call: ProductArguments, others: tuple[Any, ...]
) -> Any:
    """Return the result of a call that is cached; None where a plan has to look at the arrays."""
    absmax = call.absmax
    if absmax is not None and not found.absmax_no_overlap(described[1], call.out is not None):
        return None
    arrays = (call.a, call.b, *others[:-1])
    result = found.run(library, described, arrays, call.out, call.stream, in_place=call.c is call.out)
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
    # For each operand, the array and the offset of its first element.
    begins = []
    for role, address in plan.places.values():
        place = order[role if role in order else WHOLE[role]]
        begins.append((place, address - addresses[place]))
    if ABSMAX in inputs:
        begins.append((order[ABSMAX], 0))
    begins.append((len(inputs), 0))
    queue = queue_of_parts(queue, tuple(begins))
    if ABSMAX in inputs and not plan.execution.clears_absmax:
        queue = _clearing(queue, order[ABSMAX], library.device(inputs["a"]))
    CALLS.add(library, key, queue, tuple(inputs.values()), result, began, maximum=ABSMAX in inputs)


def _clearing(queue: Queue, place: int, device: int) -> Queue:
    """Return a function that clears the absolute maximum before it queues a product."""
    from gemmule.runtime.memory import clear

    def queue_both(addresses: tuple[int, ...], stream: int) -> None:
        clear(addresses[place], FLOAT32.itemsize, device, stream)
        queue(addresses, stream)

    return queue_both


def _product_of_others(call: ProductArguments) -> Any:
    """Compute a product of arrays that are not in the call cache: of JAX's by a program from the second call on."""
    programs = programs_for(type(call.a))
    beta_or_zero = 0.0 if call.beta is None else call.beta
    if programs is None or call.conj or not (call.operation == "matmul" or usual_scalars(call.alpha, beta_or_zero)):
        return plan_product(call).execute()
    options: tuple[Any, ...] = (call.operation, call.alpha, beta_or_zero, call.out_dtype, call.precision, call.executor)
    traced = None
    if not (call.epilogue is None and _only_named(call)):
        traced = traced_epilogue(call)
        options = (*options, *traced.does)
    roles, key = _roles(call, traced), None
    # Unused arguments, and those that differ from call to call, are left to the plan.
    names_c = traced is not None and traced.made[0].expression.names_c
    if (call.beta is not None or call.c is None or names_c) and _can_be_found_by(options):
        inputs = {"c": call.c, "bias": call.bias} if traced is None else traced.inputs
        if call.stream is call.absmax is None:
            key = programs.describe(call.a, call.b, (*inputs.values(), call.out), options)
    if key is not None and (result := programs.run(key, tuple(roles.values()))) is not None:
        return result
    plan = plan_product(call, traced=traced.made if traced is not None else None)
    result = plan.execute()
    if key is not None:
        programs.keep_product(plan, key, roles, result)
    return result


def transposed(x: Any, axes: Any, order_of: Order, out: Any, stream: Any, executor: str | None) -> Any:
    """Transpose an array.

    Parameters
    ----------
    x, out, stream, executor
        As of `transpose`.
    axes : sequence of int, None, or LAST_TWO
        Key among the transposes of `x`.
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
    library: Any = CALLS.library(type(x))
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
        found = CALLS.by_description.get(described[0])
        if isinstance(found, DeviceCall):
            result = found.run(library, described, (x,), out, stream)
            if result is not None:
                if simply and library.guarded and (stream is None or stream_handle(stream) == described[2]):
                    keys = (axes, id(x), id(out)), (axes, x.shape, x.dtype, out is None)
                    CALLS.add_replay(library, found, keys, (x, x), out, described[1], result)
                return result
        began = generation()
    plan = plan_transpose(x, order_of, out=out, stream=stream, executor=executor)
    result = plan.execute()
    if described is not None:
        queue, problem = plan.execution.queue, plan.problem
        # The launch of a transpose in place, of one address, holds for no other call.
        if queue is not None and isinstance(problem, TransposeProblem) and not problem.in_place:
            CALLS.add(library, described[0], queue, (x, x), result, began)
    return result


def _replayed_transpose(x: Any, axes: Any, out: Any, stream: Any) -> Any:
    """Return the result of a replayed transpose; None where it is not found, or its guard refuses the arrays."""
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
    """Return axes as a key; anything but a sequence of whole numbers is a key by identity."""
    if axes is None or axes is LAST_TWO:
        return axes
    if not isinstance(axes, Sequence):
        # Looking at an iterator would use it up.
        return object()
    try:
        return tuple(map(operator.index, axes))
    except TypeError:
        return object()
