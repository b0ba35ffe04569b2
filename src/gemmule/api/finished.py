"""Products with an epilogue that were computed before: looked up as others are, once their function was traced.

A function is traced at every call: what it means may depend on more than the function. What it is known by is what it
does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmule.core.errors import KernelFailedError
from gemmule.dispatch.select import generation

from .epilogues import Ending, ending_of
from .gated import SECOND, WHOLE, storage_of
from .known_arrays import KnownArrays, usual_scalars
from .plan import Plan
from .prepared import Queue, add, called, find, library_for, make_recent
from .products import plan_product


def finished_product(
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
    bias: Any,
    epilogue: Any,
    epilogue_args: Mapping[str, Any] | None,
    gated: Any,
    absmax: Any,
) -> Any:
    """Compute a product with an epilogue, by what was decided before where the call is known.

    The parameters are those of `gemm`.
    """
    traced: tuple[Ending | None, dict[str, Any]] | None = None
    known, inputs = None, {}
    library = library_for(type(a))
    # The absolute maximum is cleared in front of the kernel, at every call.
    if library is not None and stream is None and absmax is None and usual_scalars(alpha, beta):
        storage = storage_of(epilogue, gated)
        ending, arrays = traced = ending_of(epilogue, bias, c, epilogue_args, gated=storage is not None)
        inputs = arrays if gated is None or isinstance(gated, str) else {**arrays, SECOND: gated}
        if ending is not None:
            options = (alpha, beta, out_dtype, precision, executor, storage, *inputs, *_known_by(ending))
            known = library.describe(a, b, (c, *inputs.values(), out), options)
    if library is not None and known is not None:
        key, addresses, now = known
        # What a name stands for is known by it; a function has to be traced.
        simple = isinstance(epilogue, str) and gated is out_dtype is precision is executor is None
        try:
            kept = find(key)
        except TypeError:
            # An argument by which nothing can be found: the plan says whether it is understood.
            kept = known = None
        if kept is not None and out is None:
            result = kept.new()
            kept.queue((*addresses, library.address(result)), now)
            if simple:
                at = called(a, b, c, bias, None, alpha, beta, epilogue)
                make_recent(library, kept, at, (a, b, c, bias), None, addresses, result)
            return result
        if kept is not None and kept.apart(addresses, c is out):
            kept.queue(addresses, now)
            if simple:
                at = called(a, b, c, bias, out, alpha, beta, epilogue)
                make_recent(library, kept, at, (a, b, c, bias), out, addresses, out)
            return out
    began = generation()
    plan = plan_product(
        "gemm",
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
        traced=traced,
    )
    result = plan.execute()
    if library is not None and known is not None:
        key, addresses, _ = known
        given = {role: x for role, x in {"a": a, "b": b, "c": c, **inputs}.items() if x is not None}
        _keep(library, plan, key, given, addresses, result, given_out=out is not None, began=began)
    return result


def _known_by(ending: Ending) -> tuple[Any, ...]:
    """Return what tells an epilogue from others; of numbers their digits, for 0.0 equals -0.0, and NaN nothing."""
    return ending.expression, ending.roles, tuple(map(float.hex, ending.numbers)), ending.gated


def _keep(
    library: KnownArrays,
    plan: Plan,
    key: Any,
    inputs: Mapping[str, Any],
    addresses: tuple[int, ...],
    result: Any,
    *,
    given_out: bool,
    began: int,
) -> None:
    """Keep what a plan decided, if it is one of launches on a GPU."""
    from gemmule.runtime.repeated import repeated

    if plan.executor != "gpu" or plan.choice is None or plan.problem is None or find(key) is not None:
        return
    if not given_out:
        addresses = (*addresses, library.address(result))
    order = {role: place for place, role in enumerate(inputs)}
    # Of each operand the array, and how far behind its first element it begins.
    begins = []
    for role, address in plan.places.values():
        place = order[role if role in order else WHOLE[role]]
        begins.append((place, address - addresses[place]))
    begins.append((len(inputs), 0))
    first = tuple(addresses[place] + beyond for place, beyond in begins)
    try:
        queue = repeated(plan.problem, plan.choice, (*plan.places, "d"), first, library.device(inputs["a"]))
    except KernelFailedError:
        # Another kernel took its place, and will be planned the next time.
        return
    if queue is not None:
        add(library, key, _moved(queue, tuple(begins)), inputs.values(), result, began)


def _moved(queue: Queue, begins: tuple[tuple[int, int], ...]) -> Queue:
    """Return what queues a product given the addresses of arrays, of which its operands are parts."""
    if all(own == (place, 0) for place, own in enumerate(begins)):
        return queue

    def queue_parts(addresses: tuple[int, ...], stream: int) -> None:
        queue(tuple([addresses[place] + beyond for place, beyond in begins]), stream)

    return queue_parts
