"""Calls of linear layers that are cached: what is queued for tensors of one description, given their addresses."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import torch

from gemmule.runtime.arrays.torch_guards import quick_maker
from gemmule.runtime.graph_nodes import was_captured_last

from .product import lies_in_columns

#: Calls are cached for operands whose addresses are aligned to more bytes than this; others are planned.
LOW = 255
raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (
    lambda device: int(torch.cuda.current_stream(device).cuda_stream)
)
_is_capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing

#: Queues a product, given addresses and stream.
Queue = Callable[[tuple[int, ...], int], None]
#: Makes a result, given a tensor of its type and device.
Maker = Callable[[Any], Any]


# The input, the stream and the launch of the layer that was queued last.
_last: list[Any] = [0, 0, None]


def _follows(x: int, stream: int, queue: Queue) -> bool:
    """Return whether the last layer had this input, at an address, and so is likely to be the predecessor in a stream.

    Such are the projections of a query, a key and a value: they overlap. PyTorch's kernels trigger no dependent launch,
    behind which one begins half a microsecond later. Of a graph that is being captured it is known: between the two
    projections of a gated layer there is its activation. The results are the same.
    """
    follows, last = _last[0] == x and _last[1] == stream, _last[2]
    _last[:] = x, stream, queue
    return follows and (not _is_capturing() or was_captured_last(last, stream))


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """Facts of a forward that its backward needs, part of a cached call's guard."""

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
    def read(cls, given: tuple[Any, ...], precision: str | None) -> Facts:
        """Return those of a call with an input, a weight, and a bias if there is one."""
        x, weight, bias = (*given, None)[:3]
        needed = x.requires_grad, weight.requires_grad, bias is not None and bias.requires_grad
        return cls(precision, lies_in_columns(x), lies_in_columns(weight), *needed, any(needed))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """A linear layer's product for tensors of one description."""

    check: Callable[..., bool]  #: Guard of input, weight and bias, in the state of PyTorch in which it was made.
    new: Maker  #: Makes the result, given the input.
    #: queue, serial: Queue the product: right after that of a layer with the same input, and after another kernel.
    queue: Queue
    serial: Queue
    device: int  #: The GPU.
    facts: Facts  #: Facts that the backward needs.
    backwards: list[Backward]  #: Cached backward calls; others are added.

    def run(self, x: Any, weight: Any, bias: Any) -> Any:
        """Queue the product and return its result; None where the addresses need a plan of their own."""
        px, pw = x.data_ptr(), weight.data_ptr()
        # A freed storage has no address; what was decided for a tensor times its own transpose holds for that alone.
        if (px | pw) & LOW or px == pw or not (px and pw):
            return None
        if bias is None:
            out = self.new(x)
            addresses: tuple[int, ...] = (px, pw, out.data_ptr())
        else:
            pb = bias.data_ptr()
            if pb & LOW or not pb:
                return None
            out = self.new(x)
            addresses = (px, pw, pb, out.data_ptr())
        stream = raw_stream(self.device)
        (self.queue if _follows(px, stream, self.queue) else self.serial)(addresses, stream)
        return out


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Backward:
    """The gradients of a layer for tensors of one description."""

    check: Callable[..., bool]  #: Guard of the result's gradient and the saved tensors that are needed.
    #: of_input, of_weight: Makes the gradient, and queues its product; None where it is not needed.
    of_input: tuple[Maker, Queue] | None
    of_weight: tuple[Maker, Queue] | None
    #: Given the result's gradient, its address and the stream, returns the bias's gradient; None where none is needed.
    of_bias: Callable[[Any, int, int], Any] | None
    device: int  #: The GPU.

    def run(self, grad: Any, *saved: Any) -> tuple[Any, Any, Any] | None:
        """Queue the products and return the gradients; None where the addresses need a plan of their own.

        Saved are the input if the weight's gradient is needed, then the weight if the input's is.
        """
        pg, px, pw = grad.data_ptr(), saved[0].data_ptr(), saved[-1].data_ptr()
        if (pg | px | pw) & LOW or pg in (px, pw) or not (pg and px and pw):
            return None
        stream, of_input, of_weight = raw_stream(self.device), None, None
        if self.of_input is not None:
            new, queue = self.of_input
            of_input = new(grad)
            queue((pg, pw, of_input.data_ptr()), stream)
        if self.of_weight is not None:
            new, queue = self.of_weight
            of_weight = new(grad)
            queue((pg, px, of_weight.data_ptr()), stream)
        return of_input, of_weight, None if self.of_bias is None else self.of_bias(grad, pg, stream)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Into:
    """A product of two tensors of one description, with a bias or without, into memory that overlaps neither."""

    check: Callable[..., bool]  #: Guard of the factors, the bias if there is one, and the output.
    #: queue, serial: As of `Forward`.
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
        if together & LOW or pa == pb or 0 in addresses:
            return False
        stream = raw_stream(self.device)
        (self.queue if _follows(pa, stream, self.queue) else self.serial)(addresses, stream)
        return True


def maker(like: Any) -> Maker:
    """Return a function that makes tensors of a shape and type, the quickest way that PyTorch and these GPUs have."""
    return quick_maker(torch, like) or operator.methodcaller("new_empty", tuple(like.shape))
