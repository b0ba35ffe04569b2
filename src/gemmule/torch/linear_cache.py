"""Call cache of linear layers: products of tensors of a known description are queued without a plan.

Activations are new tensors at each call, so they are found by their description: the shapes, the type, the precision,
and PyTorch's own guard, which compares types, devices, strides, kinds of tensor, `requires_grad` and the dispatch keys
that modes and transforms set. Addresses and the stream are read at each call, and nothing of a weight but its
description is cached: a parameter that is written, moved or replaced is seen by the next call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

import gemmule as gm
from gemmule.api.calls.dispatcher import cached_gemm
from gemmule.dispatch.choices.choice_cache import generation, register_clear
from gemmule.runtime.arrays.torch_guards import tensor_guards
from gemmule.runtime.direct import serial_queue

from . import linear_calls
from .column_sums import column_sums, queued_sums
from .linear_calls import Backward, Facts, Forward, Into, Maker, Queue, maker
from .product import (
    PLAIN,
    FormerMemory,
    as_factor,
    bias_role,
    compute,
    is_seen_past_guards,
    may_skip_operator,
    product_like,
    rows_of,
)

#: Descriptions that are cached; then all of them make room.
MOST_DESCRIPTIONS = 2048
#: Times that a description is looked at, with another guard or in vain; after that it is planned at each call.
MOST_LOOKS = 8

_guards = tensor_guards(torch)
_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_is_grad_enabled = torch.is_grad_enabled
_any_requires_grad = torch._C._any_requires_grad

_forwards: dict[Any, list[Forward]] = {}
_backwards: dict[Any, list[Backward]] = {}
_intos: dict[Any, list[Into]] = {}
# Number of look-ups of each description.
_looks: dict[Any, int] = {}
_adding = threading.Lock()


def forget() -> None:
    """Forget all calls: kernels or configs would now be chosen otherwise."""
    with _adding:
        _make_room()


def _make_room() -> None:
    # Calls that are under way have the lists.
    for known in _backwards.values():
        known.clear()
    for cache in (_forwards, _backwards, _intos, _looks):
        cache.clear()


register_clear(forget)


def repeated(x: Any, weight: Any, bias: Any, precision: str | None, cast: bool = False) -> Any:
    """Return the result of a call whose description is cached; None where the arguments have to be looked at.

    The parameters are those of `linear`, and whether autocast has cast them: other calls than these it may cast yet.
    """
    if type(x) not in PLAIN or type(weight) not in PLAIN:
        return None
    try:
        known = _forwards.get((x.shape, weight.shape, x.dtype, bias is None, precision, cast))
    except (RuntimeError, TypeError):
        # Nested tensors have no shape, and a precision may be anything.
        return None
    if known is None:
        return None
    for call in known:
        if call.check(x, weight) if bias is None else call.check(x, weight, bias):
            if is_seen_past_guards():
                return None
            if call.facts.requires_grad and _is_grad_enabled():
                return _Linear.apply(x, weight, bias, call)
            return call.run(x, weight, bias)
    return None


def planned(x: Any, weight: Any, bias: Any, precision: str | None, cast: bool) -> Any:
    """Compute a layer where nothing but autograd sees it, and cache the call; parameters as of `repeated`."""
    given = (x, weight) if bias is None else (x, weight, bias)
    if _is_grad_enabled() and _any_requires_grad(*given):
        result = _Linear.apply(x, weight, bias, Facts.read(given, precision))
    else:
        result = _computed(x, weight, bias, precision)
    key = (x.shape, weight.shape, x.dtype, bias is None, precision, cast)
    _keep(_forwards, key, given, lambda: _forward_of(given, precision))
    return result


def product_into(
    a: Any, b: Any, bias: Any = None, *, out: Any, layouts: str | None = None, precision: str | None = None
) -> None:
    """Compute ``a @ b + bias`` into `out`, in a program of Inductor's: its own memory, without overlap.

    Such a program has plain tensors. Where it says what `layouts` they have, in words that no other layouts or
    precision have, nothing else has to be read of them but the addresses.
    """
    given = (a, b, out) if bias is None else (a, b, bias, out)
    key = (a.shape, b.shape, a.dtype, bias is None, precision) if layouts is None else layouts
    for known in _intos.get(key, ()):
        if (layouts is not None or known.check(*given)) and known.run(a, b, bias, out):
            return
    # Parameters ask for gradients in programs that are trained.
    inputs = [one.detach() if one is not None and one.requires_grad else one for one in (a, b, bias)]
    gm.gemm(*inputs[:2], bias=inputs[2], out=out, precision=precision)
    # The first call of a program is within a mode of the compiler's, in which no call is cached: nothing is looked for.
    # A mode for functions, as that of a default device, or a profiler sees nothing within a program.
    if not (_dispatch_modes() or forward_ad._current_level >= 0):
        _keep(_intos, key, given, lambda: _into_of(given, inputs, precision))


def _computed(x: Any, weight: Any, bias: Any, precision: str | None) -> Any:
    return compute(x, weight.mT, bias, 1.0, 0.0 if bias is None else 1.0, None, precision)


class _Linear(torch.autograd.function._SingleLevelFunction):
    """A linear layer where nothing but autograd sees it.

    It saves the input for a weight that needs a gradient, and the memory of the weight for such an input, as PyTorch's
    own does: another ``weight.data`` replaces the memory of the weight itself. It saves the same tensors whether or not
    the call is cached: activation checkpointing compares them with those of the second forward.
    """

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, call: Forward | Facts) -> Any:
        known, facts, leaf = (None, call, None) if isinstance(call, Facts) else (call, call.facts, None)
        if facts.of_input:
            memory = weight
            if weight.is_leaf:
                leaf, memory = weight, weight.detach()
            ctx.save_for_backward(x, memory) if facts.of_weight else ctx.save_for_backward(memory)
        elif facts.of_weight:
            ctx.save_for_backward(x)
        ctx.set_materialize_grads(False)
        ctx.made_of = leaf, facts, known
        result = None if known is None else known.run(x, weight, bias)
        return _computed(x, weight, bias, facts.precision) if result is None else result

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        if grad is None:
            return None, None, None, None
        leaf, facts, call = ctx.made_of
        saved = ctx.saved_tensors
        makes_graph = _is_grad_enabled()
        repeats = not (makes_graph or is_seen_past_guards())
        if repeats and saved:
            key = (grad.shape, saved[-1].shape, grad.dtype, facts) if call is None else None
            for known in _backwards.get(key, ()) if call is None else call.backwards:
                if known.check(grad, *saved):
                    results = known.run(grad, *saved)
                    if results is not None:
                        return *results, None
        given = (grad, *saved)
        skips = repeats and may_skip_operator(given)
        of_bias = column_sums(grad, skips) if facts.of_bias else None
        if not saved:
            return None, None, of_bias, None
        x, memory = saved[0], saved[-1]
        if makes_graph and leaf is not None:
            memory = FormerMemory.apply(leaf, memory)
        factor, precision = as_factor(grad, memory.dtype), facts.precision
        of_input = product_like(facts.input_in_columns, factor, memory, 1.0, precision) if facts.of_input else None
        of_weight = None
        if facts.of_weight:
            of_weight = product_like(facts.weight_in_columns, rows_of(factor).mT, rows_of(x), 1.0, precision)
        if skips and all(one.is_contiguous() for one in given):
            key = (grad.shape, saved[-1].shape, grad.dtype, facts)
            _keep(_backwards, key, given, lambda: _backward_of(given, facts))
        return of_input, of_weight, of_bias, None


def _keep(cache: dict[Any, Any], key: Any, given: tuple[Any, ...], find: Callable[[], Any]) -> None:
    """Cache what `find` finds of a call that was planned; None is found where there is nothing to repeat."""
    looks = _looks.get(key, 0)
    # A guard takes no tensor twice.
    if _guards is None or looks >= MOST_LOOKS or len(set(map(id, given))) < len(given):
        return
    first, *others = (one.data_ptr() for one in given)
    # The first is a factor of each product. A plan for two factors in the same memory (SYRK) holds for such alone.
    if first in others or any(address & linear_calls.LOW for address in (first, *others)):
        return
    if any(known.check(*given) for known in cache.get(key, ())):
        # It is cached, and the addresses need a plan of their own.
        return
    with _adding:
        if len(_looks) >= MOST_DESCRIPTIONS:
            _make_room()
    # A forward has the list of its backwards from now on.
    began = generation()
    found = find()
    with _adding:
        if began != generation():
            return
        _looks[key] = looks + 1
        if found is not None:
            cache.setdefault(key, []).insert(0, found)


def _forward_of(given: tuple[Any, ...], precision: str | None) -> Forward | None:
    x, weight = given[0].detach(), given[1].detach()
    result = torch.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype, device=x.device)
    # As `compute` calls it.
    if len(given) == 2:
        queue = cached_gemm(x, weight.mT, precision=precision)
    else:
        bias = given[2].detach()
        role = bias_role(x.is_cuda, x.dtype, precision)
        options = {"bias": bias} if role == "bias" else {"c": bias.expand(result.shape), "beta": 1.0}
        queue = cached_gemm(x, weight.mT, precision=precision, **options) if role else None
    if queue is None or _guards is None:
        return None
    facts = Facts.read(given, precision)
    # The last saved tensor is the weight if the input requires a gradient, and the input otherwise.
    backwards = _backwards.setdefault((result.shape, given[facts.of_input].shape, result.dtype, facts), [])
    return Forward(_guards(*given), maker(result), queue, serial_queue(queue), x.get_device(), facts, backwards)


def _into_of(given: tuple[Any, ...], inputs: list[Any], precision: str | None) -> Into | None:
    a, b, bias = inputs
    queue = cached_gemm(a, b, bias=bias, out=given[-1], precision=precision)
    if queue is None or _guards is None:
        return None
    return Into(_guards(*given), queue, serial_queue(queue), a.get_device())


def _backward_of(given: tuple[Any, ...], facts: Facts) -> Backward | None:
    grad, *saved = (one.detach() for one in given)
    inputs, weights = (grad, saved[-1]), (rows_of(grad).mT, rows_of(saved[0]))
    found: list[tuple[Maker, Queue] | None] = []
    for needed, factors in ((facts.of_input, inputs), (facts.of_weight, weights)):
        queue = cached_gemm(*factors, precision=facts.precision) if needed else None
        if needed and queue is None:
            return None
        a, b = factors
        like = (*a.shape[:-1], b.shape[-1])
        found.append(None if queue is None else (maker(torch.empty(like, dtype=a.dtype, device=a.device)), queue))
    of_bias = queued_sums(grad, maker) if facts.of_bias else None
    return None if _guards is None else Backward(_guards(*given), found[0], found[1], of_bias, grad.get_device())
