"""The launches of a compiled ``@cute.jit`` function, in the virtual GPU's memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from gemmule.compiler.host_functions.function import CuteFunction
from gemmule.core.errors import ArgumentError, KernelFailedError

from .interpreter import Interpreter, LaunchCall
from .llvm_types import Type, type_of

_GLOBAL = 1


def launches_of(
    function: CuteFunction, translated: Callable[[int], int | None], printed: Callable[[str], None]
) -> list[LaunchCall]:
    """Interpret a function's host part, and return its launches in order.

    Parameters
    ----------
    translated : callable
        Returns the address in the virtual GPU's memory of an address of the host's; None for one of no argument.
    printed : callable
        Receives what the host part prints.

    Raises
    ------
    KernelFailedError
        If it stops itself or returns an error.
    """
    values = []
    for text, address in function.arguments:
        kind = type_of(text)
        data = ctypes.string_at(address, kind.size) if kind.size else b""
        values.append(kind.read(_moved(kind, data, translated)))
    interpreter = Interpreter(function.module, printed)
    status = interpreter.call(function.name, values)
    if status:
        raise KernelFailedError(f"the host part of {function.name} returned {status}")
    return interpreter.launches


def _moved(kind: Type, data: bytes, translated: Callable[[int], int | None]) -> bytearray:
    """Return an argument's bytes with every pointer to an array moved to the virtual GPU's memory."""
    moved = bytearray(data)
    for start, leaf in kind.leaves():
        if leaf.kind != "ptr":
            continue
        address = leaf.read(moved, start)
        found = translated(address) if address else 0
        if found is None and leaf.bits == _GLOBAL:
            raise ArgumentError(
                f"an argument points to {address:#x}, which is in no array among the arguments; pass memory=[array]"
            )
        leaf.write(address if found is None else found, moved, start)
    return moved
