"""PyTorch's tensors in repeated calls: described on a GPU, and in host memory read by one guard each."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from gemmule.core.dtype import numpy_dtype

from ..replay import LOW, Replay, replay_two_operands, replay_with_addends
from .descriptions import Described, Repeatable, bounds_of_strides, executor_in_environment
from .torch_guards import Guards, quick_maker, stay_out_of_dynamo, tensor_guards
from .view import HostArray

#: Views that are cached for a description; then all of them make room.
MOST_VIEWS = 64
#: Descriptions of tensors that are cached; then all of them make room.
MOST_KINDS = 4096
#: Guards for tensors of one type, shape and strides: those of inference mode, for instance, need one of their own.
MOST_GUARDS = 4


class TorchArrays:
    """PyTorch's tensors; those in host memory are left to `host`.

    Parameters
    ----------
    torch : module
        PyTorch.
    """

    def __init__(self, torch: Any) -> None:
        self.address: Callable[[Any], int] = torch.Tensor.data_ptr
        self.guards_kinds = True
        self._torch = torch
        # Subclasses may mean something else by their methods.
        self._types = frozenset((torch.Tensor, torch.nn.Parameter))
        self._gradients: Callable[[], bool] = torch.is_grad_enabled
        raw: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        stay_out_of_dynamo()
        # As after any operation in place: a backward that would read what was there before is refused.
        self.wrote: Callable[[Any], None] = torch.autograd.graph.increment_version
        self._dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
        self._forward_ad = torch.autograd.forward_ad
        self._guards = tensor_guards(torch)
        self.guarded = self._guards is not None
        self.host = None if self._guards is None else HostTensors(torch, self._guards)
        self._raw_stream = raw or (lambda device: int(torch.cuda.current_stream(device).cuda_stream))

    def describe(self, a: Any, b: Any, others: tuple[Any, ...], options: tuple[Any, ...]) -> Described | None:
        """Return the description of a product of these tensors."""
        types = self._types
        # A mode may stand for a trace, or hand out tensors of its own; a tangent would be lost.
        if type(b) not in types or self._dispatch_modes() or self._forward_ad._current_level >= 0:
            return None
        try:
            device = a.get_device()
            if device < 0:
                return None if self.host is None else self.host.describe(a, b, others, options)
            if b.get_device() != device or a.is_neg() or b.is_neg():
                return None
            conj = a.is_conj() or b.is_conj()
            if conj and options[0] == "transpose":
                # It has its array as A, and is of a copy.
                return None
            pa, pb = a.data_ptr(), b.data_ptr()
            # A decision for A and B in the same memory holds for such pairs only.
            key: tuple[Any, ...] = (
                options, device, a.dtype, b.dtype, a.shape, b.shape, a.stride(), b.stride(), pa == pb
            )  # fmt: skip
            if conj:
                key = (key, a.is_conj(), b.is_conj())
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
        # Wrappers, tensors of zeros alone and freed storages have no memory.
        if (gradient and self._gradients()) or not all(addresses):
            return None
        if low & LOW:
            key = (key, *[address & -address & LOW for address in addresses])
        return key, addresses, self._raw_stream(device)

    def device(self, x: Any) -> int:
        """Return the tensor's GPU."""
        return int(x.get_device())

    def byte_bounds(self, x: Any) -> tuple[int, int]:
        """Return where the tensor's memory begins and ends."""
        item = x.element_size()
        return bounds_of_strides(tuple(x.shape), tuple(stride * item for stride in x.stride()), item)

    def maker(self, x: Any) -> Callable[[], Any]:
        """Return a function that makes tensors like `x`."""
        return functools.partial(self._torch.empty, tuple(x.shape), dtype=x.dtype, device=x.device)

    def made_on(self, new: Callable[[], Any], device: int, stream: int) -> Any:
        """Return a tensor of `new`, made while a stream is the current one."""
        cuda = self._torch.cuda
        with cuda.stream(cuda.ExternalStream(stream, device=device)):
            return new()

    def replay(self, call: Repeatable, inputs: tuple[Any, ...], out: Any, result: Any) -> Replay | None:
        """Return the replay of a product of tensors that PyTorch's own check takes for these."""
        twice = inputs[0] is inputs[1]
        given = inputs[1:] if twice else inputs
        given = given if out is None or any(x is out for x in given) else (*given, out)
        # A guard takes no tensor twice.
        if (
            self._guards is None
            or any(x.requires_grad or x.is_conj() for x in given)
            or len(set(map(id, given))) < len(given)
        ):
            return None
        device, check = inputs[0].get_device(), self._guards(*given)
        if twice:
            check = _once(check)
        make = None if out is not None else self._maker_from(inputs[0], call, result)
        same = inputs[0].data_ptr() == inputs[1].data_ptr()
        replaying = replay_two_operands if len(inputs) == 2 else replay_with_addends
        found = replaying(check, call.no_overlap, make, call.queue, self._raw_stream, device, same)
        return found if out is None else self._marking(found)

    def _marking(self, replayed: Replay) -> Replay:
        """Return a replay that marks the caller's output as written."""
        wrote = self.wrote

        def replay_and_mark(*given: Any) -> Any:
            result = replayed(*given)
            if result is not None:
                wrote(result)
            return result

        return replay_and_mark

    def _maker_from(self, a: Any, call: Repeatable, result: Any) -> Callable[[Any], Any]:
        """Return a function that makes results from A, in the quickest way that there is."""
        quick = quick_maker(self._torch, result)
        if quick is not None:
            return quick
        if result.dtype == a.dtype:
            # The quickest public way.
            return operator.methodcaller("new_empty", tuple(result.shape))
        return lambda _: call.new()


def _once(check: Callable[..., bool]) -> Callable[..., bool]:
    """Return a guard of an array that stands for A and B."""
    return lambda a, _, *others: check(a, *others)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Memory:
    """Memory of tensors of one description."""

    #: PyTorch's guard: whether a tensor is plain, of this description, and takes no part in autograd.
    check: Callable[[Any], bool]
    #: shape, strides: Extents, and bytes from one index to the next.
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]  #: Element type.
    span: Any  #: Type. The bytes from the first element to behind the last, as a type of ctypes.
    views: dict[int, HostArray]  #: Views by address, since the allocator returns the same addresses again and again.

    def at(self, address: int) -> HostArray:
        """Return the memory as an array, which does not keep it alive.

        As in `torch_arrays`, not by ``x.numpy()``, after which the storage could not be resized.
        """
        view = self.views.get(address)
        if view is None:
            view = np.ndarray(self.shape, self.dtype, self.span.from_address(address), 0, self.strides)
            if len(self.views) >= MOST_VIEWS:
                self.views.clear()
            self.views[address] = view
        return view


class HostTensors:
    """PyTorch's tensors in host memory.

    Parameters
    ----------
    torch : module
        PyTorch.
    guards : callable
        Makes guards.
    """

    guarded, guards_kinds = False, False

    def __init__(self, torch: Any, guards: Guards) -> None:
        self._torch, self._guards, self._type = torch, guards, torch.Tensor
        self._known: dict[Any, tuple[_Memory, ...]] = {}
        self._forward_ad = torch.autograd.forward_ad
        self._modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
        self._trace: Callable[[], Any] = torch._C._get_tracing_state
        # As after any operation in place: a backward that would read what was there before is refused.
        self.wrote: Callable[[Any], None] = torch.autograd.graph.increment_version

    @property
    def host(self) -> HostTensors:
        """These are the ones in host memory."""
        return self

    def describe(self, a: Any, b: Any, others: tuple[Any, ...], options: tuple[Any, ...]) -> Described | None:
        """Return the description of a product of these tensors, None where one is unusual or was not learned."""
        # A mode may stand for a trace, or hand out tensors of its own; a tangent would be lost.
        if self._modes() or self._trace() is not None or self._forward_ad._current_level >= 0:
            return None
        stay_out_of_dynamo()
        known: list[_Memory | None] = []
        found: list[HostArray | None] = []
        try:
            for x in (a, b, *others):
                if x is None:
                    known.append(None)
                    found.append(None)
                    continue
                if type(x) is not self._type:
                    return None
                for memory in self._known.get((x.dtype, x.shape, x.stride()), ()):
                    if memory.check(x):
                        break
                else:
                    return None
                address = x.data_ptr()
                # A storage that was freed has none.
                if not address or address % memory.dtype.alignment:
                    return None
                known.append(memory)
                found.append(memory.at(address))
        except RuntimeError:
            # Tensors without memory or strides of their own: sparse ones, those that are being traced.
            return None
        return (self, executor_in_environment(), options, *known), tuple(found), None

    def learn(self, given: tuple[Any, ...]) -> None:
        """Let `describe` know tensors like these."""
        for x in given:
            if type(x) is not self._type or x.requires_grad or x.is_conj() or x.is_neg() or not x.numel():
                continue
            known = self._known.get(kind := (x.dtype, x.shape, x.stride()), ())
            if not any(memory.check(x) for memory in known):
                if len(self._known) >= MOST_KINDS:
                    self._known.clear()
                # The last one first: it is the likeliest to come again.
                self._known[kind] = (self._memory(self._guards(x), x), *known[: MOST_GUARDS - 1])

    def host_maker(self, shape: tuple[int, ...], dtype_name: str) -> Callable[[], tuple[Any, HostArray]]:
        """Return a function that makes results, each with its memory."""
        torch = self._torch
        make = functools.partial(torch.empty, shape, dtype=getattr(torch, dtype_name), device=torch.device("cpu"))
        like = make()
        memory, quick = self._memory(lambda _: True, like), quick_maker(torch, like)

        def new() -> tuple[Any, HostArray]:
            result = make() if quick is None else quick(None)
            return result, memory.at(result.data_ptr())

        return new

    def _memory(self, check: Callable[[Any], bool], x: Any) -> _Memory:
        shape, dtype = tuple(x.shape), numpy_dtype(str(x.dtype).removeprefix("torch."))
        strides = tuple([stride * dtype.itemsize for stride in x.stride()])
        span = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + dtype.itemsize
        return _Memory(check, shape, strides, dtype, ctypes.c_char * span, {})
