"""Calls of `scaled_gemm` with arrays on a GPU: found in the call cache before their arguments are checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemmule.core.block_scales import SCALES
from gemmule.dispatch.choices.choice_cache import generation

from ..validation.product import ProductArguments
from .cached_calls import DeviceCall
from .call_cache import CALLS
from .dispatcher import cached_product, product
from .grouped_calls import replay_by, shapes_of


def scaled_product(
    arrays: tuple[Any, ...], out: Any, options: tuple[Any, ...], arguments: Callable[[], ProductArguments]
) -> Any:
    """Compute a scaled product, and cache it where the next call may find it.

    Parameters
    ----------
    arrays : tuple of array
        The operands, their scales, the scale of the result and the bias, as far as there are these: the order in which
        a product with them is described.
    out : array or None
        The output, if it is given.
    options : tuple
        What else distinguishes calls.
    arguments : callable
        Checks the arguments, and returns those of the product.
    """
    a, b, *inputs = arrays
    shapes: tuple[Any, ...] = ()
    # A replay reads two arrays besides the operands, of which the first may be its output.
    if len(inputs) == len(SCALES) and inputs[0] is not out:
        shapes = shapes_of(options, arrays, out)
        if (replay := replay_by(shapes)) is not None:
            # The scales have the places of C and of a bias.
            result = replay(a, b, out, *inputs)
            if result is not None:
                return result
    library: Any = CALLS.library(type(a))
    described = None
    if library is not None and library is not library.host:
        described = library.describe(a, b, (None, *inputs, out), options)
    # Arrays in host memory have no stream.
    if described is None or described[2] is None:
        return product(arguments())
    found = CALLS.by_description.get(described[0])
    if type(found) is DeviceCall:
        result = found.run(library, described, arrays, out, None)
        if result is not None:
            if shapes and library.guards_kinds:
                keys = (options, *map(id, (*arrays, out))), shapes
                CALLS.add_replay(library, found, keys, arrays, out, described[1], result)
            return result
    began = generation()
    call = arguments()
    result = product(call)
    # Converted scales are other arrays at each call.
    if all(call.epilogue_args.get(role) is x for role, x in zip(SCALES, inputs, strict=False)):
        own = cached_product(call)
        if own is not None:
            CALLS.add_call(described[0], own, began)
    return result
