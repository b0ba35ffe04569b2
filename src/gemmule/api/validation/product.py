"""A product whose arguments have passed validation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import Precision
from gemmule.core.errors import ArgumentError, DTypeError, OverlapError, ShapeError
from gemmule.runtime.arrays import ArrayView, check_output, overlaps

from ..epilogues.ending import Ending
from .operands import Operands
from .rules import (
    ProductShape,
    check_addend,
    default_beta,
    flag,
    is_complex,
    is_integer,
    product_shape,
    result_dtype,
    scalar,
    sum_type,
    with_axis,
)

#: Role of the array for the absolute maximum.
ABSMAX = "absmax"


@dataclasses.dataclass(slots=True)
class ProductArguments:
    """The arguments of `matmul` or `gemm` as the caller gives them; `beta` is None where `gemm` is given none."""

    operation: str
    a: Any
    b: Any
    c: Any = None
    alpha: Any = 1
    beta: Any = None
    out: Any = None
    out_dtype: Any = None
    precision: Any = None
    stream: Any = None
    executor: Any = None
    bias: Any = None
    epilogue: Any = None
    epilogue_args: Any = None
    gated: Any = None
    absmax: Any = None
    conj_a: bool = False
    conj_b: bool = False

    @property
    def conj(self) -> tuple[str, ...]:
        """Operands to be conjugated; an ArgumentError where a flag is neither True nor False."""
        if self.conj_a is self.conj_b is False:
            return ()
        given = {"a": self.conj_a, "b": self.conj_b}
        return tuple(role for role, wanted in given.items() if flag(f"conj_{role}", wanted))

    @property
    def plain(self) -> bool:
        """Whether nothing is done to the product before it is rounded."""
        return self.bias is self.epilogue is self.epilogue_args is self.gated is self.absmax is None


@dataclass(frozen=True)
class Product:
    """A product as the caller wants it, checked."""

    operation: str  #: ``matmul`` or ``gemm``.
    operands: Operands  #: The arrays; in the views, 1-D operands have got their second dimension.
    shape: ProductShape  #: Shapes.
    out_dtype: str  #: Element type of the result.
    #: alpha, beta: Number. Scalars.
    alpha: Any
    beta: Any
    precision: Precision  #: Type that float32 operands may be rounded to.
    out: Any  #: Array or None. The caller's output.
    ending: Ending | None = None  #: Epilogue of the product before it is rounded.

    def view(self, role: str) -> ArrayView:
        """Return the memory of an operand."""
        return self.operands.views[role]

    def host(self, role: str) -> np.ndarray[Any, np.dtype[Any]]:
        """Return an operand that is in host memory."""
        return host_array(self.view(role))

    def new_output(self, stream: int | None = None) -> tuple[ArrayView, Callable[[], Any]]:
        """Return the output's memory as a batch of matrices, and what gives the caller's array."""
        if self.out is not None:
            return self.view("out"), lambda: self.out
        operands = self.operands
        new = operands.new(self.shape.result, self.out_dtype, stream, streamable=True)
        return self.as_matrices(new.view), new.finish

    def as_matrices(self, view: ArrayView) -> ArrayView:
        """Return a result's memory with the dimensions that 1-D operands leave out."""
        if self.shape.drop_row:
            view = with_axis(view, len(self.shape.batch))
        return with_axis(view, -1) if self.shape.drop_col else view


def host_array(view: ArrayView) -> np.ndarray[Any, np.dtype[Any]]:
    """Return memory of the host as an array."""
    assert view.host is not None
    return view.host


def checked(call: ProductArguments, operands: Operands, ending: Ending | None = None) -> Product:
    """Hold the arguments of a product against each other.

    Raises
    ------
    ShapeError, DTypeError, OverlapError, ArgumentError
        If they do not fit.
    """
    views = dict(operands.views)
    a, b = views["a"], views["b"]
    shape = product_shape(a.shape, b.shape)
    inputs = (a.dtype_name, b.dtype_name)
    of_integers = call.operation == "gemm" and inputs == ("int8", "int8")
    dtype = result_dtype(inputs, views.get("out"), call.out_dtype, "int32" if of_integers else None)
    parsed = Precision.of_inputs(call.precision, inputs)
    kind = {"integer": is_integer(dtype), "complex_allowed": is_complex(dtype)}
    beta = default_beta(call.beta, unread="c" in views and (ending is None or not ending.expression.names_c))
    alpha, beta = scalar("alpha", call.alpha, **kind), scalar("beta", beta, **kind)
    if beta != 0 and "c" not in views:
        raise ArgumentError(f"beta={beta} needs a matrix c; pass c, or beta=0")
    reads_c = beta != 0
    if ending is not None:
        ending.check(views, shape.result, inputs, beta, dtype)
        reads_c = reads_c or ending.expression.names_c
        if ABSMAX in views:
            check_absmax(views, inputs)
    views["a"] = with_axis(a, 0) if shape.drop_row else a
    views["b"] = with_axis(b, -1) if shape.drop_col else b
    product = Product(call.operation, operands, shape, dtype, alpha, beta, parsed, call.out, ending)
    # Arrays that are one and the same show it as they were given.
    given = dict(views)
    for role in ("c", "out"):
        if role in views:
            if views[role].shape != shape.result:
                remedy = (
                    f": broadcast it, numpy.broadcast_to(c, {shape.result}), or give it as bias" if role == "c" else ""
                )
                raise ShapeError(
                    f"{role} has shape {views[role].shape}, the product has {shape.result}; they must be equal{remedy}"
                )
            views[role] = product.as_matrices(views[role])
    if "out" in views:
        aside = {"out", ABSMAX} if reads_c else {"out", ABSMAX, "c"}
        read = {role: view for role, view in given.items() if role not in aside}
        check_output(given["out"], read, may_be_same=("c", *(ending.roles if ending else ())))
    if not reads_c:
        views.pop("c", None)
    elif "c" in views:
        check_addend(views["c"].dtype_name, inputs, dtype)
    return dataclasses.replace(product, operands=dataclasses.replace(operands, views=views))


def check_absmax(views: Mapping[str, ArrayView], factors: tuple[str, str]) -> None:
    """Hold the array for the absolute maximum against the call.

    Parameters
    ----------
    views : mapping of str to ArrayView
        The call's arrays by role.
    factors : tuple of str
        Types of A and B.

    Raises
    ------
    DTypeError, ShapeError, ArgumentError, OverlapError
        If it is no float32, not one element, cannot be written, or shares memory with another array, or if the product
        is not computed in float32.
    """
    view = views[ABSMAX]
    if sum_type(factors) == "float64":
        raise DTypeError(
            f"absmax is of values in float32, but {' x '.join(factors)} is computed in float64; take the maximum of "
            "the result"
        )
    if view.dtype_name != "float32":
        raise DTypeError(f"absmax is {view.dtype_name}; it must be one float32")
    if math.prod(view.shape) != 1:
        raise ShapeError(f"absmax has shape {view.shape}; it must hold one element, as of shape () or (1,)")
    if view.readonly:
        raise ArgumentError("absmax is read-only; pass a writable array")
    for role, other in views.items():
        if role != ABSMAX and overlaps(view, other):
            raise OverlapError(f"absmax shares memory with {role}; pass an array of its own")
