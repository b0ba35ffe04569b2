"""Definitions of instructions: a function for each opcode turns one instruction into a step.

A step is a function of a frame. A definition reads every modifier and operand of its instruction, and rejects what it
does not model, with the instruction's text and line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemmule.vgpu.dataflow.control_flow import Flow
from gemmule.vgpu.ptx.errors import PtxError
from gemmule.vgpu.ptx.module import (
    TYPE_BYTES,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)
from gemmule.vgpu.types import NUMPY, Array

from .binder import Binder
from .lanes import Lanes
from .running_batch import Frame, RunningBatch
from .special import CLOCKS

Step = Callable[[Frame], None]
Definition = Callable[["Build"], Step]
#: Says which lanes of a frame can begin, among those that a mask names: None means all.
Gate = Callable[[Frame, Array | None], Array | None]

#: Says what lanes wait for that a gate holds back.
WaitText = Callable[[RunningBatch, Lanes], str]

#: Definitions of opcodes, by their first part.
DEFINITIONS: dict[str, Definition] = {}


def defines(*names: str) -> Callable[[Definition], Definition]:
    """Register the definition of those opcodes."""

    def register(definition: Definition) -> Definition:
        for name in names:
            assert name not in DEFINITIONS, f"{name} is defined twice"
            DEFINITIONS[name] = definition
        return definition

    return register


class Build:
    """An instruction that becomes a step.

    Parameters
    ----------
    binder : Binder
        Slots and addresses of registers, constants and variables.
    flow : Flow
        The kernel's blocks.
    next_block : int
        The block after the instruction's.

    Attributes
    ----------
    sends : bool
        Set by a definition whose step sends the lanes on itself.
    gate : callable or None
        Set by a definition whose instruction may have to wait before it begins.
    waits_for : callable or None
        Set by a definition that can say what lanes wait for that its gate holds back.
    """

    def __init__(self, instruction: Instruction, binder: Binder, flow: Flow, next_block: int) -> None:
        self.instruction = instruction
        self.binder = binder
        self.flow = flow
        self.next_block = next_block
        self.operands = instruction.operands
        self.sends = False
        self.gate: Gate | None = None
        self.waits_for: WaitText | None = None
        self.reads: set[Register] = set()
        self.writes: set[Register] = set()
        self.read_slots: list[int] = []
        self.write_slots: list[int] = []
        self._left = list(instruction.modifiers)

    def error(self, rule: str) -> PtxError:
        """Return the error that refuses this instruction."""
        return PtxError(self.instruction.line, self.instruction.text, rule)

    def take(self, *choices: str, default: str | None = None) -> str:
        """Return which of the modifiers `choices` the instruction has, and remove it."""
        for modifier in self._left:
            if modifier in choices:
                self._left.remove(modifier)
                return modifier
        if default is None:
            raise self.error(f"one of .{', .'.join(choices)} is expected")
        return default

    def flag(self, name: str) -> bool:
        """Say whether the instruction has the modifier `name`, and remove it."""
        return self.take(name, default="") == name

    def type(self, *allowed: str) -> str:
        """Return the next type among the modifiers."""
        for modifier in self._left:
            if modifier in TYPE_BYTES:
                if modifier not in NUMPY:
                    raise self.error(f"values of type .{modifier} are not modelled by the virtual GPU")
                if allowed and modifier not in allowed:
                    break
                self._left.remove(modifier)
                return modifier
        raise self.error(f"a type is expected{', one of ' + ', '.join(allowed) if allowed else ''}")

    def done(self, *operand_counts: int) -> None:
        """Refuse the instruction if a modifier is left over, or it has another number of operands."""
        if self._left:
            raise self.error(
                f"the virtual GPU does not model the modifier {', '.join('.' + x for x in self._left)} here"
            )
        if operand_counts and len(self.operands) not in operand_counts:
            raise self.error(f"{' or '.join(map(str, operand_counts))} operands are expected")

    def dest(self, operand: Operand, kind: str) -> int:
        """Return the slot of a destination that has exactly that type's width."""
        if isinstance(operand, Sink):
            operand = self.binder.scratch(kind)
        if not isinstance(operand, Register):
            raise self.error("the destination must be a register")
        if TYPE_BYTES[operand.type] != TYPE_BYTES[kind] or (operand.type == "pred") != (kind == "pred"):
            raise self.error(f"{operand} is a .{operand.type} register, the instruction writes .{kind}")
        self.writes.add(operand)
        slot = self.binder.register(operand, NUMPY[kind])
        self.write_slots.append(slot)
        return slot

    def wide_dest(self, operand: Operand, kind: str) -> int:
        """Return the slot of a destination that may be wider than the type: it is extended into it."""
        if isinstance(operand, Register) and TYPE_BYTES[operand.type] > TYPE_BYTES[kind]:
            wide = f"{'s' if kind.startswith('s') else 'u'}{8 * TYPE_BYTES[operand.type]}"
            return self.dest(operand, wide)
        return self.dest(operand, kind)

    def source(self, operand: Operand, kind: str) -> int:
        """Return the slot of a source of that type."""
        if isinstance(operand, Register):
            if TYPE_BYTES[operand.type] != TYPE_BYTES[kind] or (operand.type == "pred") != (kind == "pred"):
                raise self.error(f"{operand} is a .{operand.type} register, the instruction reads .{kind}")
            return self._read(operand, kind)
        if isinstance(operand, Immediate):
            return self.binder.constant(self.constant(operand, kind))
        if isinstance(operand, Special):
            if operand.name in CLOCKS:
                raise self.error(f"{operand.name} changes while the kernel runs; only mov reads it here")
            register = self.binder.special(operand.name)
            if TYPE_BYTES[register.type] != TYPE_BYTES[kind]:
                raise self.error(f"the special register {operand.name} cannot be read as .{kind} here")
            return self._read(register, kind)
        if isinstance(operand, Symbol):
            address = self.binder.address_of(operand)
            if address is None:
                raise self.error(f"{operand.name} is in the module's memory, which the virtual GPU does not model")
            return self.binder.constant(NUMPY[kind].type(address))
        raise self.error(f"an operand of type .{kind} is expected")

    def _read(self, register: Register, kind: str) -> int:
        self.reads.add(register)
        slot = self.binder.register(register, NUMPY[kind])
        self.read_slots.append(slot)
        return slot

    def wide_source(self, operand: Operand, kind: str) -> int:
        """Return the slot of a source whose register may be wider than the type: its low bits count."""
        if isinstance(operand, Register) and TYPE_BYTES[operand.type] > TYPE_BYTES[kind]:
            return self.source(operand, f"{'s' if kind.startswith('s') else 'u'}{8 * TYPE_BYTES[operand.type]}")
        return self.source(operand, kind)

    def predicate(self, operand: Operand) -> tuple[int, bool]:
        """Return the slot of a predicate, and whether it is negated."""
        if isinstance(operand, Negated):
            return self.source(operand.register, "pred"), True
        return self.source(operand, "pred"), False

    def items(self, operand: Operand, *counts: int) -> tuple[Operand, ...]:
        """Return the items of a vector operand; a single operand is a vector of one."""
        items = operand.items if isinstance(operand, Vector) else (operand,)
        if counts and len(items) not in counts:
            raise self.error(f"a vector of {' or '.join(map(str, counts))} is expected, not of {len(items)}")
        return items

    def integer(self, operand: Operand) -> int:
        """Return the value of a constant operand."""
        if not isinstance(operand, Immediate) or operand.float_bits:
            raise self.error("an integer constant is expected")
        return operand.value

    def constant(self, operand: Immediate, kind: str) -> Any:
        """Return a constant as a NumPy scalar of that type."""
        dtype = NUMPY[kind]
        if kind == "pred":
            return np.bool_(operand.value != 0)
        if operand.float_bits and dtype.kind == "f" and operand.float_bits != 8 * dtype.itemsize:
            wide = (
                np.uint64(operand.value).view(np.float64)
                if operand.float_bits == 64
                else (np.uint32(operand.value).view(np.float32))
            )
            return dtype.type(wide)
        if operand.float_bits and operand.float_bits != 8 * dtype.itemsize:
            raise self.error(f"a float constant of {operand.float_bits} bits is no .{kind}")
        if not operand.float_bits and kind in ("f32", "f64"):
            raise self.error("a float constant is expected")
        bits = operand.value % (1 << (8 * dtype.itemsize))
        return np.array(bits, f"u{dtype.itemsize}").view(dtype)[()]


#: Called with the sources and then the destination, as NumPy's ufuncs are.
Function = Callable[..., Any]


def elementwise(build: Build, function: Function, kind: str, *sources: str) -> Step:
    """Return the step that calls `function` with the sources, of those types, and the destination of type `kind`."""
    build.done(len(sources) + 1)
    slots = [build.source(operand, source) for operand, source in zip(build.operands[1:], sources, strict=True)]
    target = build.dest(build.operands[0], kind)
    return call(function, slots, target)


def call(function: Function, slots: list[int], target: int) -> Step:
    """Return a step that calls `function` with those slots."""
    if len(slots) == 1:
        (a,) = slots

        def step(frame: Frame) -> None:
            function(frame[a], frame[target])
    elif len(slots) == 2:
        a, b = slots

        def step(frame: Frame) -> None:
            function(frame[a], frame[b], frame[target])
    elif len(slots) == 3:
        a, b, c = slots

        def step(frame: Frame) -> None:
            function(frame[a], frame[b], frame[c], frame[target])
    else:

        def step(frame: Frame) -> None:
            function(*(frame[slot] for slot in slots), frame[target])

    return step
