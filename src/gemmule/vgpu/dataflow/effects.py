"""Effects of an instruction: the registers that it reads and writes."""

from __future__ import annotations

from collections.abc import Iterable

from ..ptx.module import Address, Immediate, Instruction, Negated, Operand, Pair, Register, Vector

#: Instructions without a destination: all their operands are read.
_NO_DESTINATION = frozenset(
    {"st", "red", "call", "bar", "barrier", "bra", "brx", "ret", "exit", "trap", "cp", "membar", "fence", "prefetch",
     "prefetchu", "stmatrix", "nanosleep", "discard", "applypriority", "pmevent", "setmaxnreg", "griddepcontrol"}
)  # fmt: skip


def _has_no_destination(instruction: Instruction) -> bool:
    """Say whether all operands of an instruction are read; a reduction at a barrier has a result."""
    return instruction.name in _NO_DESTINATION and not (
        instruction.name in ("bar", "barrier") and "red" in instruction.modifiers
    )


def registers_in(operand: Operand) -> tuple[Register, ...]:
    """Return the registers that an operand names."""
    if isinstance(operand, Register):
        return (operand,)
    if isinstance(operand, Negated):
        return (operand.register,)
    parts: tuple[Operand, ...] = ()
    if isinstance(operand, Vector):
        parts = operand.items
    elif isinstance(operand, Pair):
        parts = (operand.first, operand.second)
    elif isinstance(operand, Address):
        parts = (operand.base, *operand.extra)
    return tuple(register for part in parts for register in registers_in(part))


def written(instruction: Instruction) -> tuple[Register, ...]:
    """Return the registers that an instruction writes."""
    if _has_no_destination(instruction) or not instruction.operands:
        return ()
    return registers_in(instruction.operands[0])


def operands_read(instruction: Instruction) -> tuple[Register, ...]:
    """Return the registers among the operands that an instruction reads."""
    operands = instruction.operands if _has_no_destination(instruction) else instruction.operands[1:]
    if selects_known_bytes(instruction):
        # A register of which no byte is selected is not read: the compiler names any there.
        operands = tuple(operand for operand, chosen in selected_bytes(instruction, range(4)) if chosen)
    return tuple(register for operand in operands for register in registers_in(operand))


def selects_known_bytes(instruction: Instruction) -> bool:
    """Say whether an instruction puts a word together, of bytes that it names."""
    selector = instruction.operands[3] if instruction.opcode == "prmt.b32" else None
    return isinstance(selector, Immediate)


def selected_bytes(instruction: Instruction, used: Iterable[int]) -> tuple[tuple[Operand, frozenset[int]], ...]:
    """Return both operands of such an instruction, and the bytes of each that used bytes of the word come from."""
    _, first, second, selector = instruction.operands
    assert isinstance(selector, Immediate)
    places = [divmod(selector.value >> 4 * number & 7, 4) for number in used]
    return tuple(
        (operand, frozenset(byte for other, byte in places if other == number))
        for number, operand in enumerate((first, second))
    )


def read(instruction: Instruction) -> tuple[Register, ...]:
    """Return the registers that an instruction reads, its guard's included."""
    guard = instruction.guard
    if guard is None:
        return operands_read(instruction)
    return (*operands_read(instruction), guard.register if isinstance(guard, Negated) else guard)
