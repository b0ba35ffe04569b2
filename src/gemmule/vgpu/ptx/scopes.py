"""Scopes: the register, label or variable that a name means at its place.

Inline assembly is in braces and declares the same names repeatedly: each pair of braces is a scope of its own.
"""

from __future__ import annotations

import re

from .errors import PtxError
from .module import TYPE_BYTES, Variable

_DECLARED = re.compile(r"([A-Za-z_$%][\w$]*)(?:<(\d+)>)?$")
_VARIABLE = re.compile(
    r"(?:\.(?P<linkage>extern|visible|weak|common)\s+)?\.(?P<space>shared|local|global|const|param)\s+"
    r"(?:\.attribute\s*\([^)]*\)\s*)?(?:\.align\s+(?P<align>\d+)\s+)?(?:\.ptr\s+)?"
    r"(?:\.v(?P<vector>[248])\s+)?\.(?P<type>\w+)\s+(?:\.ptr\b[^,]*?\s)?(?P<name>[A-Za-z_$%][\w$]*)"
    r"(?P<extents>(?:\s*\[\s*\d*\s*\])*)\s*(?:=\s*(?P<init>.*))?$",
    re.DOTALL,
)


class Scope:
    """The names of one pair of braces; an undeclared name is its parent's.

    Parameters
    ----------
    parent : Scope or None
        The scope around it.
    number : int
        Makes names unique.
    """

    def __init__(self, parent: Scope | None, number: int) -> None:
        self.parent = parent
        self.number = number
        self.names: dict[str, str] = {}
        self.families: dict[str, tuple[str, int]] = {}
        self.labels: dict[str, int] = {}
        self.variables: dict[str, Variable] = {}

    def label(self, name: str) -> int | None:
        """Return the number of the instruction after a label."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.labels:
                return scope.labels[name]
            scope = scope.parent
        return None

    def register_type(self, name: str) -> tuple[str, str] | None:
        """Return a register's unique name and its type."""
        scope: Scope | None = self
        while scope is not None:
            found = scope.names.get(name) or scope._of_family(name)
            if found is not None:
                return (f"{name}#{scope.number}" if scope.number else name), found
            scope = scope.parent
        return None

    def variable(self, name: str) -> Variable | None:
        """Return the variable of that name."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.variables:
                return scope.variables[name]
            scope = scope.parent
        return None

    def _of_family(self, name: str) -> str | None:
        """Return the type of a register that is declared as one of many, ``%r<235>``."""
        stem = name.rstrip("0123456789")
        family = self.families.get(stem)
        if family is None or stem == name or int(name[len(stem) :]) >= family[1]:
            return None
        return family[0]

    def declare_registers(self, text: str, line: int) -> None:
        """Declare the registers of a ``.reg`` directive."""
        words = text.split(None, 2)
        kind = words[1].removeprefix(".")
        if kind not in TYPE_BYTES or len(words) < 3:
            raise PtxError(line, text, "registers are declared as .reg .type name, name<count>, ...")
        for item in words[2].split(","):
            match = _DECLARED.match(item.strip())
            if match is None:
                raise PtxError(line, text, f"{item.strip()!r} is no name of a register")
            if match[2] is None:
                self.names[match[1]] = kind
            else:
                self.families[match[1]] = (kind, int(match[2]))

    def declare_variable(self, text: str, line: int) -> Variable:
        """Declare a variable or a parameter."""
        match = _VARIABLE.match(text)
        if match is None or match["type"] not in TYPE_BYTES:
            raise PtxError(line, text, "this declaration is not understood")
        item = TYPE_BYTES[match["type"]] * int(match["vector"] or 1)
        count = 1
        for extent in re.findall(r"\[\s*(\d*)\s*\]", match["extents"]):
            count *= int(extent or 0)
        data = b""
        if match["init"] is not None:
            data = _initial(match["init"], TYPE_BYTES[match["type"]], item * count, text, line)
        unique = f"{match['name']}#{self.number}" if self.number else match["name"]
        variable = Variable(unique, match["space"], item * count, int(match["align"] or item), data)
        self.variables[match["name"]] = variable
        return variable


def _initial(text: str, item: int, size: int, statement: str, line: int) -> bytes:
    """Return the bytes of an initialiser made of numbers."""
    data = bytearray()
    for word in re.findall(r"[^\s,{}]+", text):
        try:
            value = int("0x" + word[2:] if word[:2].lower() in ("0f", "0d") else word.rstrip("U"), 0)
        except ValueError:
            raise PtxError(line, statement, f"the initial value {word!r} is not a number") from None
        data += (value % (1 << (8 * item))).to_bytes(item, "little")
    return bytes(data.ljust(size, b"\0"))
