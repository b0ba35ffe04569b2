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
    if byte_sources(instruction):
        # A register of which no byte is selected is not read: the compiler names any there.
        operands = tuple(operand for operand, chosen in selected_bytes(instruction, range(4)) if chosen)
    return tuple(register for operand in operands for register in registers_in(operand))


def byte_sources(instruction: Instruction) -> tuple[tuple[int, int], ...]:
    """Return the source of each byte of a word that an instruction assembles from bytes at known positions.

    Each is the number of one of the first two source operands, and a byte of it; there are none for other instructions.
    """
    opcode, operands = instruction.opcode, instruction.operands
    if opcode == "prmt.b32" and isinstance(operands[3], Immediate):
        selector = operands[3].value
        return tuple(divmod(selector >> 4 * number & 7, 4) for number in range(4))
    if opcode == "bfi.b32" and isinstance(operands[3], Immediate) and isinstance(operands[4], Immediate):
        position, length = operands[3].value, operands[4].value
        if position % 8 == length % 8 == 0 and 0 <= position <= position + length <= 32:
            first, end = position // 8, (position + length) // 8
            return tuple((0, number - first) if first <= number < end else (1, number) for number in range(4))
    return ()


def selected_bytes(instruction: Instruction, used: Iterable[int]) -> tuple[tuple[Operand, frozenset[int]], ...]:
    """Return both operands of such an instruction, and the bytes of each that used bytes of the word come from."""
    sources = byte_sources(instruction)
    places = [sources[number] for number in used]
    return tuple(
        (operand, frozenset(byte for other, byte in places if other == number))
        for number, operand in enumerate(instruction.operands[1:3])
    )


def read(instruction: Instruction) -> tuple[Register, ...]:
    """Return the registers that an instruction reads, its guard's included."""
    guard = instruction.guard
    if guard is None:
        return operands_read(instruction)
    return (*operands_read(instruction), guard.register if isinstance(guard, Negated) else guard)
