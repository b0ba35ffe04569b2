"""The epilogue of a call: what the caller gives, traced, checked and added to the product's operands."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import numbers
import re
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gemmule.core.activations import NAMED, erf, exp, log, sigmoid, sqrt, tanh
from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import dtype_named, numpy_dtype
from gemmule.core.epilogue import ACC, MATRIX, NUMBER, Epilogue, Expression
from gemmule.core.epilogue import SECOND as OPERAND
from gemmule.core.errors import ArgumentError, DTypeError, ShapeError, shown
from gemmule.core.formula import formula
from gemmule.core.layout import StridedMatrix
from gemmule.core.name_suggestions import remedy_for
from gemmule.core.problem import GemmProblem
from gemmule.core.row_major import is_vectorised
from gemmule.core.tracing import accumulated, accumulated_second, lowered, matrix_c, matrix_input, number_input, real
from gemmule.runtime.arrays import ArrayView

from ..validation.rules import ProductShape, batch_strides
from .gated import GATE_BIAS, NAMED_GATED, SECOND, UP_BIAS
from .scaling import Scaling, block_scales

_BIAS, _C = "bias", "c"
_GIVEN = re.compile(r"epilogue_args\['(?P<name>.*)'\]")
#: Parameters of traced functions, and the limit of cached ones.
_parameters_known: dict[tuple[types.CodeType, int], dict[str, Any]] = {}
_MOST_KNOWN = 512
_MOST_SINGLE = float(np.finfo(np.float32).max)
#: Other libraries' names of epilogues that have one, and functions that are no epilogues by name.
_SYNONYMS = {"swish": "silu"} | dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu_tanh")
_FUNCTIONS = {one.__name__ for one in (erf, exp, log, sigmoid, sqrt, tanh)}
_DEQUANTISED = ("int8", "int8")  #: Their product may have an epilogue where its result is a float.
_FLOATS = "fV"  # NumPy's kinds of its own floats and of those of ml_dtypes.


@dataclass(frozen=True)
class Ending:
    """An epilogue as the caller wants it."""

    expression: Expression  #: The formula.
    roles: tuple[str, ...]  #: Roles, among the call's arrays, of its matrices ``e0``, ``e1`` ...
    numbers: tuple[float, ...]  #: Its numbers ``s0``, ``s1`` ...
    absmax: bool = False  #: Whether the absolute maximum is wanted.
    gated: bool = False  #: Whether it takes two products, even if it uses only one of them.
    blocks: tuple[int, int] | None = None  #: Rows of A and columns of B in a block of scales.

    @property
    def text(self) -> str:
        """The formula, by the names of the call's arguments; numbers are given as such."""
        names = {f"{MATRIX}{place}": _name_of(role) for place, role in enumerate(self.roles)}
        names |= {f"{NUMBER}{place}": f"{number:g}" for place, number in enumerate(self.numbers)}
        if self.gated:
            names[ACC] = "gate"
        scales = (
            "" if self.blocks is None else f"; scales by blocks of {self.blocks[0]} x 128 and 128 x {self.blocks[1]}"
        )
        return formula(self.expression, names) + scales + ("; absmax" if self.absmax else "")

    @property
    def _given(self) -> str:
        """The call's arguments that ask for it."""
        has_function = self.expression not in (Expression((ACC,)), _bias_alone().expression)
        given = {_BIAS: _BIAS in self.roles, "epilogue": has_function, "absmax": self.absmax}
        return ", ".join(name for name, is_given in given.items() if is_given)

    def check(
        self,
        views: Mapping[str, ArrayView],
        result: tuple[int, ...],
        factors: tuple[str, str],
        beta: Any,
        out_dtype: str | None = None,
    ) -> None:
        """Hold the arrays against the product.

        Parameters
        ----------
        views : mapping of str to ArrayView
            The call's arrays by role, as they were given.
        result : tuple of int
            Shape of the result.
        factors : tuple of str
            Types of A and B.
        beta : number
            The factor of C.
        out_dtype : str, optional
            Type of the result, where integers may become floats.

        Raises
        ------
        DTypeError
            If the result is none of real floats, or an input has a type that it cannot be computed with.
        ShapeError
            If an input does not broadcast to the result.
        ArgumentError
            If C is given twice, or is missing, or a number is larger than the type that is computed in holds.
        """
        if self.gated and factors == _DEQUANTISED:
            raise DTypeError("a gated activation of int8 x int8 needs real floats; convert a and b to float16")
        kinds = {numpy_dtype(name).kind for name in factors}
        if factors == _DEQUANTISED and out_dtype is not None:
            if numpy_dtype(out_dtype).kind not in _FLOATS:
                raise DTypeError(
                    f"{self._given}: integer results take no bias, epilogue or absmax; give out_dtype='float32', "
                    "'float16' or 'bfloat16'"
                )
        elif "c" in kinds or kinds.isdisjoint(_FLOATS):
            raise DTypeError(
                f"a bias or an epilogue needs a product of real floats, not of {' x '.join(factors)}; convert the "
                "operands, or compute it of the result afterwards"
            )
        if "float64" not in factors:
            for number in (*self.numbers, *self.expression.constants):
                if _MOST_SINGLE < abs(number) < np.inf:
                    raise ArgumentError(
                        f"the number {number:g} of the epilogue is larger than float32 holds, in which it is computed; "
                        f"give one up to {_MOST_SINGLE:.3g}, or infinity"
                    )
        if self.expression.names_c and _C not in views:
            raise ArgumentError("the epilogue has a parameter c, but no c was given; pass a matrix c")
        if self.gated and beta != 0:
            raise ArgumentError(
                f"beta={beta} adds c to the product, of which a gated activation has two; omit beta, and name c in the "
                "function: lambda gate, up, c: gemmule.epilogue.silu(gate) * up + c"
            )
        if self.expression.names_c and beta != 0:
            raise ArgumentError(
                f"beta={beta} adds c before the epilogue, which names c itself; omit beta, or remove the parameter c"
            )
        for role in self.roles:
            shape, kind = views[role].shape, numpy_dtype(views[role].dtype_name)
            if kind.kind not in _FLOATS or (kind == np.float64 and "float64" not in factors):
                computed = "float64" if "float64" in factors else "float32"
                raise DTypeError(
                    f"{role} is {kind}, but the epilogue of {' x '.join(factors)} is computed in {computed}; "
                    f"convert it to {computed} or a shorter float"
                )
            if not _broadcasts(shape, result):
                raise ShapeError(
                    f"{role} has shape {shape}, which does not broadcast to the result's {result}: (N,) or (1, N) is a "
                    "value for each column, (M, 1) one for each row; reshape it"
                )


def _name_of(role: str) -> str:
    """Return the name of the function's parameter whose values come from the array of that role."""
    given = _GIVEN.fullmatch(role)
    if given is not None:
        return given["name"]
    return {GATE_BIAS: "gate_bias", UP_BIAS: "up_bias"}.get(role, role)


def _broadcasts(shape: tuple[int, ...], result: tuple[int, ...]) -> bool:
    own = zip(reversed(shape), reversed(result), strict=False)
    return len(shape) <= len(result) and all(extent in (1, whole) for extent, whole in own)


def ending_of(
    epilogue: Any, bias: Any, c: Any, given: Any, *, gated: bool = False, absmax: bool = False
) -> tuple[Ending | None, dict[str, Any]]:
    """Trace what the caller gives; return it with its arrays by role, or None where there is nothing.

    Of a gated activation the bias has the role that it was given in, and those of its halves are among the epilogue's.

    Raises
    ------
    ArgumentError
        If the function cannot be traced, or its parameters and the inputs do not match.
    """
    if given is not None and not (isinstance(given, Mapping) and all(isinstance(name, str) for name in given)):
        raise ArgumentError(
            f"epilogue_args={shown(given)} is not a mapping of names to values; give the function's further inputs by "
            "the names of its parameters, as {'scale': 2.0}"
        )
    if epilogue is None:
        if given:
            raise ArgumentError(f"epilogue_args names {', '.join(given)}, but there is no epilogue; pass a function")
        if bias is not None:
            return _keeping(_bias_alone(), absmax), {_BIAS: bias}
        return (Ending(Expression((ACC,)), (), (), absmax) if absmax else None), {}
    if isinstance(epilogue, Scaling):
        expression, roles = epilogue.traced
        arrays = dict(given or {}) | ({} if bias is None else {_BIAS: bias})
        return Ending(expression, roles, (), absmax, blocks=epilogue.blocks), arrays
    if isinstance(epilogue, str):
        if given:
            raise ArgumentError(
                f"epilogue={epilogue!r} has no parameter {', '.join(given)}; epilogue_args belong to a function"
            )
        ending = _named(epilogue, bias is not None)
        return _keeping(ending, absmax), ({} if bias is None else {_BIAS: bias})
    if not callable(epilogue):
        raise ArgumentError(
            f"epilogue is of type {type(epilogue).__name__}; pass a function such as lambda acc: "
            f"gemmule.epilogue.relu(acc), or one of {', '.join(map(repr, (*NAMED, *NAMED_GATED)))}"
        )
    ending, arrays = _traced(epilogue, bias, c, dict(given or {}), gated)
    return _keeping(ending, absmax), arrays


def _keeping(ending: Ending, absmax: bool) -> Ending:
    return dataclasses.replace(ending, absmax=True) if absmax else ending


@functools.cache
def _bias_alone() -> Ending:
    expression, _, _ = lowered(accumulated() + matrix_input(_BIAS, 0), "bias")
    return Ending(expression, (_BIAS,), ())


@functools.cache
def _named(name: str, biased: bool) -> Ending:
    if name in NAMED_GATED:
        gate, up = _two_products(biased)
        expression, roles, _ = lowered(NAMED_GATED[name](gate) * up, f"epilogue={name!r}")
        return Ending(expression, roles, (), gated=True)
    if name not in NAMED:
        if name in _SYNONYMS:
            remedy = f"did you mean {_SYNONYMS[name]!r}?"
        elif name in _FUNCTIONS:
            remedy = f"pass the function gemmule.epilogue.{name}, or one of your own"
        else:
            remedy = remedy_for(name, (*NAMED, *NAMED_GATED), ", or pass a function")
        raise ArgumentError(f"epilogue={name!r} is not known; {remedy}")
    acc = accumulated() + matrix_input(_BIAS, 0) if biased else accumulated()
    expression, _, _ = lowered(NAMED[name](acc), f"epilogue={name!r}")
    return Ending(expression, (_BIAS,) if biased else (), ())


def _two_products(biased: bool) -> tuple[Any, Any]:
    """Return symbols for the two products of a gated activation, their bias added."""
    gate, up = accumulated(), accumulated_second()
    return (gate + matrix_input(GATE_BIAS, -2), up + matrix_input(UP_BIAS, -1)) if biased else (gate, up)


def _traced(
    function: Callable[..., Any], bias: Any, c: Any, given: dict[str, Any], gated: bool
) -> tuple[Ending, dict[str, Any]]:
    what = f"the epilogue {getattr(function, '__name__', type(function).__name__)!r}"
    parameters = _parameters(function, what, 2 if gated else 1)
    if gated and _BIAS in parameters:
        raise ArgumentError(f"{what} names bias, which is added to both products before; leave the parameter away")
    for name in (_BIAS, _C, "acc"):
        if name in given:
            raise ArgumentError(f"epilogue_args has an entry {name!r}; pass it as the argument {name} of gemm")
    if unknown := [name for name in given if name not in parameters]:
        raise ArgumentError(f"epilogue_args names {', '.join(unknown)}, of which {what} has no parameter; leave it out")
    roles = {name: f"epilogue_args[{name!r}]" for name in given} | {_BIAS: _BIAS}
    arrays, scalars, arguments = {}, {}, {}
    for place, (name, default) in enumerate(parameters.items()):
        value = bias if name == _BIAS else given.get(name)
        if name == _C and c is not None:
            arguments[name] = matrix_c()
        elif value is None and default is inspect.Parameter.empty:
            remedy = f"pass {name} to gemm" if name in (_BIAS, _C) else f"pass it in epilogue_args={{{name!r}: ...}}"
            if place == 0 and not gated:
                remedy += "; a function of two products needs gated='halves' or gated='pairs'"
            raise ArgumentError(f"{what} has a parameter {name} for which there is no value; {remedy}")
        elif isinstance(value, numbers.Real):
            scalars[name] = real(value, f"epilogue_args[{name!r}]")
            arguments[name] = number_input(name, place)
        elif isinstance(value, numbers.Number | str | bytes):
            raise ArgumentError(f"{roles[name]}={shown(value)} is not a real number; pass one, or an array")
        elif value is not None:
            arrays[roles[name]] = value
            arguments[name] = matrix_input(roles[name], place)
    products: tuple[Any, ...] = _two_products(bias is not None) if gated else (accumulated(),)
    if bias is not None and _BIAS not in parameters and not gated:
        arrays[_BIAS] = bias
        products = (products[0] + matrix_input(_BIAS, -1),)
    try:
        result = function(*products, **arguments)
    except (TypeError, AttributeError) as error:
        # Errors of other libraries for a value of unknown type.
        raise ArgumentError(
            f"{what} cannot be traced: {error}; use +, -, *, /, comparisons, numbers and functions of gemmule.epilogue "
            "such as relu, exp, tanh, maximum and where"
        ) from error
    expression, matrices, names = lowered(result, what)
    used = {role: array for role, array in arrays.items() if role in matrices}
    if gated and bias is not None:
        used[_BIAS] = bias
    return Ending(expression, matrices, tuple(scalars[name] for name in names), gated=gated), used


def _parameters(function: Callable[..., Any], what: str, products: int) -> dict[str, Any]:
    """Return the parameters behind those of the products, with their defaults."""
    # Read from the code object: reading a signature takes about as long as all else.
    plain = isinstance(function, types.FunctionType) and not (
        function.__defaults__ or function.__kwdefaults__ or function.__dict__
    )
    if not plain:
        return _parameters_read(function, what, products)
    key = (function.__code__, products)
    found = _parameters_known.get(key)
    if found is None:
        found = _parameters_read(function, what, products)
        if len(_parameters_known) >= _MOST_KNOWN:
            _parameters_known.clear()
        _parameters_known[key] = found
    return found


def _parameters_read(function: Callable[..., Any], what: str, products: int) -> dict[str, Any]:
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"{what} has no parameters that can be read, of which the first is the product: {error}; write it as "
            "lambda acc: ..."
        ) from error
    if not parameters:
        raise ArgumentError(f"{what} has no parameters, of which the first is the product; write it as lambda acc: ...")
    kinds = inspect.Parameter
    first, *others = parameters
    if first.kind not in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD):
        raise ArgumentError(f"{what} takes no parameter by position; its first is the product: lambda acc: ...")
    if products > 1:
        if not others or others[0].kind not in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD):
            raise ArgumentError(f"{what} takes one product, but a gated activation has two: lambda gate, up: ...")
        others = others[1:]
    for parameter in others:
        if parameter.kind not in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY):
            raise ArgumentError(f"{what} has the parameter {parameter}; give each of its inputs a name")
    return {parameter.name: parameter.default for parameter in others}


def with_ending(
    problem: GemmProblem, ending: Ending, views: Mapping[str, ArrayView], shape: ProductShape
) -> tuple[GemmProblem, dict[str, str]]:
    """Return the problem with an epilogue, and for each of its further operands the role of the array.

    The first matrix with the result's layout takes the place of C, if there is no C: kernels read that with wide loads.
    """
    expression, roles = ending.expression, list(ending.roles)
    matrices = [_matrix(views[role], shape) for role in roles]
    operands: dict[str, str] = {}
    c = problem.c
    if c is None:
        place = next((i for i, matrix in enumerate(matrices) if _lies_as(matrix, problem.d)), None)
        if place is not None:
            expression, c = expression.with_c_for(place), matrices.pop(place)
            operands["c"] = roles.pop(place)
    operands |= {f"e{i}": role for i, role in enumerate(roles)}
    second = None
    if expression.gated:
        view, operands[OPERAND] = views[SECOND], SECOND
        second = dataclasses.replace(
            problem.b,
            row_stride=view.strides[-2],
            col_stride=view.strides[-1],
            alignment=view.alignment,
            batch_strides=batch_strides(view, shape.batch),
        )
    scales = None
    if ending.blocks is not None:
        scales = block_scales(ending.blocks, views)
        operands |= {name: name for name in scales.operands()}
    epilogue = Epilogue(expression, tuple(matrices), ending.numbers, second, ending.absmax, scales)
    return dataclasses.replace(problem, c=c, epilogue=epilogue), operands


def _matrix(view: ArrayView, shape: ProductShape) -> StridedMatrix:
    """Return an input broadcast to the result, as matrices."""
    missing = len(shape.result) - len(view.shape)
    own = [0 if extent == 1 else stride for extent, stride in zip(view.shape, view.strides, strict=True)]
    strides = [0] * missing + own
    if shape.drop_row:
        strides.insert(len(shape.batch), 0)
    if shape.drop_col:
        strides.append(0)
    return StridedMatrix(
        dtype_named(view.dtype_name),
        shape.m,
        shape.n,
        strides[-2],
        strides[-1],
        tuple(strides[:-2]),
        view.alignment,
    )


def _lies_as(matrix: StridedMatrix, d: StridedMatrix) -> bool:
    """Whether a matrix of the result's shape and type is row-major or column-major with it, for wide copies."""
    whole = 0 not in (matrix.row_stride, matrix.col_stride, *matrix.batch_strides)
    rows = d.is_row_major
    same = matrix.is_row_major if rows else matrix.is_col_major
    return whole and same and matrix.dtype == d.dtype and is_vectorised(matrix, row_major=rows)
