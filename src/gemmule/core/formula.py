"""Epilogue expressions as Python source."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from .activations import gelu_tanh
from .epilogue import ACC, ARITY, COMMUTATIVE, Expression
from .tracing import accumulated, lowered

#: Longest source in characters; beyond, the list of steps is shorter.
_LONG = 240
_SIGNS = {"lt": ("<", 0), "le": ("<=", 0), "eq": ("==", 0), "ne": ("!=", 0), "add": ("+", 1), "sub": ("-", 1),
          "mul": ("*", 2), "div": ("/", 2)}  # fmt: skip
_UNARY, _WHOLE = 3, 4

#: Source and its operator precedence.
_Text = tuple[str, int]


def formula(expression: Expression, names: Mapping[str, str]) -> str:
    """Return an expression in one line of Python, or its steps where the line would be too long.

    Parameters
    ----------
    names : mapping of str to str
        Names of its leaves ``acc``, ``c``, ``e0``, ``s0`` ...; by default these.
    """
    texts: list[_Text] = []
    for number, step in enumerate(expression.steps):
        name, *args = step.split()
        if name.startswith("="):
            texts.append(_constant(float(name[1:])))
        elif name in ARITY:
            texts.append(_applied(expression.steps, number, [texts[int(arg)] for arg in args]))
        else:
            texts.append((names.get(name, name), _WHOLE))
        if len(texts[-1][0]) > _LONG:
            return expression.text
    return texts[-1][0]


def _constant(value: float) -> _Text:
    text = str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    return text, _WHOLE if value >= 0 else _UNARY


def _applied(steps: tuple[str, ...], number: int, args: list[_Text]) -> _Text:
    """Return the source of an operation."""
    name, *places = steps[number].split()
    if name == "neg":
        return f"-{_held(args[0], _UNARY)}", _UNARY
    if name == "add" and args[1][0].startswith("-") and args[1][1] == _UNARY:
        return f"{_held(args[0], 1)} - {args[1][0][1:]}", 1
    if name in _SIGNS:
        sign, level = _SIGNS[name]
        # The right operand has brackets at equal precedence: the order of additions counts.
        return f"{_held(args[0], level)} {sign} {_held(args[1], level + 1)}", level
    if name == "maximum" and "0" in (args[0][0], args[1][0]):
        return f"relu({args[args[0][0] == '0'][0]})", _WHOLE
    if name == "gate":
        if places[0] == places[1]:
            return f"silu({args[0][0]})", _WHOLE
        if _same(steps, int(places[1]), _gelu_tanh(), _gelu_tanh_factor(), int(places[0])):
            return f"gelu_tanh({args[0][0]})", _WHOLE
        return f"{_held(args[0], 2)} * sigmoid({args[1][0]})", 2
    return f"{name}({', '.join(text for text, _ in args)})", _WHOLE


def _held(text: _Text, level: int) -> str:
    """Return the source, in brackets if its precedence is below `level`."""
    return text[0] if text[1] >= level else f"({text[0]})"


@functools.cache
def _gelu_tanh() -> tuple[str, ...]:
    return lowered(gelu_tanh(accumulated()), "gelu_tanh")[0].steps


def _gelu_tanh_factor() -> int:
    """Return the step that is the sigmoid's argument."""
    return int(_gelu_tanh()[-1].split()[2])


def _same(steps: tuple[str, ...], number: int, pattern: tuple[str, ...], place: int, x: int) -> bool:
    """Whether a step matches a pattern's step, with the step `x` for ``acc``."""
    if pattern[place] == ACC:
        return number == x
    (name, *args), (wanted, *others) = steps[number].split(), pattern[place].split()
    if name != wanted or len(args) != len(others):
        return False
    orders = [others, others[::-1]] if name in COMMUTATIVE else [others]
    return any(
        all(_same(steps, int(arg), pattern, int(other), x) for arg, other in zip(args, order, strict=True))
        for order in orders
    )
