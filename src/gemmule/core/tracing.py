"""Tracing of epilogues: a function is called once with symbolic values, which record its operations."""

from __future__ import annotations

import hashlib
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from .epilogue import ACC, ARITY, COMMUTATIVE, CONDITIONS, MATRIX, NUMBER, UP, C, Expression
from .errors import ArgumentError

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}
_UFUNCS = {"add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div",
           "less": "lt", "less_equal": "le", "equal": "eq", "not_equal": "ne"}  # fmt: skip
_DEPTH, _MOST_STEPS, _MOST_POWER = 4, 512, 64
#: Cache of canonical forms by structure, and its capacity.
_MOST_CACHED = 512
_cache: dict[tuple[Any, ...], tuple[Expression, tuple[str, ...], tuple[str, ...]]] = {}


def _binary(op: str, *, reflected: bool = False) -> Callable[[Any, Any], Any]:
    """Return the operator method of an operation; `reflected` exchanges its operands."""

    def method(self: Traced, other: Any) -> Any:
        return operation(op, other, self) if reflected else operation(op, self, other)

    return method


class Traced:
    """A symbolic value of an epilogue: one element of the product, of a bias, of any other input.

    Arithmetic and comparisons with traced values and numbers give traced values; so do functions such as
    `gemmule.epilogue.relu`. `gemmule.gemm` passes them to the function given as `epilogue`.
    """

    __slots__ = ("args", "name", "op", "order")

    def __init__(self, op: str, args: tuple[Traced, ...] = (), name: str = "", order: tuple[int, int] = (0, 0)) -> None:
        self.op, self.args, self.name, self.order = op, args, name, order

    __add__, __radd__ = _binary("add"), _binary("add", reflected=True)
    __sub__, __rsub__ = _binary("sub"), _binary("sub", reflected=True)
    __mul__, __rmul__ = _binary("mul"), _binary("mul", reflected=True)
    __truediv__, __rtruediv__ = _binary("div"), _binary("div", reflected=True)
    __lt__, __gt__ = _binary("lt"), _binary("lt", reflected=True)
    __le__, __ge__ = _binary("le"), _binary("le", reflected=True)
    __eq__, __ne__ = _binary("eq"), _binary("ne")
    __hash__ = object.__hash__

    def __neg__(self) -> Traced:
        return operation("neg", self)

    def __pos__(self) -> Traced:
        return self

    def __abs__(self) -> Traced:
        return operation("abs", self)

    def __pow__(self, power: Any) -> Traced:
        times = int(power) if isinstance(power, numbers.Integral) else 0
        if not 1 <= times <= _MOST_POWER:
            raise ArgumentError(
                f"{self!r} ** {power!r} cannot be traced: powers are whole numbers from 1 to {_MOST_POWER}; use "
                "exp, log and sqrt of gemmule.epilogue for others"
            )
        if times == 1:
            return self
        half = self ** (times // 2)
        even = operation("mul", half, half)
        return operation("mul", even, self) if times % 2 else even

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        name = ufunc.__name__
        if method == "__call__" and name in _UFUNCS and not options:
            return operation(_UFUNCS[name], *inputs)
        return self._refuse(
            f"numpy.{name}", "use the functions of gemmule.epilogue: relu, exp, tanh, maximum, where, ..."
        )

    def __array__(self, *args: Any, **options: Any) -> NoReturn:
        self._refuse("turning it into an array", "name arrays as inputs: epilogue_args={'name': array}")

    def __bool__(self) -> NoReturn:  # noqa: PLE0304
        self._refuse("a branch on it (if, and, or, min, max)", "use where, maximum or minimum of gemmule.epilogue")

    def __float__(self) -> NoReturn:
        self._refuse("a function of Python's math on it, or float()", "use exp, tanh, erf ... of gemmule.epilogue")

    __int__ = __index__ = __complex__ = __float__

    def __iter__(self) -> NoReturn:
        self._refuse("iterating over it", "it stands for one element; sums over elements are no epilogue")

    def __getitem__(self, index: Any) -> NoReturn:
        self._refuse("an index", "it stands for one element")

    def _refuse(self, what: str, remedy: str) -> NoReturn:
        raise ArgumentError(f"the epilogue cannot be traced: {what}, where its value is {self!r}; {remedy}")

    def __repr__(self) -> str:
        return _shown(self, _DEPTH)


def _shown(node: Traced, depth: int) -> str:
    if not node.args:
        return node.name
    if not depth:
        return "(...)"
    args = [_shown(arg, depth - 1) for arg in node.args]
    return f"({args[0]} {_SIGNS[node.op]} {args[1]})" if node.op in _SIGNS else f"{node.op}({', '.join(args)})"


def operation(op: str, *args: Any) -> Traced:
    """Return the step that applies `op` to values or numbers.

    Raises
    ------
    ArgumentError
        If an operand is neither, or a condition stands where a value must.
    """
    values = tuple(_value(op, arg) for arg in args)
    for place, value in enumerate(values):
        condition = value.op in CONDITIONS
        if condition != (op == "where" and place == 0):
            wanted = (
                "a comparison, such as acc > 0"
                if not condition
                else "a value; comparisons go into gemmule.epilogue.where"
            )
            raise ArgumentError(f"the epilogue cannot be traced: {op} takes {wanted}, not {value!r}")
    if op == "sub" and values[1].op == "=":
        # x - 2 and x + -2 are the same.
        return Traced("add", (values[0], _constant(-float(values[1].name))))
    if op == "neg" and values[0].op == "=":
        return _constant(-float(values[0].name))
    return Traced(op, values)


def _constant(value: float) -> Traced:
    return Traced("=", name=repr(value))


def _value(op: str, value: Any) -> Traced:
    if isinstance(value, Traced):
        return value
    if isinstance(value, numbers.Real):
        return _constant(real(value, "the epilogue cannot be traced: a constant"))
    kind = type(value).__name__
    if hasattr(value, "shape"):
        raise ArgumentError(
            f"the epilogue cannot be traced: {op} with an array ({kind} of shape {tuple(value.shape)}); name it as a "
            "parameter of the function and pass it in epilogue_args={'name': array}"
        )
    raise ArgumentError(f"the epilogue cannot be traced: {op} with a {kind}; use numbers and the function's parameters")


def real(value: numbers.Real, what: str) -> float:
    """Return a number as a float; `what` is what the error calls it.

    Raises
    ------
    ArgumentError
        If it is larger than every float.
    """
    try:
        return float(value)
    except OverflowError:
        raise ArgumentError(f"{what} is larger than a float holds; give a number up to 1.8e308") from None


def accumulated() -> Traced:
    """Return the symbolic value of the product."""
    return Traced(ACC, name=ACC)


def accumulated_second() -> Traced:
    """Return the symbolic value of the product with the second B of a gated epilogue."""
    return Traced(UP, name=UP, order=(0, 2))


def matrix_c() -> Traced:
    """Return the symbolic value of C."""
    return Traced(C, name=C, order=(0, 1))


def matrix_input(name: str, place: int) -> Traced:
    """Return the symbolic value of a matrix or a vector, the `place`-th of the inputs."""
    return Traced(MATRIX, name=name, order=(1, place))


def number_input(name: str, place: int) -> Traced:
    """Return the symbolic value of a number, a parameter of each launch."""
    return Traced(NUMBER, name=name, order=(2, place))


def lowered(result: Any, what: str) -> tuple[Expression, tuple[str, ...], tuple[str, ...]]:
    """Return the canonical expression of a traced result.

    Parameters
    ----------
    result : Traced
        Return value of the traced function.
    what : str
        Name of the function in messages.

    Returns
    -------
    expression : Expression
        Its canonical form.
    matrices, numbers : tuple of str
        Names of its inputs, in the order of ``e0``, ``e1`` ... and ``s0``, ``s1`` ...

    Raises
    ------
    ArgumentError
        If the result is no traced value, or its expression is too long.
    """
    if not isinstance(result, Traced):
        raise ArgumentError(
            f"{what} returned {'None' if result is None else 'a ' + type(result).__name__}; it must return a value "
            "computed from its parameters"
        )
    if result.op in CONDITIONS:
        raise ArgumentError(
            f"{what} returned the comparison {result!r}; choose values by it: gemmule.epilogue.where({result!r}, 1, 0)"
        )
    structure = _structure(result)
    found = _cache.get(structure)
    if found is None:
        found = _canonical(result, what)
        if len(_cache) >= _MOST_CACHED:
            _cache.clear()
        _cache[structure] = found
    return found


def _postorder(result: Traced, ranks: Mapping[int, tuple[Any, ...]] | None = None) -> Iterator[Traced]:
    """Yield each node once, after its operands; commutative operands by rank where ranks are given.

    Without recursion, which long expressions would exceed.
    """
    done: set[int] = set()
    stack = [result]
    while stack:
        node = stack[-1]
        if waiting := [arg for arg in _ordered(node, ranks) if id(arg) not in done]:
            stack.append(waiting[0])
            continue
        stack.pop()
        done.add(id(node))
        yield node


def _ordered(node: Traced, ranks: Mapping[int, tuple[Any, ...]] | None) -> Sequence[Traced]:
    if ranks is None or node.op not in COMMUTATIVE:
        return node.args
    return sorted(node.args, key=lambda arg: ranks[id(arg)])


def _structure(result: Traced) -> tuple[Any, ...]:
    """Return the graph as it was traced, which is cheaper than its canonical form."""
    places: dict[int, int] = {}
    steps: list[Any] = []
    for node in _postorder(result):
        places[id(node)] = len(steps)
        steps.append((node.op, node.name, node.order, *[places[id(arg)] for arg in node.args]))
    return tuple(steps)


def _canonical(result: Traced, what: str) -> tuple[Expression, tuple[str, ...], tuple[str, ...]]:
    steps: dict[str, int] = {}
    numbers_of: dict[int, int] = {}
    names: dict[str, list[str]] = {MATRIX: [], NUMBER: []}

    def leaf(node: Traced) -> str:
        if node.op not in names:
            return f"={node.name}" if node.op == "=" else node.op
        inputs = names[node.op]
        if node.name not in inputs:
            inputs.append(node.name)
        return f"{node.op}{inputs.index(node.name)}"

    ranks = _ranks(result)
    for node in _postorder(result, ranks):
        args = [str(numbers_of[id(arg)]) for arg in _ordered(node, ranks)]
        step = " ".join((node.op, *args)) if args else leaf(node)
        numbers_of[id(node)] = steps.setdefault(step, len(steps))
        if len(steps) > _MOST_STEPS:
            raise ArgumentError(f"{what} has more than {_MOST_STEPS} operations; split it into several calls")
    assert all(step.split()[0] in ARITY or len(step.split()) == 1 for step in steps)
    return Expression(tuple(steps)), tuple(names[MATRIX]), tuple(names[NUMBER])


def _ranks(result: Traced) -> dict[int, tuple[int, tuple[int, int], str]]:
    """Return the sort keys of nodes, which do not depend on names: leaves first, by kind and place."""
    ranks: dict[int, tuple[int, tuple[int, int], str]] = {}
    for node in _postorder(result):
        own = [str(ranks[id(arg)]) for arg in node.args]
        parts = sorted(own) if node.op in COMMUTATIVE else own
        digest = hashlib.sha256(repr((node.op, node.name if node.op == "=" else "", parts)).encode()).hexdigest()
        kind = 0 if node.op in (ACC, UP, C) else 1 if not node.args and node.op != "=" else 3 if node.op == "=" else 2
        ranks[id(node)] = (kind, node.order, digest)
    return ranks
