"""PyTorch tensors, on a GPU or on the host."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gemmule.core.dtype import EXTENSION_FLOATS, numpy_dtype
from gemmule.core.errors import ArgumentError, DTypeError, ShapeError

from .array_specs import no_memory
from .torch_guards import stay_out_of_dynamo
from .view import FACTORS, WRITTEN, ArrayView, HostArray, NewArray

if TYPE_CHECKING:
    from .torch_calls import TorchArrays

_NUMBERS = {
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
    *EXTENSION_FLOATS,
}
# Of NumPy's arrays.
_MOST_DIMENSIONS = 64
_OPERATORS = "use gemmule.torch, whose functions are operators of PyTorch"


class TorchLibrary:
    """PyTorch."""

    name = "torch"
    orders_reuse = True

    def call_arrays(self) -> TorchArrays:
        """Return the describer of the arrays of repeated calls."""
        return _call_arrays()

    def view(self, x: Any, stream: int | None, role: str) -> ArrayView:
        """Return the tensor's memory. The stream is PyTorch's own, so nothing needs ordering."""
        import torch

        stay_out_of_dynamo()
        _check_readable(torch, x, role)
        lazy = x.is_conj() or x.is_neg() or x._is_zerotensor()
        if lazy and role in WRITTEN:
            raise ArgumentError(
                f"{role} is a lazily conjugated or negated view, which cannot be written as such; pass a tensor that "
                "is none, and copy the result with copy_"
            )
        dtype_name = str(x.dtype).removeprefix("torch.")
        if dtype_name not in _NUMBERS:
            remedy = f"pass {role}.dequantize()" if x.is_quantized else "convert it first, e.g. to float32"
            raise DTypeError(f"{role} is {dtype_name}, which NumPy does not have; {remedy}")
        if x.device.type not in ("cpu", "cuda"):
            if x.device.type == "meta":
                raise no_memory(role, "a tensor on device meta")
            raise ArgumentError(f"{role} is on device {x.device}; move it to a CUDA device or to the CPU")
        if x.device.type == "cpu" and x.ndim > _MOST_DIMENSIONS:
            raise ShapeError(f"{role} has {x.ndim} dimensions; the host takes {_MOST_DIMENSIONS} at most: reshape it")
        if x.device.type == "cpu" and x.numel() * x.element_size() > sys.maxsize:
            raise ShapeError(f"{role} of shape {tuple(x.shape)} spans more than NumPy can address; pass a part of it")
        memory, conj = x.detach(), False
        if x.is_cuda and role in FACTORS and x.is_conj() and not (x.is_neg() or x._is_zerotensor()):
            # Kernels conjugate what they read.
            memory, lazy, conj = memory.conj(), False, True
        if lazy:
            with self._on_stream(torch, x, stream):
                memory = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        address = memory.data_ptr()

        def refresh(stream: int | None) -> None:
            if lazy:
                with self._on_stream(torch, x, stream):
                    memory.copy_(x.detach())
                    if memory.is_cuda:
                        # It was allocated for the stream of when the plan was made.
                        memory.record_stream(torch.cuda.current_stream(memory.device))
            elif memory.data_ptr() != address:
                # Below a plan its storage may have been freed or moved.
                raise ArgumentError(f"the storage of {role} was freed or moved after the plan was made; plan again")
            if role in WRITTEN:
                # As after any operation in place: autograd refuses a backward that would read what was there before.
                torch.autograd.graph.increment_version(x)

        view = self._view_of(memory, dtype_name, address, refresh)
        return dataclasses.replace(view, conj=True) if conj else view

    def _view_of(
        self, x: Any, dtype_name: str, address: int, refresh: Callable[[int | None], None] | None = None
    ) -> ArrayView:
        shape, itemsize = tuple(x.shape), x.element_size()
        if not x.is_cuda:
            host = _as_numpy(x, dtype_name, address)
            return ArrayView(shape, dtype_name, itemsize, None, host=host, keepalive=x, refresh=refresh)
        return ArrayView(
            shape=shape,
            dtype_name=dtype_name,
            itemsize=itemsize,
            device=self.device_of(x),
            address=address,
            strides=tuple(x.stride()),
            keepalive=x,
            refresh=refresh,
        )

    def device_of(self, x: Any, role: str = "a tensor") -> int | None:
        """Return the GPU that the tensor is on."""
        import torch

        if x.device.type != "cuda":
            return None
        # A fake tensor may claim a GPU where there is none, whose stream cannot be asked for.
        _check_kind(torch, x, role)
        return int(x.device.index if x.device.index is not None else torch.cuda.current_device())

    def current_stream(self, device: int) -> int:
        """Return PyTorch's current stream on that GPU."""
        import torch

        return int(torch.cuda.current_stream(device).cuda_stream)

    def empty(self, shape: tuple[int, ...], dtype_name: str, like: Any, stream: int | None) -> NewArray:
        """Return a new tensor whose memory the allocator ties to `stream`."""
        import torch

        dtype = getattr(torch, dtype_name, None)
        if dtype is None:
            raise DTypeError(f"PyTorch has no dtype {dtype_name}; pass an out_dtype that it has")
        with self._on_stream(torch, like, stream):
            try:
                tensor = torch.empty(shape, dtype=dtype, device=like.device)
            except RuntimeError as error:
                if like.is_cuda:
                    raise
                # As NumPy, when memory is short.
                raise MemoryError(str(error).partition("\n")[0]) from error
        # With arrays that can be read it is one: there is nothing to check.
        return NewArray(self._view_of(tensor, dtype_name, tensor.data_ptr()), lambda: tensor)

    def _on_stream(self, torch: Any, like: Any, stream: int | None) -> contextlib.AbstractContextManager[Any]:
        """Make `stream` the current one, where the tensor is on a GPU and it is not yet."""
        if not like.is_cuda or stream is None or stream == self.current_stream(self.device_of(like) or 0):
            return contextlib.nullcontext()
        context: contextlib.AbstractContextManager[Any] = torch.cuda.stream(
            torch.cuda.ExternalStream(stream, device=like.device)
        )
        return context


@functools.cache
def _call_arrays() -> TorchArrays:
    import torch

    from .torch_calls import TorchArrays

    return TorchArrays(torch)


def _check_readable(torch: Any, x: Any, role: str) -> None:
    """Refuse tensors without memory of their own, and those whose gradient or trace would be lost."""
    functorch = torch._C._functorch
    if functorch.is_functorch_wrapped_tensor(x) or functorch.is_legacy_batchedtensor(x):
        raise ArgumentError(f"{role} is being transformed by PyTorch, e.g. by vmap; {_OPERATORS}, or PyTorch's own")
    if x.requires_grad and torch.is_grad_enabled():
        raise ArgumentError(
            f"{role} requires grad, and this function has no backward; use gemmule.torch's, or pass {role}.detach()"
        )
    forward_ad = torch.autograd.forward_ad
    if (
        forward_ad._current_level >= 0
        and torch._C._is_fwd_grad_enabled()
        and forward_ad.unpack_dual(x, level=0).tangent is not None
    ):
        raise ArgumentError(f"{role} has a tangent, which this would lose; gemmule.torch has forward mode")
    if x.is_nested:
        raise ArgumentError(f"{role} is a nested tensor; multiply its parts, {role}.unbind(), one by one")
    if x.layout is not torch.strided:
        raise ArgumentError(f"{role} has layout {x.layout}; pass {role}.to_dense()")
    _check_kind(torch, x, role)
    if _is_traced(torch):
        raise ArgumentError(f"{role} is being traced, and a trace does not hear of what is computed here; {_OPERATORS}")


def _check_kind(torch: Any, x: Any, role: str) -> None:
    """Refuse subclasses that compute in a way of their own."""
    kind = type(x)
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise ArgumentError(f"{role} is a {kind.__name__}, which need not have memory of its own; {_OPERATORS}")


def _is_traced(torch: Any) -> bool:
    """Return whether operators are recorded (traced), computed or not: direct writes to memory would be missed."""
    mode, keys = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey
    return torch._C._get_tracing_state() is not None or (
        torch._C._len_torch_dispatch_stack() > 0
        and any(mode(key) is not None for key in (keys.FAKE, keys.PROXY, keys.FUNCTIONAL))
    )


class _Memory:
    """Memory of a tensor, which it keeps alive, by NumPy's array interface; `strides` are in elements."""

    def __init__(
        self, tensor: Any, address: int, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> None:
        self.tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "data": (address, False),
            "strides": tuple([stride * dtype.itemsize for stride in strides]),
        }


class _View(_Memory):
    """A tensor's memory, a part of its storage."""

    @property
    def base(self) -> HostArray:
        """The bytes of the whole storage; a tensor is as aligned as its place in there, wherever the storage is."""
        storage = self.tensor.untyped_storage()
        return np.asarray(_Memory(self.tensor, storage.data_ptr(), np.dtype(np.uint8), (storage.nbytes(),), (1,)))


def _as_numpy(x: Any, dtype_name: str, address: int) -> HostArray:
    """Return a tensor's memory as an array.

    Not by ``x.numpy()``, after which its storage could not be resized any more, as FSDP does with parameters; nor by
    DLPack, whose first version, that of older PyTorch, gives read-only arrays, and which does not know all types.
    """
    dtype = numpy_dtype(dtype_name)
    if math.prod(x.shape) == 0:
        return np.empty(tuple(x.shape), dtype)
    if dtype_name in EXTENSION_FLOATS:
        opaque = np.dtype(f"V{dtype.itemsize}")
        return np.asarray(_View(x, address, opaque, tuple(x.shape), x.stride())).view(dtype)
    return np.asarray(_View(x, address, dtype, tuple(x.shape), x.stride()))
