"""Products by what was decided before, where the call is known; by a plan, of which the decision is kept, otherwise.

Whatever is unusual - another kind of array, an output that may overlap - is planned afresh, so that there is one place
where things are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmule.core.dtype import FLOAT32
from gemmule.core.errors import KernelFailedError
from gemmule.dispatch.select import generation
from gemmule.runtime.stream import stream_handle

from . import host_call_cache, kept
from .absolute_maximum import ROLE as ABSMAX
from .call_plan import Plan
from .finished import traced_epilogue
from .gated import WHOLE
from .host_call_cache import library_of_host_arrays
from .jax_programs import programs_for
from .known_arrays import KnownArrays, usual_scalars
from .products import plan_product
from .recent import Queue


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
    epilogue: Any = None,
    epilogue_args: Mapping[str, Any] | None = None,
    gated: Any = None,
    absmax: Any = None,
) -> Any:
    """Compute a product. The parameters are those of `gemm`; a beta that nobody said is None."""
    library = kept.library_for(type(a))
    programs = programs_for(type(a)) if library is None else None
    source = library or programs
    known: Any = None
    traced = None
    inputs = {"c": c, "bias": bias}
    said = 0.0 if beta is None else beta
    if source is not None and (operation == "matmul" or usual_scalars(alpha, said)):
        options: tuple[Any, ...] = (operation, alpha, said, out_dtype, precision, executor)
        if epilogue is not None or epilogue_args or gated is not None or absmax is not None:
            traced = traced_epilogue(c, bias, epilogue, epilogue_args, gated, absmax)
            inputs, options = traced.inputs, (*options, *traced.does)
        if beta is None and c is not None and (traced is None or not traced.made[0].expression.names_c):
            # Nothing would read it: the plan says so.
            pass
        elif out_dtype is precision is executor is None or _can_be_found_by(options):
            known = source.describe(a, b, (*inputs.values(), out), options)
    if programs is not None and known is not None and stream is None and absmax is None:
        result = programs.run(known, tuple([x for x in (a, b, *inputs.values()) if x is not None]))
        if result is not None:
            return result
    if library is not None and known is not None:
        key, addresses, current = known
        found = kept.find(key)
        if found is not None and (absmax is None or found.maximum_apart(addresses, out is not None)):
            arrays = (a, b, *inputs.values())
            result = kept.repeat(library, found, known, arrays, out, stream, in_place=c is out)
            if result is not None:
                if absmax is not None and library.wrote is not None:
                    library.wrote(absmax)
                # What a name stands for is known by it; a function has to be traced.
                named = epilogue is None or isinstance(epilogue, str)
                unusual = out_dtype, precision, executor, epilogue_args, gated, absmax
                if stream is not None and stream_handle(stream) != current:
                    return result
                if library.guarded and named and all(x is None for x in unusual):
                    at = called(operation, a, b, c, bias, out, alpha, beta, epilogue)
                    given = tuple([x for x in arrays if x is not None])
                    kept.make_recent(library, found, at, given, out, addresses, result)
                return result
    host = None
    if (
        known is None
        and epilogue_args is gated is absmax is stream is None
        and (epilogue is None or type(epilogue) is str)
        and (operation == "matmul" or usual_scalars(alpha, said))
        and (c is None or beta is not None)
        and (host := library_of_host_arrays(a)) is not None
    ):
        given, asked = (a, b, c, bias, out), (operation, alpha, said, out_dtype, precision, executor, epilogue)
        if not (out_dtype is precision is executor is None or _can_be_found_by(asked)):
            host = None
        elif (result := host_call_cache.repeated(host, given, asked)) is not None:
            return result
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
        epilogue=epilogue,
        epilogue_args=epilogue_args,
        gated=gated,
        absmax=absmax,
        traced=traced.made if traced is not None else None,
    )
    result = plan.execute()
    if host is not None:
        host_call_cache.keep(host, given, asked, plan)
    roles = {role: x for role, x in {"a": a, "b": b, **inputs}.items() if x is not None}
    if programs is not None and known is not None and stream is None and absmax is None:
        programs.keep_product(plan, known, roles, result)
    if library is not None and known is not None:
        key, addresses, _ = known
        if out is None:
            addresses = (*addresses, library.address(result))
        _keep(library, plan, key, roles, addresses, result, began)
    return result


def cached_gemm(
    a: Any, b: Any, c: Any = None, *, beta: float = 0.0, out: Any = None, bias: Any = None, precision: Any = None
) -> Queue | None:
    """Return what queues a call of `gemm` with arrays like these, given their addresses; None where it is not cached.

    The parameters are those of `gemm`, and the addresses those of A, B, C, the bias and the output, as far as there are
    these. The caller answers for their alignment, their overlap, and the kinds of its arrays.
    """
    library = kept.library_for(type(a))
    if library is None:
        return None
    known = library.describe(a, b, (c, bias, out), ("gemm", 1.0, beta, None, precision, None))
    found = None if known is None else kept.find(known[0])
    return None if found is None else found.queue


def called(
    operation: str, a: Any, b: Any, c: Any, bias: Any, out: Any, alpha: Any, beta: Any, epilogue: str | None
) -> tuple[Any, ...]:
    """Return what a call whose scalars are numbers is found by among those of late.

    `matmul` and `gemm` write it out themselves, as another call would take them longer than to find it.
    """
    if operation == "matmul":
        return id(a), id(b), id(out)
    at = (id(a), id(b), id(out), alpha, beta, epilogue)
    return at if c is bias is None else (*at, id(c), id(bias))


def _can_be_found_by(options: tuple[Any, ...]) -> bool:
    """Whether a product can be looked up by these: if not, the plan says what is wrong with them."""
    try:
        hash(options)
    except (TypeError, ValueError):
        # The latter of a memoryview that can be written.
        return False
    return True


def _keep(
    library: KnownArrays,
    plan: Plan,
    key: Any,
    inputs: Mapping[str, Any],
    addresses: tuple[int, ...],
    result: Any,
    began: int,
) -> None:
    """Keep what a plan decided, if it is one of launches on a GPU; the addresses are those of inputs and result."""
    from gemmule.runtime.repeated import repeated

    if plan.executor != "gpu" or plan.choice is None or plan.problem is None or kept.find(key) is not None:
        return
    order = {role: place for place, role in enumerate(inputs)}
    # Of each operand the array, and how far behind its first element it begins.
    begins = []
    for role, address in plan.places.values():
        place = order[role if role in order else WHOLE[role]]
        begins.append((place, address - addresses[place]))
    operands = [*plan.places]
    if ABSMAX in inputs:
        begins.append((order[ABSMAX], 0))
        operands.append(ABSMAX)
    begins.append((len(inputs), 0))
    first = tuple(addresses[place] + beyond for place, beyond in begins)
    device = library.device(inputs["a"])
    try:
        queue = repeated(plan.problem, plan.choice, (*operands, "d"), first, device)
    except KernelFailedError:
        # Another kernel took its place, and will be planned the next time.
        return
    if queue is None:
        return
    queue = _moved(queue, tuple(begins))
    if ABSMAX in inputs:
        queue = _clearing(queue, order[ABSMAX], device)
    kept.add(library, key, queue, tuple(inputs.values()), result, began, maximum=ABSMAX in inputs)


def _moved(queue: Queue, begins: tuple[tuple[int, int], ...]) -> Queue:
    """Return what queues a product given the addresses of arrays, of which its operands are parts."""
    if all(own == (place, 0) for place, own in enumerate(begins)):
        return queue

    def queue_parts(addresses: tuple[int, ...], stream: int) -> None:
        queue(tuple([addresses[place] + beyond for place, beyond in begins]), stream)

    return queue_parts


def _clearing(queue: Queue, place: int, device: int) -> Queue:
    """Return what clears the absolute maximum in front of a product."""
    from gemmule.runtime.memory import clear

    def queue_both(addresses: tuple[int, ...], stream: int) -> None:
        clear(addresses[place], FLOAT32.itemsize, device, stream)
        queue(addresses, stream)

    return queue_both
