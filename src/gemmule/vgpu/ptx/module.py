"""A parsed PTX text: a kernel's instructions, registers, variables and source lines."""

from __future__ import annotations

import dataclasses

from gemmule.vgpu.source_text import shown_path

#: Bytes of a value of each type; predicates are one byte here.
TYPE_BYTES = {
    "pred": 1,
    **{f"{kind}{bits}": bits // 8 for kind in "bus" for bits in (8, 16, 32, 64)},
    "b128": 16,
    "f16": 2,
    "f32": 4,
    "f64": 8,
    "bf16": 2,
    "f16x2": 4,
    "bf16x2": 4,
    "f32x2": 8,
    "tf32": 4,
    "e4m3x2": 2,
    "e5m2x2": 2,
}


@dataclasses.dataclass(frozen=True)
class SourceLine:
    """A place in the kernel's own source, from ``.loc``."""

    file: str  #: Path as the compiler wrote it.
    #: line, column: Position; line 0 is code that belongs to no line.
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclasses.dataclass(frozen=True)
class Register:
    """A register: its name, unique within the kernel, its type and its number."""

    name: str
    type: str
    number: int

    def __str__(self) -> str:
        return self.name

    def __hash__(self) -> int:
        # Sets of a kernel's registers are most of what the analyses of its code do.
        return self.number


@dataclasses.dataclass(frozen=True)
class Special:
    """A special register such as ``%tid.x``."""

    name: str


@dataclasses.dataclass(frozen=True)
class Immediate:
    """A constant."""

    value: int  #: The integer, or the bits of the float.
    float_bits: int = 0  #: 0 for an integer; 32 or 64 for a float of that width.


@dataclasses.dataclass(frozen=True)
class Symbol:
    """The address of a variable or parameter, plus an offset."""

    name: str
    offset: int = 0


@dataclasses.dataclass(frozen=True)
class Address:
    """A memory operand ``[base + offset]``; `extra` holds what follows a comma, as in tensor coordinates."""

    base: Register | Symbol | Immediate
    offset: int = 0
    extra: tuple[Operand, ...] = ()


@dataclasses.dataclass(frozen=True)
class Vector:
    """``{a, b, ...}``."""

    items: tuple[Operand, ...]


@dataclasses.dataclass(frozen=True)
class Pair:
    """``a|b``: two destinations."""

    first: Operand
    second: Operand


@dataclasses.dataclass(frozen=True)
class Negated:
    """``!p``."""

    register: Register


@dataclasses.dataclass(frozen=True)
class Sink:
    """``_``: a discarded result."""


@dataclasses.dataclass(frozen=True)
class Target:
    """A label, as the number of the instruction after it."""

    name: str
    index: int


Operand = Register | Special | Immediate | Symbol | Address | Vector | Pair | Negated | Sink | Target


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction."""

    index: int  #: Its number in the kernel.
    name: str  #: First part of the opcode, e.g. ``ld``.
    modifiers: tuple[str, ...]  #: The other parts, in order, without dots: ``("shared", "v4", "b32")``.
    operands: tuple[Operand, ...]  #: Operands in order.
    guard: Register | Negated | None  #: The predicate before it.
    line: int  #: Line in the PTX text.
    text: str  #: The statement.
    source: SourceLine | None  #: Its line of the kernel's source.

    @property
    def opcode(self) -> str:
        """The whole opcode with its dots."""
        return ".".join((self.name, *self.modifiers))

    @property
    def place(self) -> str:
        """Its source line, as messages give it; else its line of PTX."""
        if self.source is None:
            return f"in PTX line {self.line}"
        return f"at {shown_path(self.source.file)}:{self.source.line}"

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


@dataclasses.dataclass(frozen=True)
class Variable:
    """A variable or parameter in memory."""

    name: str  #: Name, unique within the kernel.
    space: str  #: ``param``, ``shared``, ``local``, ``global`` or ``const``.
    size: int  #: Bytes; 0 for dynamic shared memory.
    alignment: int  #: Alignment in bytes.
    data: bytes = b""  #: Initial content, where there is one.


@dataclasses.dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel; kernels compare by identity, so that results of passes over one are cached by it."""

    name: str  #: Entry point.
    target: str  #: Architecture that the text is for.
    params: tuple[Variable, ...]  #: Parameters in order.
    variables: tuple[Variable, ...]  #: All other variables in memory.
    registers: tuple[Register, ...]  #: All registers that instructions name.
    instructions: tuple[Instruction, ...]  #: The code in order.
    directives: dict[str, str]  #: Performance directives such as ``reqntid``.
