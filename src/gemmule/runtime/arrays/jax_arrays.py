"""JAX arrays: immutable, and without a stream that the caller could name."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmule.core.dtype import numpy_dtype
from gemmule.core.errors import ArgumentError, DTypeError
from gemmule.core.layout import compact_strides

from .dlpack_arrays import DeviceResult, DlpackLibrary
from .view import ArrayView, HostArray, NewArray


class JaxLibrary(DlpackLibrary):
    """JAX, outside of its transformations."""

    name = "jax"

    def view(self, x: Any, stream: int | None, role: str) -> ArrayView:
        """Return the array's memory; JAX orders its work before `stream`."""
        if self.device_of(x) is None:
            host = np.asarray(x)
            return ArrayView(host.shape, host.dtype.name, host.itemsize, None, host=host, readonly=True)
        # Not every dtype passes through DLPack: the bits travel as bytes, the rest is known.
        bits = x.view("uint8") if x.dtype.itemsize == 1 else x
        capsule = bits.__dlpack__(stream=stream)
        return ArrayView(
            shape=tuple(x.shape),
            dtype_name=x.dtype.name,
            itemsize=x.dtype.itemsize,
            device=self.device_of(x),
            address=bits.unsafe_buffer_pointer(),
            strides=_strides(bits, role),
            readonly=True,
            keepalive=(capsule, bits),
        )

    def device_of(self, x: Any, role: str = "an array") -> int | None:
        import jax

        if isinstance(x, jax.core.Tracer):
            raise ArgumentError(
                f"{role} is being traced by JAX; within jit, grad and vmap use matmul, gemm or ragged_dot of "
                "gemmule.jax, or functions of JAX"
            )
        if is_key(x):
            raise ArgumentError(f"{role} is an array of random keys, not of numbers; jax.random.key_data has theirs")
        devices = x.devices()
        if len(devices) != 1:
            raise ArgumentError(f"{role} is on {len(devices)} devices; use gemmule.jax, or gather it on one")
        (device,) = devices
        return int(device.local_hardware_id) if device.platform in ("gpu", "cuda") else None

    def empty(self, shape: tuple[int, ...], dtype_name: str, like: Any, stream: int | None) -> NewArray:
        """Return memory that becomes a JAX array when its writing is queued."""
        import jax

        if (present := jax.dtypes.canonicalize_dtype(numpy_dtype(dtype_name)).name) != dtype_name:
            raise DTypeError(
                f"the result is {dtype_name}, which JAX has not now; pass out_dtype={present!r}, or set jax_enable_x64"
            )
        ordinal = self.device_of(like)
        if ordinal is None or stream is None:
            host = np.empty(shape, numpy_dtype(dtype_name))
            view = ArrayView(shape, dtype_name, host.itemsize, None, host)
            return NewArray(view, lambda: _beside(like, host))
        result = DeviceResult(shape, dtype_name, ordinal, stream)

        def finish() -> Any:
            array = jax.dlpack.from_dlpack(result)
            return array if array.dtype.name == dtype_name else array.view(dtype_name)

        return NewArray(result.view, finish)


def _beside(like: Any, host: HostArray) -> Any:
    """Return host memory as a JAX array on the device of another one, and committed to it if that is."""
    import jax

    (device,) = like.devices()
    if like._committed:
        return jax.device_put(host, device)
    with jax.default_device(device):
        return jax.numpy.asarray(host)


def is_c_contiguous(x: Any) -> bool:
    """Return whether an array has JAX's default layout, C order."""
    return bool(_strides(x) == compact_strides(tuple(x.shape)))


def is_key(x: Any) -> bool:
    """Return whether an array is of random keys, whose type JAX alone knows."""
    import jax

    return isinstance(x, jax.Array) and bool(jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key))


def _strides(x: Any, role: str = "an array") -> tuple[int, ...]:
    """Return the strides of an array in elements."""
    shape = tuple(x.shape)
    # JAX has called it otherwise.
    layout = x.format.layout if hasattr(x, "format") else getattr(x.layout, "device_local_layout", None)
    if layout is None:
        return compact_strides(shape)
    if getattr(layout, "tiling", None) or getattr(layout, "_tiling", None):
        raise ArgumentError(f"{role} lies in memory as {layout}; pass a copy in the default layout")
    # Dimensions from the one of the longest stride to the contiguous one.
    order = tuple(layout.major_to_minor)
    steps = compact_strides(tuple(shape[axis] for axis in order))
    return tuple(steps[order.index(axis)] for axis in range(len(shape)))
