"""Call cache of linear layers: products of tensors of a known description are queued without a plan.

Activations are new tensors at each call, so they are found by their description: the shapes, the type, the precision,
and PyTorch's own guard, which compares types, devices, strides, kinds of tensor, `requires_grad` and the dispatch keys
that modes and transforms set. Addresses and the stream are read at each call, and nothing of a weight but its
description is cached: a parameter that is written, moved or replaced is seen by the next call.
"""

from __future__ import annotations

import dataclasses
import operator
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

import gemmule as gm
from gemmule.api.calls.dispatcher import cached_gemm
from gemmule.dispatch.choices.choice_cache import generation, register_clear
from gemmule.runtime.arrays.torch_guards import quick_maker, tensor_guards
from gemmule.runtime.direct import serial_queue

from .product import (
    PLAIN,
    FormerMemory,
    as_factor,
    bias_role,
    compute,
    is_seen_past_guards,
    lies_in_columns,
    may_skip_operator,
    product_like,
    rows_of,
)

#: Descriptions that are cached; then all of them make room.
MOST_DESCRIPTIONS = 2048
#: Times that a description is looked at, with another guard or in vain; after that it is planned at each call.
MOST_LOOKS = 8
# Calls are cached for operands whose addresses are aligned to more bytes than this; others are planned.
_LOW = 255

_guards = tensor_guards(torch)
_raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (
    lambda device: int(torch.cuda.current_stream(device).cuda_stream)
)
_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_is_grad_enabled = torch.is_grad_enabled
_any_requires_grad = torch._C._any_requires_grad

#: Queues a product, given addresses and stream.
Queue = Callable[[tuple[int, ...], int], None]
#: Makes a result, given a tensor of its type and device.
Maker = Callable[[Any], Any]


# The input and the stream of the layer that was queued last.
_last = [0, 0]


def _follows(x: int, stream: int) -> bool:
    """Return whether the last layer had this input, at an address, and so is likely to be the predecessor in a stream.

    Such are the projections of a query, a key and a value: they overlap. PyTorch's kernels trigger no dependent launch.
    The results are the same.
    """
    follows = _last[0] == x and _last[1] == stream
    _last[:] = x, stream
    return follows


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Forward:
    """A linear layer's product for tensors of one description."""

    check: Callable[..., bool]  #: Guard of input, weight and bias, in the state of PyTorch in which it was made.
    new: Maker  #: Makes the result, given the input.
    #: queue, serial: Queue the product: right after that of a layer with the same input, and after another kernel.
    queue: Queue
    serial: Queue
    device: int  #: The GPU.
    facts: _Facts  #: What a backward has to know.
    backwards: list[_Backward]  #: What is known of its backward; other calls add to it.

    def run(self, x: Any, weight: Any, bias: Any) -> Any:
        """Queue the product and return its result; None where the addresses need a plan of their own."""
        px, pw = x.data_ptr(), weight.data_ptr()
        # A freed storage has no address; what was decided for a tensor times its own transpose holds for that alone.
        if (px | pw) & _LOW or px == pw or not (px and pw):
            return None
        if bias is None:
            out = self.new(x)
            addresses: tuple[int, ...] = (px, pw, out.data_ptr())
        else:
            pb = bias.data_ptr()
            if pb & _LOW or not pb:
                return None
            out = self.new(x)
            addresses = (px, pw, pb, out.data_ptr())
        stream = _raw_stream(self.device)
        (self.queue if _follows(px, stream) else self.serial)(addresses, stream)
        return out


@dataclasses.dataclass(frozen=True, slots=True)
class _Facts:
    """What a backward has to know of its forward: the guard of a cached call tells it, too."""

    precision: str | None
    #: input_in_columns, weight_in_columns: Whether they are column-major, as their gradients are then.
    input_in_columns: bool
    weight_in_columns: bool
    #: of_input, of_weight, of_bias: Which of them require gradients.
    of_input: bool
    of_weight: bool
    of_bias: bool
    requires_grad: bool  #: Whether any of them does.

    @classmethod
    def read(cls, given: tuple[Any, ...], precision: str | None) -> _Facts:
        """Return those of a call with an input, a weight, and a bias if there is one."""
        x, weight, bias = (*given, None)[:3]
        needed = x.requires_grad, weight.requires_grad, bias is not None and bias.requires_grad
        return cls(precision, lies_in_columns(x), lies_in_columns(weight), *needed, any(needed))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Backward:
    """The products of a layer's backward for tensors of one description."""

    check: Callable[..., bool]  #: Guard of the result's gradient and the saved tensors that are needed.
    #: of_input, of_weight: Makes the gradient, and queues its product; None where it is not needed.
    of_input: tuple[Maker, Queue] | None
    of_weight: tuple[Maker, Queue] | None
    device: int  #: The GPU.

    def run(self, grad: Any, *saved: Any) -> tuple[Any, Any] | None:
        """Queue the products and return their results; None where the addresses need a plan of their own.

        What was saved is the input where the weight's gradient is needed, then the weight where the input's is.
        """
        pg, px, pw = grad.data_ptr(), saved[0].data_ptr(), saved[-1].data_ptr()
        if (pg | px | pw) & _LOW or pg in (px, pw) or not (pg and px and pw):
            return None
        stream, of_input, of_weight = _raw_stream(self.device), None, None
        if self.of_input is not None:
            new, queue = self.of_input
            of_input = new(grad)
            queue((pg, pw, of_input.data_ptr()), stream)
        if self.of_weight is not None:
            new, queue = self.of_weight
            of_weight = new(grad)
            queue((pg, px, of_weight.data_ptr()), stream)
        return of_input, of_weight


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Into:
    """A product of two tensors of one description, with a bias or without, into memory that is apart from them."""

    check: Callable[..., bool]  #: Guard of the factors, the bias if there is one, and the output.
    #: queue, serial: As of `_Forward`.
    queue: Queue
    serial: Queue
    device: int  #: The GPU.

    def run(self, a: Any, b: Any, bias: Any, out: Any) -> bool:
        """Queue the product; return False where the addresses need a plan of their own."""
        addresses: tuple[int, ...]
        addresses = pa, pb, at = a.data_ptr(), b.data_ptr(), out.data_ptr()
        together = pa | pb | at
        if bias is not None:
            pc = bias.data_ptr()
            addresses, together = (pa, pb, pc, at), together | pc
        if together & _LOW or pa == pb or 0 in addresses:
            return False
        stream = _raw_stream(self.device)
        (self.queue if _follows(pa, stream) else self.serial)(addresses, stream)
        return True


_forwards: dict[Any, list[_Forward]] = {}
_backwards: dict[Any, list[_Backward]] = {}
_intos: dict[Any, list[_Into]] = {}
# How often each description was looked at.
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
        result = _Linear.apply(x, weight, bias, _Facts.read(given, precision))
    else:
        result = _computed(x, weight, bias, precision)
    key = (x.shape, weight.shape, x.dtype, bias is None, precision, cast)
    _keep(_forwards, key, given, lambda: _forward_of(given, precision))
    return result


def product_into(
    a: Any, b: Any, bias: Any = None, *, out: Any, layouts: str | None = None, precision: str | None = None
) -> None:
    """Compute ``a @ b + bias`` into `out`, in a program of Inductor's: its own memory, apart from the others.

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
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, call: _Forward | _Facts) -> Any:
        known, facts, leaf = (None, call, None) if isinstance(call, _Facts) else (call, call.facts, None)
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
        of_bias = grad.sum(tuple(range(grad.ndim - 1))) if facts.of_bias else None
        if not (facts.of_input or facts.of_weight):
            return None, None, of_bias, None
        saved = ctx.saved_tensors
        makes_graph = _is_grad_enabled()
        repeats = not (makes_graph or is_seen_past_guards())
        if repeats:
            key = (grad.shape, saved[-1].shape, grad.dtype, facts) if call is None else None
            for known in _backwards.get(key, ()) if call is None else call.backwards:
                if known.check(grad, *saved):
                    results = known.run(grad, *saved)
                    if results is not None:
                        return *results, of_bias, None
        x, memory = saved[0], saved[-1]
        if makes_graph and leaf is not None:
            memory = FormerMemory.apply(leaf, memory)
        factor, precision = as_factor(grad, memory.dtype), facts.precision
        of_input = product_like(facts.input_in_columns, factor, memory, 1.0, precision) if facts.of_input else None
        of_weight = None
        if facts.of_weight:
            of_weight = product_like(facts.weight_in_columns, rows_of(factor).mT, rows_of(x), 1.0, precision)
        given = (grad, *saved)
        if repeats and may_skip_operator(given) and all(one.is_contiguous() for one in given):
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
    if first in others or any(address & _LOW for address in (first, *others)):
        return
    if any(known.check(*given) for known in cache.get(key, ())):
        # It is cached, and the addresses need a plan of their own.
        return
    began = generation()
    found = find()
    with _adding:
        if began != generation():
            return
        if len(_looks) >= MOST_DESCRIPTIONS:
            _make_room()
        _looks[key] = looks + 1
        if found is not None:
            cache.setdefault(key, []).insert(0, found)


def _forward_of(given: tuple[Any, ...], precision: str | None) -> _Forward | None:
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
    facts = _Facts.read(given, precision)
    backwards = _backwards.setdefault((result.shape, given[facts.of_input].shape, result.dtype, facts), [])
    return _Forward(_guards(*given), _maker(result), queue, serial_queue(queue), x.get_device(), facts, backwards)


def _into_of(given: tuple[Any, ...], inputs: list[Any], precision: str | None) -> _Into | None:
    a, b, bias = inputs
    queue = cached_gemm(a, b, bias=bias, out=given[-1], precision=precision)
    if queue is None or _guards is None:
        return None
    return _Into(_guards(*given), queue, serial_queue(queue), a.get_device())


def _backward_of(given: tuple[Any, ...], facts: _Facts) -> _Backward | None:
    grad, *saved = (one.detach() for one in given)
    inputs, weights = (grad, saved[-1]), (rows_of(grad).mT, rows_of(saved[0]))
    found: list[tuple[Maker, Queue] | None] = []
    for needed, factors in ((facts.of_input, inputs), (facts.of_weight, weights)):
        queue = cached_gemm(*factors, precision=facts.precision) if needed else None
        if needed and queue is None:
            return None
        a, b = factors
        like = (*a.shape[:-1], b.shape[-1])
        found.append(None if queue is None else (_maker(torch.empty(like, dtype=a.dtype, device=a.device)), queue))
    return None if _guards is None else _Backward(_guards(*given), found[0], found[1], grad.get_device())


def _maker(like: Any) -> Maker:
    """Return a function that makes tensors of a shape and type, the quickest way that PyTorch and these GPUs have."""
    return quick_maker(torch, like) or operator.methodcaller("new_empty", tuple(like.shape))
