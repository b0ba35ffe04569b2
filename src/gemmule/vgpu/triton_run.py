"""Running Triton kernels: compiled to PTX without a GPU, arguments and grid as in ``kernel[grid](*args)``."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gemmule.core.errors import ArgumentError, CompilerMissingError, KernelFailedError
from gemmule.core.launch import Launch

from .arch import virtual_arch
from .arrays import DeviceArrays, virtual_address
from .checks import Collected, all_checks
from .engine.observer import Observer
from .engine.program import program_of
from .launcher import Options, Packed, finish, run_packed, schedule_names
from .types import Array

Grid = int | Sequence[int] | Callable[[Mapping[str, Any]], Sequence[int]]
#: Triton's names of element types.
_TYPES = {
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64", "float8_e4m3fn": "fp8e4nv",
    "float8_e5m2": "fp8e5", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8",
    "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool": "i1",
}  # fmt: skip
#: Divisor of pointers and integers that Triton specialises a kernel for.
_DIVISOR = 16


def run_triton(
    kernel: Any,
    grid: Grid,
    /,
    *args: Any,
    schedules: int | Sequence[str] | None = None,
    options: Options | None = None,
    observers: tuple[Observer, ...] = (),
    **kwargs: Any,
) -> None:
    """Run a ``@triton.jit`` kernel on the virtual GPU with all checks; its arrays hold the results.

    Parameters
    ----------
    kernel : triton.JITFunction
        The kernel. Of one with ``@triton.autotune`` the first config is taken, and what ``@triton.heuristics`` chooses.
    grid : int, sequence of int, or callable
        Programs along x, y and z, or a function of the arguments by name that returns them.
    *args, **kwargs
        Its arguments as on a GPU: NumPy arrays and tensors of PyTorch on the CPU, numbers, constants; and options of
        the launch, such as ``num_warps``.
    schedules, options, observers
        As of `run`.

    Raises
    ------
    CheckError
        If the kernel does something wrong.
    CompilerMissingError
        If Triton is not installed.
    ArgumentError
        If the arguments do not fit the kernel.
    KernelFailedError
        If it does not compile.
    """
    names = schedule_names(schedules)
    function, values, settings = _bound(kernel, args, kwargs)
    compiled, given = _compiled(function, values, settings)
    extents: Any = grid(values) if callable(grid) else grid
    x, y, z = (*(map(int, extents) if isinstance(extents, Iterable) else (int(extents),)), 1, 1)[:3]
    program, metadata = program_of(compiled.asm["ptx"]), compiled.metadata
    threads = int(program.kernel.directives["reqntid"].split(",")[0])
    recipe = Launch((x, y, z), (threads, 1, 1), (), metadata.shared, (metadata.num_ctas, 1, 1))
    arrays = {name: _array(value) for name, value in given.items() if _is_array(value)}
    scratch = np.zeros(metadata.global_scratch_size * x * y * z, np.uint8)
    options = options or dataclasses.replace(Options.from_environment(), checks=True)
    for name in names:
        device, collected = DeviceArrays({**arrays, "the scratch memory": scratch}), Collected(compiled=True)
        addresses = device.addresses
        values_of = [addresses.get(name, value) for name, value in given.items()]
        packed = bytearray(program.binder.param_bytes)
        # Behind the arguments: scratch memory, and that of a profiler, which is not used.
        rest = [addresses["the scratch memory"], 0]
        for param, value in zip(program.kernel.params, [*values_of, *rest], strict=True):
            start = program.binder.address_of_name(param.name)
            packed[start : start + param.size] = _bytes(value, param.size)
        checks = all_checks(collected, device) if options.checks else ()
        one = dataclasses.replace(options, schedule=name)
        with collected.before_faults():
            run_packed(program, Packed(recipe, bytes(packed), {}), device.memory, one, (*checks, *observers))
        if collected.findings or name == names[-1]:
            finish(device, collected)


def _bound(kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return the function below the decorators, its arguments by name, and the options of the compiler."""
    settings: dict[str, Any] = {}
    heuristics: list[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = []
    while not hasattr(kernel, "params"):
        if hasattr(kernel, "configs"):
            settings |= kernel.configs[0].all_kwargs()
        elif hasattr(kernel, "values"):
            heuristics.append(kernel.values)
        else:
            raise ArgumentError(f"{getattr(kernel, '__name__', kernel)} is not a @triton.jit kernel; pass one")
        kernel = kernel.fn
    settings |= kwargs
    names = list(kernel.arg_names)
    if len(args) > len(names):
        raise ArgumentError(f"{kernel.__name__} takes {len(names)} arguments, not {len(args)}")
    values = dict(zip(names, args, strict=False))
    values |= {name: settings.pop(name) for name in names if name in settings}
    for chosen in heuristics:
        values |= {name: choose(values) for name, choose in chosen.items()}
    for param in kernel.params:
        if param.name not in values and param.has_default:
            values[param.name] = param.default
    missing = [name for name in names if name not in values]
    if missing:
        raise ArgumentError(f"{kernel.__name__} is called without {', '.join(missing)}")
    return kernel, {name: values[name] for name in names}, settings


def _compiled(kernel: Any, values: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Compile a kernel, specialised as Triton does; return it with the arguments that are parameters."""
    try:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
    except ImportError as error:
        raise CompilerMissingError("Triton is not installed; pip install triton") from error
    signature, constants, attributes = {}, {}, {}
    for number, param in enumerate(kernel.params):
        value = values[param.name]
        kind = "constexpr" if param.is_constexpr else _type(param.name, value)
        if kind.startswith("i") and value == 1 and not param.do_not_specialize:
            kind = "constexpr"
        signature[param.name] = kind
        if kind == "constexpr":
            constants[number,] = value
        elif not param.do_not_specialize and _divides(value):
            attributes[number,] = [["tt.divisibility", _DIVISOR]]
    capability = virtual_arch().capability
    target = GPUTarget("cuda", capability[0] * 10 + capability[1], 32)
    try:
        compiled = triton.compile(ASTSource(kernel, signature, constants, attributes), target, dict(settings))
    except (triton.CompilationError, KeyError, ValueError) as error:
        raise KernelFailedError(f"{kernel.__name__} does not compile: {error}") from error
    if unknown := [name for name in settings if not hasattr(compiled.metadata, name)]:
        raise ArgumentError(
            f"{kernel.__name__} has no parameter {unknown[0]}, and Triton no option of that name; leave it out"
        )
    return compiled, {name: values[name] for name, kind in signature.items() if kind != "constexpr"}


def _type(name: str, value: Any) -> str:
    """Return Triton's name of the type of an argument."""
    if value is None:
        return "constexpr"
    if _is_array(value):
        found = _TYPES.get(_array(value).dtype.name)
        if found is None:
            raise ArgumentError(f"argument {name} is an array of {value.dtype}, which Triton has no pointer to")
        return f"*{found}"
    if isinstance(value, bool | np.bool_):
        return "u1"
    if isinstance(value, int | np.integer):
        return "i32" if -(2**31) <= value < 2**31 else "i64" if value < 2**63 else "u64"
    if isinstance(value, numbers.Real):
        return "fp32"
    raise ArgumentError(f"argument {name} is of type {type(value).__name__}; pass an array or a number")


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") and bool(getattr(value, "ndim", 0))


def _array(value: Any) -> Array:
    """Return an array of NumPy, or the memory of one of PyTorch's on the CPU as one."""
    if isinstance(value, np.ndarray):
        return value
    found: Array = np.from_dlpack(value)
    return found


def _divides(value: Any) -> bool:
    """Say whether an argument is a multiple of 16: arrays begin at multiples, views of them may not."""
    if _is_array(value):
        return virtual_address(_array(value)) % _DIVISOR == 0
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) % _DIVISOR == 0


def _bytes(value: Any, size: int) -> bytes:
    if isinstance(value, int | np.integer):
        return (int(value) % (1 << 8 * size)).to_bytes(size, "little")
    return np.array(value, f"f{size}").tobytes()
