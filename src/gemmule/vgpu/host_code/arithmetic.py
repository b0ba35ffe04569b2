"""Arithmetic and comparisons of the LLVM dialect, by the names of operations and the numbers of predicates."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable


def signed(value: int, bits: int) -> int:
    """Return the signed number whose two's complement has the bits of an unsigned one."""
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def _quotient(a: int, b: int) -> int:
    """Divide as C does, towards zero."""
    found = abs(a) // abs(b)
    return found if (a < 0) == (b < 0) else -found


UNSIGNED: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "udiv": operator.floordiv, "urem": operator.mod,
    "and": operator.and_, "or": operator.or_, "xor": operator.xor, "shl": operator.lshift, "lshr": operator.rshift,
    "intr.umax": max, "intr.umin": min,
}  # fmt: skip
SIGNED: dict[str, Callable[[int, int], int]] = {
    "sdiv": _quotient, "srem": lambda a, b: a - b * _quotient(a, b), "ashr": operator.rshift,
    "intr.smax": max, "intr.smin": min,
}  # fmt: skip
FLOAT: dict[str, Callable[[float, float], float]] = {
    "fadd": operator.add, "fsub": operator.sub, "fmul": operator.mul,
    "fdiv": lambda a, b: a / b if b else math.copysign(math.inf, a) * math.copysign(1.0, b) if a else math.nan,
    "intr.maxnum": max, "intr.minnum": min,
}  # fmt: skip
COMPARISONS = (
    operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge,
    operator.lt, operator.le, operator.gt, operator.ge,
)  # fmt: skip
#: Predicates of fcmp in the dialect's order; the first of each pair is ordered.
FLOAT_COMPARISONS: dict[int, Callable[[float, float], bool]] = {
    1: operator.eq, 2: operator.gt, 3: operator.ge, 4: operator.lt, 5: operator.le, 6: operator.ne,
    8: operator.eq, 9: operator.gt, 10: operator.ge, 11: operator.lt, 12: operator.le, 13: operator.ne,
}  # fmt: skip
