"""Operands: registers, constants, addresses, vectors, labels."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from .errors import PtxError
from .module import Address, Immediate, Negated, Operand, Pair, Register, Sink, Special, Symbol, Target, Vector
from .scopes import Scope

_NAME = re.compile(r"[A-Za-z_$%][\w$]*(?:\.[xyzw])?$")
_INTEGER = re.compile(r"([-+~]?)\s*(0[xX][0-9a-fA-F]+|0[bB][01]+|0[0-7]*|[1-9][0-9]*)U?$")
_FLOAT_BITS = re.compile(r"0([fFdD])([0-9a-fA-F]+)$")
_DECIMAL = re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+)([eE][-+]?\d+)?$")
#: Special registers that the engine provides; others are refused when the text is read.
SPECIALS = frozenset(
    {f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"}
    | {f"%cluster_{name}.{axis}" for name in ("ctaid", "nctaid") for axis in "xyz"}
    | {f"%{name}.{axis}" for name in ("clusterid", "nclusterid") for axis in "xyz"}
    | {"%cluster_ctarank", "%cluster_nctarank", "%is_explicit_cluster"}
    | {"%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%gridid"}
    | {"%lanemask_eq", "%lanemask_le", "%lanemask_lt", "%lanemask_ge", "%lanemask_gt"}
    | {"%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"}
    | {"%dynamic_smem_size", "%total_smem_size", "WARP_SZ"}
)


def split(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    parts.append(text[start:].strip())
    return parts if parts != [""] else []


class OperandReader:
    """Reads the operands of one statement.

    Parameters
    ----------
    scope : Scope
        Scope of the statement.
    register : callable
        Gives the register of a unique name and type.
    line : int
        Line of the statement, for messages.
    text : str
        The statement.
    """

    def __init__(self, scope: Scope, register: Callable[[str, str], Register], line: int, text: str) -> None:
        self._scope = scope
        self._register = register
        self._line = line
        self._text = text

    def _error(self, rule: str) -> PtxError:
        return PtxError(self._line, self._text, rule)

    def read(self, text: str) -> Operand:
        """Return the operand that `text` is."""
        if text == "_":
            return Sink()
        if text.startswith("{") and text.endswith("}"):
            return Vector(tuple(map(self.read, split(text[1:-1]))))
        if text.startswith("[") and text.endswith("]"):
            return self._address(text[1:-1].strip())
        if text.startswith("!"):
            return Negated(self.register(text[1:].strip()))
        if "|" in text:
            first, second = (self.read(part.strip()) for part in text.split("|", 1))
            return Pair(first, second)
        number = self._number(text)
        if number is not None:
            return number
        if _NAME.match(text):
            return self._named(text)
        plus = re.match(r"([A-Za-z_$%][\w$]*)\s*([+-])\s*(\d+)$", text)
        if plus is not None and self._scope.variable(plus[1]) is not None:
            return self._symbol(plus[1], int(plus[2] + plus[3]))
        raise self._error(f"operand {text!r} is not understood")

    def register(self, text: str) -> Register:
        """Return the register called `text`."""
        found = self._scope.register_type(text)
        if found is None:
            raise self._error(f"{text!r} is no register that is declared here")
        return self._register(*found)

    def _named(self, text: str) -> Operand:
        found = self._scope.register_type(text)
        if found is not None:
            return self._register(*found)
        if text in SPECIALS:
            return Special(text)
        if self._scope.variable(text) is not None:
            return self._symbol(text, 0)
        index = self._scope.label(text)
        if index is not None:
            return Target(text, index)
        raise self._error(f"{text!r} is no register, variable, label or known special register")

    def _symbol(self, name: str, offset: int) -> Symbol:
        variable = self._scope.variable(name)
        assert variable is not None
        return Symbol(variable.name, offset)

    @staticmethod
    def _number(text: str) -> Immediate | None:
        bits = _FLOAT_BITS.match(text)
        if bits is not None:
            width = 32 if bits[1] in "fF" else 64
            return Immediate(int(bits[2], 16), width)
        integer = _INTEGER.match(text)
        if integer is not None:
            digits = integer[2]
            base = {"0x": 16, "0b": 2}.get(digits[:2].lower(), 8 if digits.startswith("0") and len(digits) > 1 else 10)
            value = int(digits, base)
            return Immediate(-value if integer[1] == "-" else ~value if integer[1] == "~" else value)
        if _DECIMAL.match(text):
            return Immediate(int.from_bytes(struct.pack("<d", float(text)), "little"), 64)
        return None

    def _address(self, text: str) -> Address:
        first, *rest = split(text)
        extra = tuple(map(self.read, rest))
        offset = 0
        match = re.match(r"(.*?[\w$])\s*([+-])\s*([+-]?\s*\w+)$", first)
        if match is not None and not _INTEGER.match(first):
            value = self._number(match[3].replace(" ", ""))
            if value is None or value.float_bits:
                raise self._error(f"the offset {match[3]!r} is not an integer")
            offset = -value.value if match[2] == "-" else value.value
            first = match[1].strip()
        base = self.read(first)
        if isinstance(base, Immediate) and base.float_bits == 0:
            return Address(base, offset, extra)
        if isinstance(base, Symbol):
            return Address(Symbol(base.name, base.offset + offset), 0, extra)
        if isinstance(base, Register):
            return Address(base, offset, extra)
        raise self._error(f"[{text}] is not an address")
