"""PyTorch tensors, on a GPU or on the host."""

from __future__ import annotations

import contextlib
from typing import Any

from gemmule.core.dtype import numpy_dtype
from gemmule.core.errors import ArgumentError, DTypeError

from .view import ArrayView, HostArray, NewArray

# NumPy knows these only through ml_dtypes, so PyTorch does not hand them over: the bits travel as integers.
_AS_BITS = {"bfloat16": "int16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


_NUMPY_NAMES = {
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
}


class TorchLibrary:
    """PyTorch."""

    name = "torch"
    orders_reuse = True

    def view(self, x: Any, stream: int | None) -> ArrayView:
        """Return the tensor's memory. The stream is PyTorch's own, so nothing needs ordering."""
        import torch

        del stream
        if x.requires_grad and torch.is_grad_enabled():
            raise ArgumentError(
                "a tensor requires grad, and this has no backward; gemmule.torch has, or pass tensor.detach()"
            )
        if x.layout is not torch.strided:
            raise ArgumentError(f"a tensor has layout {x.layout}; pass tensor.to_dense()")
        if x.is_conj() or x.is_neg():
            raise ArgumentError("a tensor is lazily conjugated or negated; pass tensor.resolve_conj().resolve_neg()")
        dtype_name = str(x.dtype).removeprefix("torch.")
        if x.device.type == "cpu":
            return ArrayView(tuple(x.shape), dtype_name, x.element_size(), None, host=_as_numpy(x, dtype_name))
        if x.device.type != "cuda":
            raise ArgumentError(f"a tensor is on device {x.device}; move it to a CUDA device or to the CPU")
        return ArrayView(
            shape=tuple(x.shape),
            dtype_name=dtype_name,
            itemsize=x.element_size(),
            device=self.device_of(x),
            address=x.data_ptr(),
            strides=tuple(x.stride()),
            keepalive=x,
        )

    def device_of(self, x: Any) -> int | None:
        """Return the GPU that the tensor is on."""
        import torch

        if x.device.type != "cuda":
            return None
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
        on_stream: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if like.device.type == "cuda" and stream != self.current_stream(self.device_of(like) or 0):
            on_stream = torch.cuda.stream(torch.cuda.ExternalStream(stream, device=like.device))
        with on_stream:
            tensor = torch.empty(shape, dtype=dtype, device=like.device)
        return NewArray(self.view(tensor, stream), lambda: tensor)


def _as_numpy(x: Any, dtype_name: str) -> HostArray:
    import torch

    x = x.detach()
    if dtype_name in _AS_BITS:
        bits: HostArray = x.view(getattr(torch, _AS_BITS[dtype_name])).numpy()
        return bits.view(numpy_dtype(dtype_name))
    if dtype_name not in _NUMPY_NAMES:
        raise DTypeError(f"a tensor is {dtype_name}, which NumPy does not have; convert it first, e.g. to float32")
    array: HostArray = x.numpy()
    return array
