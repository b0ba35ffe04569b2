"""Arguments of a ``@cute.jit`` function: what the compiler is given for each, and the memory behind it.

NumPy arrays and tensors of PyTorch on the CPU become tensors of CuTe DSL with dynamic layouts, as the DSL itself does
with arrays on a GPU. Tensors that the caller has made with ``from_dlpack`` stay as they are. All are marked as global
memory of a GPU while they are compiled, so that the code is that for a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from gemmule.core.errors import ArgumentError, DTypeError, UnsupportedError, shown

Array = np.ndarray[Any, np.dtype[Any]]

#: Most bytes of alignment that a tensor is taken to have; wider accesses do not exist.
_MOST_ALIGNED = 16
#: Element types that DLPack does not know, as CuTe DSL names them, and the unsigned type of their bits.
_NAMES = {
    "bfloat16": "BFloat16", "float8_e4m3fn": "Float8E4M3FN", "float8_e5m2": "Float8E5M2",
    "float8_e4m3b11fnuz": "Float8E4M3B11FNUZ", "float8_e8m0fnu": "Float8E8M0FNU",
}  # fmt: skip
_CPU, _GPU = 1, 2


class CuteArguments:
    """The arguments of one call, converted.

    Parameters
    ----------
    function : callable
        The ``@cute.jit`` function, or an object that is called.
    memory : sequence of array
        Memory that arguments point to beyond the arrays among them.

    Attributes
    ----------
    args, kwargs
        Arguments of the compiler.
    arrays : dict of str to ndarray
        The memory behind the arguments, by the names of parameters.
    empty : set of int
        Addresses of arrays without elements.
    absent : tuple of str
        Parameters that are given as None, streams left out: the function may test for it, or fail.
    """

    def __init__(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any], memory: Sequence[Any]) -> None:
        self.arrays: dict[str, Array] = {}
        self.empty: set[int] = set()
        self._tensors: list[Any] = []
        parameters = list(_parameters(function, args, kwargs).values())
        named = [
            (parameters[place].name if place < len(parameters) else f"argument {place + 1}", value)
            for place, value in enumerate(args)
        ]
        _check_scalars(parameters, [*named, *kwargs.items()])
        streams = {one.name for one in parameters if "CUstream" in str(one.annotation)}
        self.absent = tuple(name for name, value in (*named, *kwargs.items()) if value is None and name not in streams)
        self.args = tuple(self._converted(name, value, name in streams) for name, value in named)
        self.kwargs = {name: self._converted(name, value, name in streams) for name, value in kwargs.items()}
        for place, array in enumerate(memory):
            self._keep(f"memory[{place}]", _host_array(f"memory[{place}]", array))

    @contextlib.contextmanager
    def on_gpu(self) -> Iterator[None]:
        """Mark the tensors' memory as a GPU's."""
        devices = [device for device in map(_device_of, self._tensors) if device is not None and device[0] == _CPU]
        for device in devices:
            device[0] = _GPU
        try:
            yield
        finally:
            for device in devices:
                device[0] = _CPU

    def _keep(self, name: str, array: Array) -> None:
        if array.size:
            self.arrays[name] = array
        else:
            self.empty.add(array.__array_interface__["data"][0])

    def _converted(self, name: str, value: Any, is_stream: bool = False) -> Any:
        if value is None and is_stream:
            from cuda.bindings.driver import CUstream

            return CUstream(0)
        if isinstance(value, np.ndarray) or _is_torch(value):
            array = _host_array(name, value)
            self._keep(name, array)
            tensor = _tensor(name, array, value)
            self._tensors.append(tensor)
            return tensor
        if hasattr(value, "data_ptr") and hasattr(value, "element_type"):
            self._keep(name, _memory_of(value))
            self._tensors.append(value)
            return value
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, tuple | list):
            items = [self._converted(f"{name}[{place}]", item) for place, item in enumerate(value)]
            if all(new is old for new, old in zip(items, value, strict=True)):
                return value
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value) if one.init}
            new = {key: self._converted(f"{name}.{key}", item) for key, item in fields.items()}
            changed = {key: item for key, item in new.items() if item is not fields[key]}
            return dataclasses.replace(value, **changed) if changed else value
        return value


def _parameters(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Mapping[str, inspect.Parameter]:
    """Return a function's parameters by name."""
    name = getattr(function, "__name__", type(function).__name__)
    if inspect.isclass(function):
        raise ArgumentError(f"{name} is a class; pass an object of it, whose __call__ is a @cute.jit function")
    if not callable(function):
        raise ArgumentError(f"{function!r} is not a @cute.jit function; pass the one that launches the kernel")
    signature = inspect.signature(function if inspect.isroutine(function) else function.__call__)
    call = f"{name}({', '.join(signature.parameters)})"
    try:
        given = signature.bind_partial(*args, **kwargs).arguments
    except TypeError as error:
        raise ArgumentError(f"{call}: {error}; pass one for each parameter") from error
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    missing = [
        repr(key)
        for key, one in signature.parameters.items()
        if key not in given and one.default is one.empty and one.kind not in variadic
    ]
    if missing:
        raise ArgumentError(
            f"{call}: missing {', '.join(missing)}; pass an array ('float32[40,24]' for gemmule check), a number or "
            "None (a stream) for each"
        )
    return signature.parameters


def _check_scalars(parameters: Sequence[inspect.Parameter], given: Sequence[tuple[str, Any]]) -> None:
    """Refuse what is no number for a parameter of a type such as ``cutlass.Float32``: the compiler calls it its bug.

    And a number for a tensor, whose place the compiler names instead of its name.
    """
    import cutlass
    from cutlass import cute

    kinds = {one.name: one.annotation for one in parameters}
    for name, value in given:
        kind: Any = kinds.get(name)
        if isinstance(kind, str):
            word = kind.rpartition(".")[2]
            kind = cute.Tensor if word == "Tensor" else getattr(cutlass, word, None)
        if kind is cute.Tensor and isinstance(value, int | float | complex | str | bytes | list | tuple):
            raise ArgumentError(f"{name}={shown(value)} is not an array, and {name} is a Tensor; pass an array")
        if not (isinstance(kind, type) and issubclass(kind, cutlass.Numeric)):
            continue
        number = value.item() if isinstance(value, np.generic) else value
        if not isinstance(number, int | float | cutlass.Numeric):
            raise ArgumentError(
                f"{name}={shown(value)} is not a number, and {name} is a {kind.__name__}; pass a number"
            )
        is_whole = issubclass(kind, cutlass.Integer) and kind is not cutlass.Integer
        if is_whole and isinstance(number, int | float) and not _is_in(kind, number):
            raise ArgumentError(f"{name}={shown(value)} is none of the whole numbers of {kind.__name__}")
        if isinstance(number, cutlass.Numeric) and not isinstance(number, kind):
            # Its bits would be taken for the other type's.
            raise ArgumentError(f"{name} is a {kind.__name__}, got {type(value).__name__}; pass {kind.__name__}(…)")


def _is_in(kind: Any, number: Any) -> bool:
    """Return whether a type of integers holds a number."""
    if isinstance(number, float) and not number.is_integer():
        return False
    # A Boolean has one bit and is marked signed.
    least = -(1 << kind.width - 1) if kind.signed and kind.width > 1 else 0
    return bool(least <= number < least + (1 << kind.width))


def _is_torch(value: Any) -> bool:
    return any(one.__module__ == "torch" and one.__name__ == "Tensor" for one in type(value).__mro__)


def _host_array(name: str, value: Any) -> Array:
    """Return an array's memory as a NumPy array, which is that of a tensor of PyTorch."""
    if isinstance(value, np.ndarray):
        return value
    if not _is_torch(value):
        raise ArgumentError(f"{name} must be a NumPy array or a tensor of PyTorch, got {type(value).__name__}")
    if value.device.type != "cpu":
        raise ArgumentError(f"{name} is on {value.device}; the virtual GPU takes tensors on the CPU: pass {name}.cpu()")
    return _array_at(value.data_ptr(), tuple(value.shape), tuple(value.stride()), value.element_size(), value)


def _memory_of(tensor: Any) -> Array:
    """Return the memory of a tensor of CuTe DSL."""
    bits = int(tensor.element_type.width)
    shape, strides = _flat(tensor.shape), _flat(tensor.stride)
    if bits % 8 or not all(isinstance(extent, int) for extent in (*shape, *strides)):
        return _array_at(tensor.data_ptr, (tensor.size_in_bytes,), (1,), 1, tensor)
    return _array_at(tensor.data_ptr, shape, strides, bits // 8, tensor)


def _flat(extents: Any) -> tuple[int, ...]:
    """Return nested extents in one tuple."""
    if not isinstance(extents, tuple | list):
        return (extents,)
    return tuple(one for item in extents for one in _flat(item))


class _Span:
    """Memory that another object owns, for NumPy (array interface, version 3)."""

    def __init__(self, address: int, size: int, owner: Any) -> None:
        self.owner = owner
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def _array_at(address: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, owner: Any) -> Array:
    """Return an array of unsigned integers at an address; strides are in elements."""
    if not math.prod(shape):
        return np.empty(0, np.uint8)
    low = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True) if stride < 0) * itemsize
    high = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True) if stride > 0) * itemsize
    span = np.asarray(_Span(address + low, high - low + itemsize, owner))
    return np.ndarray(shape, f"u{itemsize}", span, -low, tuple(stride * itemsize for stride in strides))


def _tensor(name: str, array: Array, value: Any) -> Any:
    """Return an array as a tensor of CuTe DSL, its layout dynamic."""
    import cutlass
    from cutlass.cute.runtime import from_dlpack

    dtype = array.dtype if isinstance(value, np.ndarray) else None
    given = value.detach() if dtype is None else array
    element = None
    if dtype is not None and dtype.name in _NAMES:
        element = getattr(cutlass, _NAMES[dtype.name])
        given = array.view(f"u{dtype.itemsize}")
    if dtype is not None and not array.flags.writeable:
        # DLPack exports no memory that must not be written. What a kernel writes there is found afterwards.
        low, high = byte_bounds(given)
        span = np.asarray(_Span(low, high - low, array))
        start = given.__array_interface__["data"][0] - low
        given = np.ndarray(given.shape, given.dtype, span, start, given.strides)
    address = array.__array_interface__["data"][0]
    if array.size and address % array.dtype.alignment:
        rule = f"must be a multiple of the {array.dtype.alignment} bytes of an element"
        raise ArgumentError(f"{name} begins at address {address:#x}, which {rule}; pass {name}.copy()")
    aligned = max(address & -address, array.itemsize) if array.size else _MOST_ALIGNED
    try:
        tensor = from_dlpack(given, assumed_align=min(aligned, _MOST_ALIGNED))
        # The compiler would find an unknown type later, and not say whose it is.
        tensor.element_type = element or tensor.element_type
    except (BufferError, RuntimeError, TypeError) as error:
        raise DTypeError(
            f"{name} has elements of {array.dtype}, which CuTe DSL does not take; pass floats or integers"
        ) from error
    if array.ndim:
        unit = [place for place, stride in enumerate(array.strides) if stride == array.itemsize]
        longer = [place for place in unit if array.shape[place] > 1] or unit
        tensor.mark_layout_dynamic(leading_dim=longer[-1] if longer else None)
    return tensor


def _device_of(tensor: Any) -> Any:
    """Return the device's type and number within a tensor's DLPack structure, which they follow an address in."""
    capsule = getattr(tensor, "_dlpack_data", None)
    if type(capsule).__name__ != "PyCapsule":
        raise UnsupportedError("this version of CuTe DSL holds no DLPack capsule in its tensors")
    api = ctypes.pythonapi
    name_of, pointer_of = api.PyCapsule_GetName, api.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    name = name_of(capsule)
    if name not in (b"dltensor", b"used_dltensor"):
        return None
    return (ctypes.c_int32 * 2).from_address(pointer_of(capsule, name) + ctypes.sizeof(ctypes.c_void_p))
