"""Fused epilogues: functions of each element of a product before it is rounded and written.

An expression is a list of steps in canonical order, each of which uses earlier ones; the last is the result. Kernels
are specialised for its text, so that equivalent functions share one compiled kernel.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from gemmule.core.dataclass import dataclass

from .block_scales import BlockScales
from .errors import ArgumentError
from .layout import StridedMatrix

#: Operations by the number of their operands. `gelu` is x times the normal distribution's cumulative function; `gate`
#: is x times the sigmoid of y, where y is NaN only if x is, and below -60 if x is below -100.
ARITY = {
    **dict.fromkeys(("neg", "abs", "exp", "log", "sqrt", "tanh", "erf", "sigmoid", "gelu"), 1),
    **dict.fromkeys(("add", "sub", "mul", "div", "maximum", "minimum", "lt", "le", "eq", "ne", "gate"), 2),
    "where": 3,
}
#: Lower bound of x in `gate`, and in `gelu` in float64: the limit at minus infinity is 0, but infinity times 0 is NaN.
FAR = -1e6
#: Commutative operations, whose operands have a canonical order.
COMMUTATIVE = frozenset(("add", "mul", "maximum", "minimum", "eq", "ne"))
#: Comparisons, the conditions of `where`.
CONDITIONS = frozenset(("lt", "le", "eq", "ne"))
#: Leaves: the accumulators of the first and the second product, C, and numbered matrices and numbers.
ACC, UP, C, MATRIX, NUMBER = "acc", "up", "c", "e", "s"
#: Names of the second B and of the absolute maximum in launch recipes.
SECOND, ABSMAX = "u", "absmax"


@dataclass(frozen=True)
class Expression:
    """A function of the elements of a product."""

    #: ``acc`` (alpha times the product, plus beta * C unless the expression names C), ``up`` (alpha times the product
    #: with the second B), ``c``, ``e0``, ``e1`` ... (matrices in the problem's order), ``s0`` ... (numbers, parameters
    #: of the launch), ``=0.5`` (constants), or an operation and the numbers of earlier steps, such as ``add 0 1``.
    steps: tuple[str, ...]

    @functools.cached_property
    def text(self) -> str:
        """The steps in one line, as in signatures."""
        return "; ".join(self.steps)

    @classmethod
    def parse(cls, text: str) -> Expression:
        """Return the expression of a text."""
        return cls(tuple(text.split("; ")))

    @property
    def names_c(self) -> bool:
        """Whether C is a leaf; else ``acc`` includes beta * C."""
        return C in self.steps

    @property
    def gated(self) -> bool:
        """Whether it uses the product with a second B."""
        return UP in self.steps

    @property
    def numbers(self) -> int:
        """Number of ``s0``, ``s1`` ..."""
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
            Returns the value of ``acc``, ``up``, ``c``, ``e0``, ``s0`` ...
        constant : callable
            Returns a constant in the type of the computation.
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
        """Return the expression with matrix `number` replaced by C, and later matrices renumbered."""

        def renamed(step: str) -> str:
            if not (step[0] == MATRIX and step[1:].isdigit()):
                return step
            own = int(step[1:])
            return C if own == number else f"{MATRIX}{own - (own > number)}"

        return Expression(tuple(map(renamed, self.steps)))


@dataclass(frozen=True)
class Epilogue:
    """An expression with its inputs."""

    expression: Expression  #: The function, computed in the accumulator's type.
    #: Its matrices ``e0``, ``e1`` ... in the result's shape; a stride of 0 broadcasts a row or a column.
    matrices: tuple[StridedMatrix, ...] = ()
    numbers: tuple[float, ...] = ()  #: Its numbers ``s0``, ``s1`` ...
    second: StridedMatrix | None = None  #: The second B of a gated expression, of the first's type, shape and strides.
    absmax: bool = False  #: Whether a float32 in memory is raised to the largest absolute value before rounding.
    #: Scales of A and B by blocks, with which ``acc`` is the product of the scaled operands.
    scales: BlockScales | None = None
    #: Whether the absolute maximum is of several launches, and cleared before the first.
    raises: bool = False

    def __post_init__(self) -> None:
        if self.expression.gated != (self.second is not None):
            raise ArgumentError(f"an epilogue with {UP} has a second B, others have none; got {self.text}")
        if len(self.numbers) != self.expression.numbers:
            raise ArgumentError(
                f"{len(self.numbers)} numbers for an epilogue of {self.expression.numbers}: {self.expression.text}"
            )

    @property
    def text(self) -> str:
        """The expression in one line, whether it has an absolute maximum, and the blocks of scales."""
        scales = "" if self.scales is None else f"; scales by {self.scales.lines_a} x {self.scales.lines_b}"
        return self.expression.text + ("; absmax" if self.absmax else "") + scales

    def inputs(self) -> dict[str, StridedMatrix]:
        """Return the matrices by their names in launch recipes."""
        return {f"{MATRIX}{number}": matrix for number, matrix in enumerate(self.matrices)}

    def operands(self) -> dict[str, StridedMatrix]:
        """Return the matrices, the second B and the scales by their names in launch recipes."""
        second = {SECOND: self.second} if self.second is not None else {}
        return self.inputs() | second | (self.scales.operands() if self.scales is not None else {})

    def with_operands(self, operands: Mapping[str, StridedMatrix]) -> Epilogue:
        """Return the epilogue with other matrices."""
        matrices = tuple(operands[name] for name in self.inputs())
        scales = None if self.scales is None else self.scales.with_operands(operands)
        return dataclasses.replace(self, matrices=matrices, second=operands.get(SECOND), scales=scales)

    def transposed(self) -> Epilogue:
        """Return the epilogue of the transposed product, which has a second A instead of a second B."""
        second = None if self.second is None else self.second.transposed()
        scales = None if self.scales is None else self.scales.transposed()
        matrices = tuple(x.transposed() for x in self.matrices)
        return dataclasses.replace(self, matrices=matrices, second=second, scales=scales)
