"""The granule of memory that a shadow distinguishes: the smallest access of a kernel."""

from __future__ import annotations

import functools

from ..ptx.module import TYPE_BYTES, Instruction, Kernel, Vector

_LARGEST = 16


def access_bytes(instruction: Instruction) -> int | None:
    """Return how many bytes of memory an instruction accesses for each lane; None if it accesses none."""
    name, modifiers = instruction.name, instruction.modifiers
    if name in ("ldmatrix", "stmatrix"):
        return 16
    if name == "cp" and "bulk" in modifiers:
        return _LARGEST
    if name == "cp" and len(instruction.operands) >= 3:
        size = instruction.operands[2]
        return getattr(size, "value", 4)
    if name not in ("ld", "ldu", "st", "atom", "red"):
        return None
    kind = [modifier for modifier in modifiers if modifier in TYPE_BYTES][-1]
    items = [operand for operand in instruction.operands if isinstance(operand, Vector)]
    return TYPE_BYTES[kind] * (len(items[0].items) if items else 1)


@functools.lru_cache(maxsize=256)
def _granule(kernel: Kernel, spaces: tuple[str, ...]) -> int:
    smallest = _LARGEST
    for instruction in kernel.instructions:
        size = access_bytes(instruction)
        named = [modifier.split("::")[0] for modifier in instruction.modifiers]
        other = {"global", "shared", "local", "param", "const"} - set(spaces)
        # Generic accesses may go anywhere.
        if size is not None and (set(spaces) & set(named) or not other & set(named)):
            smallest = min(smallest, size)
    return smallest


def shared_granule(kernel: Kernel) -> int:
    """Return the smallest access to shared memory, in bytes."""
    return _granule(kernel, ("shared",))


def global_granule(kernel: Kernel) -> int:
    """Return the smallest access to global memory, in bytes."""
    return _granule(kernel, ("global",))
