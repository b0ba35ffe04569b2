"""Running ``@cute.jit`` functions as they stand: arguments as on a GPU, launches as the host part makes them."""

from __future__ import annotations

import bisect
import dataclasses
import os
from collections.abc import Iterable, Sequence, Set
from pathlib import Path
from typing import Any

from numpy.lib.array_utils import byte_bounds

from gemmule.compiler.host_functions.arguments import CuteArguments
from gemmule.compiler.host_functions.function import CuteFunction, check_compiler
from gemmule.core.errors import ArgumentError, shown
from gemmule.core.launch import Launch

from .arch import virtual_arch
from .arrays import DeviceArrays
from .checks import Collected, Predecessors, all_checks
from .engine.observer import Observer
from .engine.program import Program, program_of
from .host_code import map_words
from .host_code.interpreter import LaunchCall
from .host_code.launches import launches_of
from .launcher import Options, Packed, finish, run_packed, schedule_names
from .map_bytes import encoded
from .memory import GLOBAL_BASE
from .ptx.parser import entries
from .report import Finding, VirtualGpuError, kernel_name
from .tensor_map import TensorMap
from .trace import Trace, check_path

#: Address of arrays without elements: as well aligned as any, and before all others.
_NOWHERE = 1 << 16


def run(
    function: Any,
    *args: Any,
    schedules: int | Sequence[str] | None = None,
    memory: Sequence[Any] = (),
    options: Options | None = None,
    observers: tuple[Observer, ...] = (),
    trace: str | os.PathLike[str] | None = None,
    **kwargs: Any,
) -> tuple[Finding, ...]:
    """Run a ``@cute.jit`` function on the virtual GPU with all checks; its arrays hold the results.

    Grid, block, cluster, shared memory, parameters and tensor maps of every launch are those that the function's host
    part computes.

    Parameters
    ----------
    function : callable
        A ``@cute.jit`` function, or an object whose ``__call__`` is one.
    *args, **kwargs
        Its arguments as on a GPU: NumPy arrays and tensors of PyTorch on the CPU, which are written in place, tensors
        made of them by ``cutlass.cute.runtime.from_dlpack``, numbers, ``Constexpr`` arguments and a stream, which is
        not used (None will do).
    schedules : int or sequence of str
        The schedules to run under, ``"late"``, ``"eager"`` and ``"random"``, or how many of these; by default
        ``$GEMMULE_VGPU_SCHEDULES``, else 1. Each begins with the arrays as they were given; the results are those of
        the last.
    memory : sequence of array
        Arrays that arguments of type ``cute.Pointer`` point into.
    options : Options, optional
        Options of the run besides the schedule; by default with checks.
    observers : tuple of Observer
        Observers of every launch, such as a `Counter`.
    trace : path, optional
        A page to write, ``.html``, that plays what the first CTA of each launch does, under the first schedule, or
        ``.json``, its data only.

    Returns
    -------
    tuple of Finding
        Notes: what the compiler, not the function's author, has chosen, such as registers set behind a ``wgmma.fence``.

    Raises
    ------
    CheckError
        If the function does something wrong; the text begins with the kind of the first finding.
    PtxError
        If a kernel has an instruction that is not modelled.
    UnsupportedError
        If the host part has an operation that is not modelled.
    KernelFailedError
        If it does not compile, or stops itself.
    FileAccessError
        If `trace` cannot be written; nothing has run then.
    """
    for word, given in (("memory", memory), ("observers", observers)):
        if not isinstance(given, Iterable):
            raise ArgumentError(f"{word}={shown(given)} is not a sequence; give a list or tuple, or leave {word} out")
    if not isinstance(options, Options | None):
        raise ArgumentError(f"options={shown(options)} are no gemmule.vgpu.Options; give some, or leave options out")
    if trace is not None:
        check_path(Path(trace))
    check_compiler()
    names = schedule_names(schedules)
    arguments = CuteArguments(function, args, kwargs, memory)
    compiled = CuteFunction(function, arguments, virtual_arch())
    options = options or dataclasses.replace(Options.from_environment(), checks=True)
    notes: list[Finding] = []
    for name in names:
        device, collected = DeviceArrays(arguments.arrays), Collected(compiled=True)
        launches = launches_of(
            compiled, _Addresses(device, arguments.empty).translated, lambda text: print(text, end="")
        )
        if not launches:
            raise ArgumentError(f"{getattr(function, '__name__', function)} launches no kernel; pass arguments that do")
        recorder = (Trace(device),) if trace is not None and name == names[0] else ()
        dependent = options.checks and any(call.overlaps for call in launches[1:])
        before = Predecessors(device.memory) if dependent else None
        for number, call in enumerate(launches):
            program = _program(compiled.ptx, call)
            overlaps = call.overlaps and number > 0
            checks = all_checks(collected, device, before, overlaps) if options.checks else ()
            packed = dataclasses.replace(
                _packed(program, call, device), tiles=compiled.tiles.of(program.kernel.name, call.shared_bytes)
            )
            one = dataclasses.replace(options, schedule=name)
            try:
                with collected.before_faults():
                    run_packed(program, packed, device.memory, one, (*checks, *recorder, *observers))
            except VirtualGpuError as error:
                _write(recorder, trace, error.findings)
                raise
        _write(recorder, trace, collected.findings)
        if collected.findings or name == names[-1]:
            finish(device, collected)
        notes += [note for note in collected.notes if note not in notes]
    return tuple(notes)


def _write(recorder: Sequence[Trace], trace: str | os.PathLike[str] | None, findings: Sequence[Finding]) -> None:
    for one in recorder:
        one.write(Path(trace or ""), findings)


class _Addresses:
    """Addresses of the host's memory and of the virtual GPU's, array by array."""

    def __init__(self, device: DeviceArrays, empty: Set[int]) -> None:
        self._empty = empty
        spans = []
        for name, array in device.arrays.items():
            low, high = byte_bounds(array)
            spans.append((low, high, device.addresses[name] - array.__array_interface__["data"][0]))
        self._spans = sorted(spans)
        self._starts = [span[0] for span in self._spans]

    def translated(self, address: int) -> int | None:
        """Return the place in the arena of a byte of the host's memory; None if it is in no array."""
        for low, high, moved in reversed(self._spans[: bisect.bisect_right(self._starts, address)]):
            if low <= address < high:
                return int(address + moved)
        # An array without elements has no memory: whatever is read there is out of bounds.
        return _NOWHERE if address in self._empty else None


def _program(ptx: str, call: LaunchCall) -> Program:
    """Return the program of a launch, whose symbol ends with the kernel's name."""
    names = [name for name in entries(ptx) if call.symbol.endswith(name)]
    if not names:
        raise ArgumentError(f"the PTX text has no kernel {call.symbol}")
    return program_of(ptx, max(names, key=len))


def _packed(program: Program, call: LaunchCall, device: DeviceArrays) -> Packed:
    """Return a launch with its parameters where the kernel expects them, and the tensor maps among them."""
    kernel, binder = program.kernel, program.binder
    if len(call.params) != len(kernel.params):
        raise ArgumentError(
            f"the host part passes {len(call.params)} parameters, {kernel.name} takes {len(kernel.params)}"
        )
    packed = bytearray(binder.param_bytes)
    maps = {}
    for (data, kind), param in zip(call.params, kernel.params, strict=True):
        start = binder.address_of_name(param.name)
        packed[start : start + param.size] = data[: param.size].ljust(param.size, b"\0")
        for offset in kind.offsets_of("array", map_words.SIZE, "int"):
            fields = map_words.decoded(data[offset : offset + map_words.SIZE])
            found = maps[start + offset] = _tensor_map(fields)
            name = kernel_name(kernel)
            _check_strides(name, fields, device)
            found.check(f"a tensor map of {name}", device.memory)
            packed[start + offset : start + offset + map_words.SIZE] = encoded(found)
    recipe = Launch(call.grid, call.block, (), call.shared_bytes, call.cluster, call.overlaps)
    return Packed(recipe, bytes(packed), maps)


def _check_strides(kernel: str, fields: map_words.MapFields, device: DeviceArrays) -> None:
    """Refuse strides that tensor maps cannot have: compiled host code cuts them to multiples of 16 bytes."""
    for name, array in device.arrays.items():
        first = device.addresses[name]
        if not first <= fields.address < first + array.size * array.itemsize:
            continue
        for extent, stride in zip(array.shape, array.strides, strict=True):
            if extent > 1 and stride % 16 and stride // 16 * 16 in fields.pitches:
                raise ArgumentError(
                    f"a tensor map of {kernel} has operand {name}, whose row stride is {stride} bytes; TMA takes "
                    "multiples of 16 bytes: pad the rows"
                )


def _tensor_map(fields: map_words.MapFields) -> TensorMap:
    # A direction of one element has any stride.
    steps = zip(fields.extents[1:], fields.pitches, strict=True)
    pitches = tuple(pitch if extent > 1 else max(pitch, 16) for extent, pitch in steps)
    return TensorMap(
        fields.address - GLOBAL_BASE,
        fields.dtype,
        fields.itemsize,
        fields.extents,
        pitches,
        fields.box,
        fields.swizzle,
        fields.tf32,
    )
