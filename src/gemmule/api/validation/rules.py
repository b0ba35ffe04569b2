"""Element types, scalars and shapes of a product, by the rules of the array API standard's matmul and of BLAS."""

from __future__ import annotations

import contextlib
import dataclasses
import numbers
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import EXTENSION_FLOATS, accumulator, dtype_named, numpy_dtype
from gemmule.core.errors import ArgumentError, DTypeError, GemmuleError, ShapeError, shown
from gemmule.core.layout import broadcast_shape
from gemmule.core.name_suggestions import did_you_mean, similar_names
from gemmule.runtime.arrays import ArrayView, library_of


def dtype_name(dtype: Any, argument: str) -> str:
    """Return the name of a dtype given as a string or as a dtype of an array library; `argument` is for messages.

    Raises
    ------
    DTypeError
        If it is none of these.
    """
    found = _dtype(dtype, argument)
    if found.kind not in _KINDS and found.name not in EXTENSION_FLOATS:
        raise DTypeError(
            f"{argument}={shown(dtype)} is none that gemmule multiplies; name one such as float32, bfloat16, "
            "float8_e4m3fn or int8"
        )
    return found.name


def _dtype(dtype: Any, argument: str) -> np.dtype[Any]:
    text = str(dtype)
    if isinstance(dtype, str) or text.startswith("torch."):
        try:
            return numpy_dtype(text.removeprefix("torch."))
        except DTypeError as error:
            raise DTypeError(f"{argument}: {error}") from None
    try:
        found: np.dtype[Any] = np.dtype(dtype)
        return found
    except (TypeError, ValueError):
        # The last part of other libraries' representations is the standard's name.
        library, _, name = text.rpartition(".")
        if library and name.isidentifier():
            with contextlib.suppress(DTypeError):
                return numpy_dtype(name)
        raise DTypeError(
            f"{argument}={shown(dtype)} is not a dtype; pass a name such as 'float32', or a dtype"
        ) from None


def promoted(a: str, b: str) -> str:
    """Return the type that NumPy promotes `a` and `b` to; of float16 and bfloat16 float32, as JAX and PyTorch do.

    Raises
    ------
    DTypeError
        If they have no common type.
    """
    if a == b:
        return a
    if {a, b} == {"float16", "bfloat16"}:
        return "float32"
    try:
        return str(np.promote_types(numpy_dtype(a), numpy_dtype(b)).name)
    except TypeError:
        raise DTypeError(f"{a} and {b} have no common type; pass out_dtype, or convert one of them") from None


def is_integer(name: str) -> bool:
    """Return whether a type is an integer or boolean."""
    return _kind(name) in "iub"


def is_complex(name: str) -> bool:
    """Return whether a type is complex."""
    return _kind(name) == "c"


def itemsize_of(name: str) -> int:
    """Return the bytes of an element of a type; ml_dtypes is not imported for it, which takes milliseconds."""
    return (dtype_named(name) if name in EXTENSION_FLOATS else numpy_dtype(name)).itemsize


def check_output_kind(inputs: tuple[str, ...], output: str) -> None:
    """Refuse an output type of a lesser kind than what the inputs give: complex, floating point, integer.

    Raises
    ------
    DTypeError
        If, say, a floating-point product is to be written as integers, or a type is none of these.
    """
    kinds = {name: _KINDS.get(_kind(name), -1) for name in (*inputs, output)}
    if other := [name for name, kind in kinds.items() if kind < 0]:
        raise DTypeError(f"{other[0]} is not multiplied; convert it with astype to a float or integer type")
    greatest = max(inputs, key=lambda name: kinds[name])
    if kinds[greatest] > kinds[output]:
        raise DTypeError(
            f"a product of {' and '.join(inputs)} cannot be written as {output}; choose an out_dtype of the kind of "
            f"{greatest}, or convert the inputs"
        )


_KINDS = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}


def _kind(name: str) -> str:
    # Some floats of ml_dtypes have NumPy's kind of raw bytes.
    return "f" if name in EXTENSION_FLOATS else numpy_dtype(name).kind


def result_dtype(inputs: tuple[str, str], out: ArrayView | None, out_dtype: Any, default: str | None = None) -> str:
    """Return the element type of a product's result: that of `out`, the given one, the default or the promoted one.

    Raises
    ------
    DTypeError
        If the first two differ, or it is of a lesser kind than the inputs.
    """
    wanted = None if out_dtype is None else dtype_name(out_dtype, "out_dtype")
    if out is not None:
        if wanted is not None and wanted != out.dtype_name:
            raise DTypeError(f"out_dtype={wanted} differs from the dtype of out, {out.dtype_name}; pass one of the two")
        wanted = out.dtype_name
    wanted = wanted or default or promoted(*inputs)
    check_output_kind(inputs, wanted)
    return wanted


def check_addend(c: str, inputs: tuple[str, str], output: str) -> None:
    """Refuse a matrix c that the product would round: of a type that neither the output nor the sums hold.

    Raises
    ------
    DTypeError
        If, say, c is float64 and the product one of float32.
    """
    sums = sum_type(inputs)
    # Integers that become floats are scaled in float32.
    scaled = "float32" if is_integer(sums) and not (is_integer(output) or is_complex(output)) else sums
    if c not in (output, sums) and not any(_holds(wide, c) for wide in (output, sums, scaled)):
        held = sums if sums == output else f"{sums} or {output}"
        remedy = "pass c.real, or make a or b complex" if c.startswith("complex") else f"convert c to {sums}"
        raise DTypeError(
            f"c is {c}, but is added to a product of {' and '.join(inputs)} in {sums}; c must be of a type that {held} "
            f"holds: {remedy}"
        )


def sum_type(inputs: tuple[str, str]) -> str:
    """Return the type in which a product of such inputs is summed; of types without kernels, their common type."""
    try:
        return accumulator(*(dtype_named(name) for name in inputs)).name
    except DTypeError:
        return promoted(*inputs)


def _holds(wide: str, name: str) -> bool:
    """Return whether a type has every value of another one."""
    try:
        return bool(np.promote_types(numpy_dtype(wide), numpy_dtype(name)) == numpy_dtype(wide))
    except TypeError:
        return False


def default_beta(beta: Any, *, unread: bool) -> Any:
    """Return beta, by default 0.

    Parameters
    ----------
    beta : number or None
        Argument of the caller, or None.
    unread : bool
        Whether there is a matrix c that nothing else reads.

    Raises
    ------
    ArgumentError
        If c would be ignored although beta was omitted.
    """
    if beta is None and unread:
        raise ArgumentError("c is given, but beta defaults to 0, so that c would not be read; give beta=1, or omit c")
    return 0.0 if beta is None else beta


def flag(name: str, given: Any) -> bool:
    """Return a switch.

    Raises
    ------
    ArgumentError
        If it is neither True nor False: a text such as ``'no'`` would count as True.
    """
    if isinstance(given, (bool, np.bool_)):
        return bool(given)
    raise ArgumentError(f"{name}={shown(given)} is neither True nor False; give one of the two")


def number_in(name: str, value: Any) -> Any:
    """Return the number in an array without dimensions; what is none is returned as it is.

    Raises
    ------
    ArgumentError
        If the array is on a GPU, which would have to be waited for, or cannot be read now: it is traced, or requires
        grad.
    """
    if isinstance(value, numbers.Number) or getattr(value, "shape", None) != ():
        return value
    try:
        library = library_of(value, name)
        device = library.device_of(value, name)
        if device is None:
            host = library.view(value, None, name).host
            assert host is not None
            return host.item()
    except GemmuleError as error:
        raise ArgumentError(f"{name} cannot be read as a number ({error}); scale an operand by it instead") from None
    raise ArgumentError(f"{name} is on GPU {device}, and reading it would wait for the GPU; pass {name}.item()")


def scalar(name: str, value: Any, *, integer: bool, complex_allowed: bool) -> Any:
    """Return alpha or beta as a Python number.

    Parameters
    ----------
    name : str
        Name for messages.
    value : number
        Argument of the caller.
    integer : bool
        Whether the result is one of integers: then the scalar must be an integer too.
    complex_allowed : bool
        Whether the product is complex.

    Raises
    ------
    ArgumentError
        If the value is not a number of that kind.
    """
    value = number_in(name, value)
    if isinstance(value, numbers.Integral) and integer:
        return int(value)
    if isinstance(value, numbers.Real):
        try:
            number = float(value)
        except OverflowError:
            raise ArgumentError(f"{name} does not fit into a float64; scale the operands instead") from None
        if not integer:
            return number
        if number.is_integer():
            return int(number)
        raise ArgumentError(
            f"{name}={value} must be an integer, since the result is one of integers; choose another out_dtype"
        )
    if isinstance(value, numbers.Complex):
        if complex_allowed:
            return complex(value)
        raise ArgumentError(
            f"{name}={value} is complex; gm.gemm takes that with a complex operand only: convert or scale an operand"
        )
    raise ArgumentError(
        f"{name} is of type {type(value).__name__}, not a number; pass a number, or an array without dimensions"
    )


@dataclass(frozen=True)
class ProductShape:
    """Shapes of ``a @ b``."""

    #: m, n, k: Each matrix of A is (m, k), of B (k, n), of the result (m, n).
    m: int
    n: int
    k: int
    batch: tuple[int, ...]  #: Broadcast batch dimensions.
    result: tuple[int, ...]  #: Shape that the caller gets: a 1-D operand's dimension is left out.
    #: drop_row, drop_col: Whether the result's row, or column, dimension is left out.
    drop_row: bool
    drop_col: bool


def product_shape(a: tuple[int, ...], b: tuple[int, ...]) -> ProductShape:
    """Return the shapes of a product of arrays of those shapes.

    Raises
    ------
    ShapeError
        If an operand has no dimension, the inner dimensions differ, or the batches do not broadcast.
    """
    for name, shape in (("a", a), ("b", b)):
        if not shape:
            raise ShapeError(f"{name} has shape () but must have at least one dimension; use * to scale by a number")
    m, k = (1, a[0]) if len(a) == 1 else a[-2:]
    inner, n = (b[0], 1) if len(b) == 1 else b[-2:]
    if k != inner:
        raise ShapeError(f"a of shape {a} has {k} columns, b of shape {b} has {inner} rows; they must be equal")
    try:
        batch = a[:-2] if a[:-2] == b[:-2] else broadcast_shape(a[:-2], b[:-2])
    except ValueError:
        raise ShapeError(
            f"batch dimensions {a[:-2]} of a and {b[:-2]} of b do not broadcast to one shape; make them equal, or 1 in "
            "one of the two"
        ) from None
    drop_row, drop_col = len(a) == 1, len(b) == 1
    result = (*batch, *(() if drop_row else (m,)), *(() if drop_col else (n,)))
    return ProductShape(m, n, k, batch, result, drop_row, drop_col)


def with_axis(view: ArrayView, axis: int) -> ArrayView:
    """Return the view with an axis of extent 1 inserted before position `axis` (negative from the end, -1 appends)."""
    position = axis if axis >= 0 else len(view.shape) + 1 + axis
    shape = (*view.shape[:position], 1, *view.shape[position:])
    if view.host is not None:
        return dataclasses.replace(view, shape=shape, host=np.expand_dims(view.host, position))
    strides = (*view.strides[:position], 0, *view.strides[position:])
    return dataclasses.replace(view, shape=shape, strides=strides)


def batch_strides(view: ArrayView, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Return a device view's strides over the broadcast batch: 0 where it is repeated."""
    own = view.shape[:-2]
    missing = len(batch) - len(own)
    strides = zip(own, view.strides[:-2], strict=True)
    return (0,) * missing + tuple(0 if extent == 1 else stride for extent, stride in strides)


def unknown_argument(
    function: Callable[..., Any], names: Iterable[str], more_general: Callable[..., Any] | None = None
) -> TypeError:
    """Return the error for keyword arguments that a function does not have, with the call that has them.

    Parameters
    ----------
    function : callable
        The function, or its `plan`.
    names : iterable of str
        The arguments.
    more_general : callable, optional
        A function that takes more.
    """
    # Imported for an error message only.
    import inspect

    def keywords(of: Callable[..., Any]) -> list[str]:
        parameters = inspect.signature(of).parameters.values()
        return [one.name for one in parameters if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)]

    name = next(iter(names))
    near = similar_names(name, keywords(function))
    if name.startswith("trans"):
        remedy = "transposes are read from strides: pass a.T or b.T, without a copy"
    elif (plan := vars(function).get("plan")) is not None and name in keywords(plan):
        where = "" if name == "chip" else ", with executor='vgpu' or chip='h100'"
        remedy = f"gemmule.{plan.__qualname__} takes it{where}"
    elif more_general is not None and name in keywords(more_general):
        remedy = f"gemmule.{more_general.__name__} takes it"
    else:
        remedy = did_you_mean(near) if near else f"help(gemmule.{function.__qualname__}) lists all"
    return TypeError(f"{function.__qualname__}() got an unexpected keyword argument {name!r}; {remedy}")
