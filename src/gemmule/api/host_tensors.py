"""PyTorch's tensors in host memory, read as a repeated call reads them: by one guard each."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from gemmule.core.dtype import numpy_dtype
from gemmule.executor.tiles import Array
from gemmule.runtime.arrays.torch_arrays import stay_out_of_dynamo

from .torch_guards import Guards, quick_maker

#: Views that are cached for a description; then all of them make room.
MOST_VIEWS = 64
#: Descriptions of tensors that are cached; then all of them make room.
MOST_KINDS = 4096


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Memory:
    """Memory of tensors of one description.

    Attributes
    ----------
    check : callable
        PyTorch's guard: whether a tensor is plain, of this description, and takes no part in autograd.
    shape, strides : tuple of int
        Extents, and bytes from one index to the next.
    dtype : numpy.dtype
        Element type.
    span : type
        The bytes from the first element to behind the last, as a type of ctypes.
    views : dict of int to numpy.ndarray
        Views by address, since the allocator returns the same addresses again and again.
    """

    check: Callable[[Any], bool]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    span: Any
    views: dict[int, Array]

    def at(self, address: int) -> Array:
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

    def __init__(self, torch: Any, guards: Guards) -> None:
        self._torch, self._guards, self._type = torch, guards, torch.Tensor
        self._known: dict[Any, _Memory] = {}
        self._forward_ad = torch.autograd.forward_ad
        self._modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
        self._trace: Callable[[], Any] = torch._C._get_tracing_state
        # As after any operation in place: a backward that would read what was there before is refused.
        self.wrote: Callable[[Any], None] = torch.autograd.graph.increment_version

    def describe(self, given: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Array | None, ...]] | None:
        """Return what tensors are known by, and their memory; None where one is unusual, or not known yet."""
        # A mode may stand for a trace, or hand out tensors of its own; a tangent would be lost.
        if self._modes() or self._trace() is not None or self._forward_ad._current_level >= 0:
            return None
        stay_out_of_dynamo()
        known: list[_Memory | None] = []
        found: list[Array | None] = []
        try:
            for x in given:
                if x is None:
                    known.append(None)
                    found.append(None)
                    continue
                if type(x) is not self._type:
                    return None
                memory = self._known.get((x.dtype, x.shape, x.stride()))
                if memory is None or not memory.check(x):
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
        return tuple(known), tuple(found)

    def add(self, given: tuple[Any, ...]) -> None:
        """Let `describe` know tensors like these."""
        for x in given:
            if type(x) is not self._type or x.requires_grad or x.is_conj() or x.is_neg() or not x.numel():
                continue
            known = self._known.get(kind := (x.dtype, x.shape, x.stride()))
            if known is None or not known.check(x):
                if len(self._known) >= MOST_KINDS:
                    self._known.clear()
                self._known[kind] = self._memory(self._guards(x), x)

    def maker(self, shape: tuple[int, ...], dtype_name: str) -> Callable[[], tuple[Any, Array]]:
        """Return what makes results, each with its memory."""
        torch = self._torch
        make = functools.partial(torch.empty, shape, dtype=getattr(torch, dtype_name), device=torch.device("cpu"))
        like = make()
        memory, quick = self._memory(lambda _: True, like), quick_maker(torch, like)

        def new() -> tuple[Any, Array]:
            result = make() if quick is None else quick(None)
            return result, memory.at(result.data_ptr())

        return new

    def _memory(self, check: Callable[[Any], bool], x: Any) -> _Memory:
        shape, dtype = tuple(x.shape), numpy_dtype(str(x.dtype).removeprefix("torch."))
        strides = tuple([stride * dtype.itemsize for stride in x.stride()])
        span = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + dtype.itemsize
        return _Memory(check, shape, strides, dtype, ctypes.c_char * span, {})
