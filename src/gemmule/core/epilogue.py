"""Epilogues: what is done to each element of a product before it is rounded and written.

An expression is a list of steps in a canonical order, of which each uses earlier ones; the last is the result. Kernels
are specialised for its text, so that functions of one meaning share one compiled kernel.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from .errors import ArgumentError
from .layout import StridedMatrix

#: Operations by the number of their operands. `gelu` is x times the normal distribution's cumulative function; `gate`
#: is x times the sigmoid of y, where y is NaN only if x is, and below -60 if x is below -100.
ARITY = {
    **dict.fromkeys(("neg", "abs", "exp", "log", "sqrt", "tanh", "erf", "sigmoid", "gelu"), 1),
    **dict.fromkeys(("add", "sub", "mul", "div", "maximum", "minimum", "lt", "le", "eq", "ne", "gate"), 2),
    "where": 3,
}
#: `gate`, and `gelu` in float64, take x for at least this: the limit at minus infinity is 0, infinity times 0 is NaN.
FAR = -1e6
#: Those whose operands may change places: their order is canonical.
COMMUTATIVE = frozenset(("add", "mul", "maximum", "minimum", "eq", "ne"))
#: Those that give a condition, for `where`.
CONDITIONS = frozenset(("lt", "le", "eq", "ne"))
#: Leaves: the sum, that of the second factor, C, and numbered matrices and numbers.
ACC, UP, C, MATRIX, NUMBER = "acc", "up", "c", "e", "s"
#: The second factor's name in launch recipes, and that of the absolute maximum.
SECOND, ABSMAX = "u", "absmax"


@dataclasses.dataclass(frozen=True)
class Expression:
    """A function of the elements of a product.

    Attributes
    ----------
    steps : tuple of str
        ``acc`` (alpha times the product, beta * C added where the expression does not name C), ``up`` (alpha times the
        product with the second factor), ``c``, ``e0``, ``e1`` ... (matrices, by the problem's order), ``s0`` ...
        (numbers that a launch brings), ``=0.5`` (constants), or an operation and the numbers of earlier steps, such as
        ``add 0 1``.
    """

    steps: tuple[str, ...]

    @functools.cached_property
    def text(self) -> str:
        """The steps in one line: what a compiled kernel is known by."""
        return "; ".join(self.steps)

    @classmethod
    def parse(cls, text: str) -> Expression:
        """Return the expression of that text."""
        return cls(tuple(text.split("; ")))

    @property
    def names_c(self) -> bool:
        """Whether it uses C by itself; else ``acc`` has beta * C in it."""
        return C in self.steps

    @property
    def gated(self) -> bool:
        """Whether it uses the product with a second factor."""
        return UP in self.steps

    @property
    def numbers(self) -> int:
        """How many numbers a launch brings."""
        return sum(step[0] == NUMBER and step[1:].isdigit() for step in self.steps)

    @property
    def constants(self) -> tuple[float, ...]:
        """The constants among the steps."""
        return tuple(float(step[1:]) for step in self.steps if step[0] == "=")

    def evaluate(
        self,
        leaf: Callable[[str], Any],
        constant: Callable[[float], Any],
        operations: Mapping[str, Callable[..., Any]],
    ) -> Any:
        """Return the value of the last step.

        Parameters
        ----------
        leaf : callable
            Gives the value of ``acc``, ``up``, ``c``, ``e0``, ``s0`` ...
        constant : callable
            Gives a constant in the type that is computed in.
        operations : mapping of str to callable
            What the operations do.
        """
        values: list[Any] = []
        for step in self.steps:
            name, *args = step.split()
            if name.startswith("="):
                values.append(constant(float(name[1:])))
            elif name in ARITY:
                values.append(operations[name](*(values[int(arg)] for arg in args)))
            else:
                values.append(leaf(name))
        return values[-1]

    def with_c_for(self, number: int) -> Expression:
        """Return the expression with C in the place of matrix `number`; those behind it move up."""

        def renamed(step: str) -> str:
            if not (step[0] == MATRIX and step[1:].isdigit()):
                return step
            own = int(step[1:])
            return C if own == number else f"{MATRIX}{own - (own > number)}"

        return Expression(tuple(map(renamed, self.steps)))


@dataclasses.dataclass(frozen=True)
class Epilogue:
    """An expression with what goes into it.

    Attributes
    ----------
    expression : Expression
        What is computed, in the accumulator's type.
    matrices : tuple of StridedMatrix
        Its matrices ``e0``, ``e1`` ..., each of the result's shape; a stride of 0 repeats a row or
        a column.
    numbers : tuple of float
        Its numbers ``s0``, ``s1`` ...
    second : StridedMatrix or None
        Another B, of the type, shape and strides of the first, where the expression is gated.
    absmax : bool
        Whether the largest absolute value, before it is rounded, goes into a float32 that is at most that already.
    """

    expression: Expression
    matrices: tuple[StridedMatrix, ...] = ()
    numbers: tuple[float, ...] = ()
    second: StridedMatrix | None = None
    absmax: bool = False

    def __post_init__(self) -> None:
        if self.expression.gated != (self.second is not None):
            raise ArgumentError(f"a second factor belongs to an epilogue with {UP}, and only to that: {self.text}")
        if len(self.numbers) != self.expression.numbers:
            raise ArgumentError(
                f"{len(self.numbers)} numbers for an epilogue of {self.expression.numbers}: {self.expression.text}"
            )

    @property
    def text(self) -> str:
        """What is computed, in one line."""
        return self.expression.text + ("; absmax" if self.absmax else "")

    def inputs(self) -> dict[str, StridedMatrix]:
        """Return the matrices by the names that launch recipes use."""
        return {f"{MATRIX}{number}": matrix for number, matrix in enumerate(self.matrices)}

    def operands(self) -> dict[str, StridedMatrix]:
        """Return the matrices, and the second factor, by the names that launch recipes use."""
        return self.inputs() | ({SECOND: self.second} if self.second is not None else {})

    def with_operands(self, operands: Mapping[str, StridedMatrix]) -> Epilogue:
        """Return the same with its matrices described anew."""
        matrices = tuple(operands[name] for name in self.inputs())
        return dataclasses.replace(self, matrices=matrices, second=operands.get(SECOND))

    def transposed(self) -> Epilogue:
        """Return the epilogue of the transposed product, whose second factor stands beside its A."""
        second = None if self.second is None else self.second.transposed()
        return dataclasses.replace(self, matrices=tuple(x.transposed() for x in self.matrices), second=second)
