"""Arrays of PyTorch and CuPy as a repeated call reads them: as few questions as tell one product from another."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable
from typing import Any, Protocol

from gemmule.runtime.arrays.torch_arrays import stay_out_of_dynamo

from . import recent
from .recent_launches import of_two_in_one_launch
from .torch_guards import quick_maker, tensor_guards

#: A key, the addresses of the arrays (the output's last if there is one), and the library's current stream.
Described = tuple[Any, tuple[int, ...], int]

# Alignment up to which kernels may differ, less one. What an address has beyond it is none of a product's business.
LOW = 255


class Repeatable(Protocol):
    """What is kept of a product."""

    @property
    def queue(self) -> Callable[[tuple[int, ...], int], None]:
        """Queues it, given addresses and stream."""

    @property
    def new(self) -> Callable[[], Any]:
        """Makes the output."""

    def apart(self, addresses: tuple[int, ...], in_place: bool) -> bool:
        """Whether the output is surely apart from the inputs, from C unless it is the output itself."""


class KnownArrays(Protocol):
    """An array library whose products are kept."""

    @property
    def address(self) -> Callable[[Any], int]:
        """Gives the address of an array's first element."""

    @property
    def guarded(self) -> bool:
        """Whether there are guards, for `again`."""

    @property
    def guards_kinds(self) -> bool:
        """Whether a guard lets all arrays of a kind through, or only those that it was made of."""

    @property
    def wrote(self) -> Callable[[Any], None] | None:
        """Tells the library that an array of the caller's was written; None where it does not want to hear of it."""

    def describe(self, a: Any, b: Any, others: tuple[Any, ...], options: tuple[Any, ...]) -> Described | None:
        """Return what a product of these arrays is known by; None where it is unusual.

        Of the others, some of which may be None, the first is C and the last the output.
        """

    def device(self, x: Any) -> int:
        """Return the number of the array's GPU."""

    def reach(self, x: Any) -> tuple[int, int]:
        """Return the bytes from an array's address to its first byte in memory, and to behind its last."""

    def maker(self, x: Any) -> Callable[[], Any]:
        """Return what makes arrays of the shape and type of `x`, C-contiguous, where `x` is."""

    def made_on(self, new: Callable[[], Any], device: int, stream: int) -> Any:
        """Return what `new` makes, with memory that the library ties to a stream, which is not the current one."""

    def again(self, kept: Repeatable, inputs: tuple[Any, ...], out: Any, result: Any) -> recent.Again | None:
        """Return what repeats a product of arrays that a guard lets through; None where there is no guard.

        The inputs are A, B, and C and a bias as far as there are these. `out` is the output that was given, or None;
        `result` the one that was filled.
        """


def known_library(kind: type) -> KnownArrays | None:
    """Return the library of a type of array, if products of it are kept."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and kind in _torch_types(torch):
        return _torch_arrays(torch)
    if cupy is not None and kind is cupy.ndarray:
        return _cupy_arrays(cupy)
    return None


def usual_scalars(alpha: Any, beta: Any) -> bool:
    """Return whether alpha and beta are numbers that equal only what means the same: no NaN, and not 0.0 for -0.0."""
    kinds = (int, float)
    return type(alpha) in kinds and type(beta) in kinds and bool(alpha) and alpha == alpha and beta == beta


def reach_of(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """Return the bytes from the first element to the first byte in memory and to behind the last; strides in bytes."""
    steps = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    return sum(min(step, 0) for step in steps), sum(max(step, 0) for step in steps) + itemsize


def _torch_types(torch: Any) -> tuple[type, ...]:
    # Subclasses may mean something else by their methods.
    return torch.Tensor, torch.nn.Parameter


@functools.cache
def _torch_arrays(torch: Any) -> KnownArrays:
    return TorchArrays(torch)


@functools.cache
def _cupy_arrays(cupy: Any) -> KnownArrays:
    from .known_cupy import CupyArrays

    return CupyArrays(cupy)


def _once(check: Callable[..., bool]) -> Callable[..., bool]:
    """Return a guard of an array that stands for A and B."""
    return lambda a, _, *others: check(a, *others)


class TorchArrays:
    """PyTorch's tensors on a GPU.

    Parameters
    ----------
    torch : module
        PyTorch.
    """

    def __init__(self, torch: Any) -> None:
        self.address: Callable[[Any], int] = torch.Tensor.data_ptr
        self.guards_kinds = True
        self._torch = torch
        self._types = frozenset(_torch_types(torch))
        self._gradients: Callable[[], bool] = torch.is_grad_enabled
        raw: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        stay_out_of_dynamo()
        # As after any operation in place: a backward that would read what was there before is refused.
        self.wrote: Callable[[Any], None] = torch.autograd.graph.increment_version
        self._dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
        self._guards = tensor_guards(torch)
        self.guarded = self._guards is not None
        self._raw_stream = raw or (lambda device: int(torch.cuda.current_stream(device).cuda_stream))

    def describe(self, a: Any, b: Any, others: tuple[Any, ...], options: tuple[Any, ...]) -> Described | None:
        """Return what a product of these tensors is known by."""
        types = self._types
        # A mode may stand for a trace, or hand out tensors of its own.
        if type(b) not in types or self._dispatch_modes():
            return None
        try:
            device = a.get_device()
            # No kernel multiplies complex numbers; a transpose has its array as A.
            if device < 0 or b.get_device() != device or a.is_neg() or b.is_neg() or a.is_conj():
                return None
            pa, pb = a.data_ptr(), b.data_ptr()
            # What is decided where A and B are the same memory holds only where they are.
            key: tuple[Any, ...] = (
                options, device, a.dtype, b.dtype, a.shape, b.shape, a.stride(), b.stride(), pa == pb
            )  # fmt: skip
            addresses: tuple[int, ...] = (pa, pb)
            low, gradient = pa | pb, a.requires_grad or b.requires_grad
            c = others[0]
            for place, x in enumerate(others):
                if x is not None:
                    if type(x) not in types or x.get_device() != device or x.is_neg() or x.is_conj():
                        return None
                    px = x.data_ptr()
                    key = (key, place, x is c, x.dtype, x.shape, x.stride())
                    addresses += (px,)
                    low, gradient = low | px, gradient or x.requires_grad
        except RuntimeError:
            # Tensors without memory or strides of their own: sparse ones, those that are being traced.
            return None
        if gradient and self._gradients():
            return None
        if low & LOW:
            key = (key, *[address & -address & LOW for address in addresses])
        return key, addresses, self._raw_stream(device)

    def device(self, x: Any) -> int:
        """Return the tensor's GPU."""
        return int(x.get_device())

    def reach(self, x: Any) -> tuple[int, int]:
        """Return where the tensor's memory begins and ends."""
        item = x.element_size()
        return reach_of(tuple(x.shape), tuple(stride * item for stride in x.stride()), item)

    def maker(self, x: Any) -> Callable[[], Any]:
        """Return what makes tensors like `x`."""
        return functools.partial(self._torch.empty, tuple(x.shape), dtype=x.dtype, device=x.device)

    def made_on(self, new: Callable[[], Any], device: int, stream: int) -> Any:
        """Return what `new` makes while a stream is the current one."""
        cuda = self._torch.cuda
        with cuda.stream(cuda.ExternalStream(stream, device=device)):
            return new()

    def again(self, kept: Repeatable, inputs: tuple[Any, ...], out: Any, result: Any) -> recent.Again | None:
        """Return what repeats a product of tensors that PyTorch's own check takes for these."""
        twice = inputs[0] is inputs[1]
        given = inputs[1:] if twice else inputs
        given = given if out is None or any(x is out for x in given) else (*given, out)
        # A guard takes no tensor twice.
        if self._guards is None or any(x.requires_grad for x in given) or len(set(map(id, given))) < len(given):
            return None
        device, check = inputs[0].get_device(), self._guards(*given)
        if twice:
            check = _once(check)
        make = None if out is not None else self._maker_from(inputs[0], kept, result)
        direct = getattr(kept.queue, "direct", None)
        same = inputs[0].data_ptr() == inputs[1].data_ptr()
        if direct is not None and len(inputs) == 2:
            again = of_two_in_one_launch(check, kept.apart, make, direct, self._raw_stream, device, same)
            return self._telling(again, out)
        repeating = recent.of_two if len(inputs) == 2 else recent.of_more
        return self._telling(repeating(check, kept.apart, make, kept.queue, self._raw_stream, device, same), out)

    def _telling(self, again: recent.Again, out: Any) -> recent.Again:
        """Return what repeats a product and tells PyTorch that the caller's output was written, if there is one."""
        if out is None:
            return again
        wrote = self.wrote

        def again_and_tell(*given: Any) -> Any:
            result = again(*given)
            if result is not None:
                wrote(result)
            return result

        return again_and_tell

    def _maker_from(self, a: Any, kept: Repeatable, result: Any) -> Callable[[Any], Any]:
        """Return what makes results from A, in the quickest way that there is."""
        quick = quick_maker(self._torch, result)
        if quick is not None:
            return quick
        if result.dtype == a.dtype:
            # Of the public ways this is the quickest.
            return operator.methodcaller("new_empty", tuple(result.shape))
        return lambda _: kept.new()
