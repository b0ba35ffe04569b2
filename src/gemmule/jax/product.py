"""Products of JAX arrays, with the rules for their derivatives."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from gemmule.api.validation.rules import default_beta, product_shape, scalar
from gemmule.core.dtype import Precision
from gemmule.core.errors import ArgumentError, DTypeError, ShapeError
from gemmule.runtime.arrays.array_specs import is_spec
from gemmule.runtime.arrays.jax_arrays import is_key

from .array_types import as_type, bind, result_type, rows_merge
from .handlers import TARGET
from .options import Options
from .sharding import dimensions, sharded

#: Types that have a derivative, and a kernel.
REAL_DTYPES = ("float64", "float32", "float16", "bfloat16")
DTYPES = (*REAL_DTYPES, "complex64", "complex128")


def matmul(a: Any, b: Any, *, precision: str | None = None) -> Any:
    """Multiply two arrays, by the rules of `jax.numpy.matmul`, under JAX's transformations too.

    Parameters
    ----------
    a : array, shape (..., m, k) or (k,)
        First operand: float64, float32, float16, bfloat16, complex64 or complex128.
    b : array, shape (..., k, n) or (k,)
        Second operand, of the same type. Batch dimensions are broadcast.
    precision : {'ieee', 'tf32', 'bf16x6', 'ozaki', 'ozaki-14', 'ozaki-15', 'ozaki-16'}, optional
        For float32, float64 and complex types, as of `gemmule.matmul`.

    Returns
    -------
    array, shape (..., m, n)
        The product. A 1-D operand's dimension is left out.

    Raises
    ------
    ShapeError, DTypeError
        If shapes or types do not fit together.

    Examples
    --------
    >>> import jax, gemmule.jax
    >>> jax.jit(gemmule.jax.matmul)(jax.numpy.eye(2), jax.numpy.ones((2, 2))).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    return gemm(a, b, precision=precision)


def gemm(
    a: Any, b: Any, c: Any = None, *, alpha: float = 1.0, beta: float | None = None, precision: str | None = None
) -> Any:
    """Compute ``alpha * a @ b + beta * c``, under JAX's transformations too.

    Parameters
    ----------
    a, b : array
        Operands, as of `matmul`.
    c : array, broadcastable to the shape of the product, optional
        Matrix to add, of the operands' type; required if `beta` is not 0, not read if it is, and an error if `beta`
        is omitted: `alpha` is 1 and `beta` 0 by default.
    alpha, beta : number
        Scalars, not traced.
    precision : {'ieee', 'tf32', 'bf16x6', 'ozaki', 'ozaki-14', 'ozaki-15', 'ozaki-16'}, optional
        As of `matmul`.

    Returns
    -------
    array
        As of `matmul`, each element rounded once.

    Raises
    ------
    ShapeError, DTypeError, ArgumentError
        If shapes, types or scalars do not fit together.
    """
    given = (a, b) if c is None else (a, b, c)
    plain = type(alpha) in _NUMBERS and type(beta) in _NUMBERS_OR_NONE and type(precision) in _NAME_OR_NONE
    if plain and all(isinstance(x, jax.Array) for x in given):
        return _program(repr(alpha), repr(beta), precision)(*given)
    return _gemm(alpha, beta, precision, *given)


_NUMBERS = frozenset((int, float))
_NUMBERS_OR_NONE = _NUMBERS | {type(None)}
_NAME_OR_NONE = frozenset((str, type(None)))


@functools.lru_cache(maxsize=1024)
def _program(alpha: str, beta: str, precision: str | None) -> Any:
    """Return the function of products with these scalars, given as text, in which 0.0 is not -0.0.

    It is traced and compiled once for each shape and type, and written out within other programs.
    """
    return jax.jit(functools.partial(_gemm, _number(alpha), _number(beta), precision), inline=True)


def _number(text: str) -> float | int | None:
    if text == "None":
        return None
    return int(text) if text.lstrip("-").isdigit() else float(text)


def as_array(name: str, x: Any) -> jax.Array:
    """Return what `jax.numpy.asarray` makes of an argument.

    Raises
    ------
    ArgumentError
        If it makes no array of it.
    """
    if is_key(x):
        raise ArgumentError(f"{name} is an array of random keys, not of numbers; jax.random.key_data has theirs")
    if getattr(getattr(x, "dtype", None), "hasobject", False):
        raise ArgumentError(f"{name} is an array of objects, not of numbers; convert it, e.g. with x.astype('float32')")
    try:
        return jnp.asarray(x)
    except (RuntimeError, TypeError, ValueError) as error:
        # RuntimeError: PyTorch's, of tensors with a gradient. JAX's messages have several lines.
        remedy = "jax.eval_shape takes shapes alone" if is_spec(x) else "pass an array of floats"
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ArgumentError(f"{name} is of type {type(x).__name__}, not an array ({reason}); {remedy}") from error


def _gemm(alpha: Any, beta: Any, precision: Any, a: Any, b: Any, c: Any = None) -> Any:
    arrays = {"a": as_array("a", a), "b": as_array("b", b)} | ({} if c is None else {"c": as_array("c", c)})
    _check_dtypes(arrays)
    shape = product_shape(arrays["a"].shape, arrays["b"].shape)
    real = {"integer": False, "complex_allowed": False}
    beta = default_beta(beta, unread=c is not None)
    options = Options(scalar("alpha", alpha, **real), scalar("beta", beta, **real), precision=precision)
    Precision.of_inputs(precision, [arrays["a"].dtype.name])
    if options.beta != 0 and c is None:
        raise ShapeError(f"beta={beta} needs something to add; pass c, or beta=0")
    first = arrays["a"][None, :] if shape.drop_row else arrays["a"]
    second = arrays["b"][:, None] if shape.drop_col else arrays["b"]
    full = (*shape.batch, shape.m, shape.n)
    added = None
    if c is not None and options.beta != 0:
        added = _addend(arrays["c"], shape.result).reshape(full)
    return _compiled(options, first, second, added).reshape(shape.result)


def _addend(c: Any, shape: tuple[int, ...]) -> Any:
    try:
        return jnp.broadcast_to(c, shape)
    except ValueError:
        raise ShapeError(
            f"c has shape {c.shape}, which does not broadcast to {shape}, the shape of the product; each of its "
            "extents, counted from the last, must be 1 or the product's"
        ) from None


def _check_dtypes(arrays: dict[str, Any]) -> None:
    one = arrays["a"].dtype
    for name, x in arrays.items():
        if x.dtype.name not in DTYPES:
            raise DTypeError(
                f"{name} is {x.dtype.name}; gemmule.jax takes {', '.join(DTYPES)}. Convert it, or use gemmule.matmul, "
                "which takes more types outside of jit"
            )
        if x.dtype != one:
            raise DTypeError(
                f"a is {one.name} and {name} is {x.dtype.name}; convert one of them, or use gemmule.matmul, which "
                "multiplies different types outside of jit"
            )


#: The product of arrays of equal rank, the last two dimensions stored as the options say: its rules are below.
_gemm_p = Primitive("gemmule_gemm")


def _product(options: Options, a: Any, b: Any, c: Any) -> Any:
    """Multiply arrays of two or more dimensions, the last two stored as the options say."""
    given = (a, b) if c is None else (a, b, c)
    rank = max(x.ndim for x in given)
    # With equal ranks, a dimension that vmap prepends is the first batch dimension of each.
    return bind(_gemm_p, *(x.reshape((1,) * (rank - x.ndim) + x.shape) for x in given), options=options)


def _result_shape(options: Options, a: Any, b: Any, *c: Any) -> tuple[int, ...]:
    m = a.shape[-1] if options.transpose_a else a.shape[-2]
    n = b.shape[-2] if options.transpose_b else b.shape[-1]
    return (*jnp.broadcast_shapes(*(x.shape[:-2] for x in (a, b, *c))), m, n)


@_gemm_p.def_impl
def _call(*operands: Any, options: Options) -> Any:
    out = jax.ShapeDtypeStruct(_result_shape(options, *operands), operands[0].dtype)
    return jax.ffi.ffi_call(TARGET, out)(*operands, options=options.text())


@_gemm_p.def_abstract_eval
def _describe(*operands: Any, options: Options) -> Any:
    shape = _result_shape(options, *operands)
    return result_type(shape, operands, dimensions(options, [*(x.shape for x in operands), shape]))


mlir.register_lowering(_gemm_p, mlir.lower_fun(sharded(_call, _gemm_p), multiple_results=False))


def _over_a_batch(operands: Sequence[Any], dims: Sequence[Any], *, options: Options) -> tuple[Any, int]:
    in_front = [x[None] if dim is None else jnp.moveaxis(x, dim, 0) for x, dim in zip(operands, dims, strict=True)]
    return bind(_gemm_p, *in_front, options=options), 0


batching.primitive_batchers[_gemm_p] = _over_a_batch


@functools.partial(jax.jit, static_argnums=0, inline=True)
def _compiled(options: Options, a: Any, b: Any, c: Any) -> Any:
    """Be compiled once for calls outside of `jax.jit`, which would otherwise be traced and lowered one by one."""
    return _product(options, a, b, c)


def _forward_mode(primals: Sequence[Any], tangents: Sequence[Any], *, options: Options) -> tuple[Any, Any]:
    """Return the product, and ``alpha * (da @ b + a @ db) + beta * dc``: each product adds to the sum so far."""
    out = bind(_gemm_p, *primals, options=options)
    (a, b, *_), (da, db, *dc), of_out = primals, tangents, jax.typeof(out)
    total, beta = (dc[0] if dc and type(dc[0]) is not ad.Zero else None), options.beta
    only_addend = type(da) is type(db) is ad.Zero
    if only_addend:
        if total is None:
            return out, ad.Zero.from_primal_value(out)
        return out, as_type(jnp.broadcast_to(_scaled(total, beta), out.shape), of_out)
    for left, right in ((da, b), (a, db)):
        if ad.Zero not in (type(left), type(right)):
            added = dataclasses.replace(options, beta=0.0 if total is None else beta)
            total, beta = _product(added, left, right, total), 1.0
    return out, as_type(total, of_out)


def _transposed(grad: Any, *operands: Any, options: Options) -> list[Any]:
    """Return the gradients of what the product is linear in: of one operand, what is added, or both."""
    a, b, *c = operands
    wanted = [ad.is_undefined_primal(x) for x in operands]
    if type(grad) is ad.Zero:
        return [None] * len(operands)
    if wanted[0] and wanted[1]:
        raise ArgumentError("a product is not linear in both operands; transpose it in one of them")
    types = [x.aval if own else jax.typeof(x) for x, own in zip(operands, wanted, strict=True)]
    shapes = [x.shape for x in types]
    across, along = options.transpose_a, options.transpose_b

    def multiply(first: Any, second: Any, transpose_first: bool, transpose_second: bool) -> Any:
        plain = dataclasses.replace(options, beta=0.0, transpose_a=transpose_first, transpose_b=transpose_second)
        return _product(plain, first, second, None)

    grads: list[Any] = [None] * len(operands)
    if wanted[0]:
        grads[0] = multiply(b, grad, along, True) if across else multiply(grad, b, False, not along)
    together = all(map(rows_merge, (types[0], jax.typeof(grad))))
    if wanted[1] and math.prod(shapes[1][:-2]) == 1 and shapes[0][:-2] == grad.shape[:-2] and not across and together:
        # The gradient of a broadcast b is one sum over the whole batch.
        rows, over = (x.reshape(math.prod(x.shape[:-1]), x.shape[-1]) for x in (a, grad))
        long = multiply(over, rows, True, False) if along else multiply(rows, over, True, False)
        grads[1] = long.reshape(shapes[1])
    elif wanted[1]:
        grads[1] = multiply(grad, a, True, across) if along else multiply(a, grad, not across, False)
    if c and wanted[2]:
        grads[2] = _scaled(grad, options.beta)
    return [None if x is None else as_type(_summed(x, of.shape), of) for x, of in zip(grads, types, strict=True)]


def _scaled(x: Any, factor: float) -> Any:
    return x if factor == 1 else x * jnp.asarray(factor, x.dtype)


ad.primitive_jvps[_gemm_p] = _forward_mode
ad.primitive_transposes[_gemm_p] = _transposed


def _summed(grad: Any, shape: tuple[int, ...]) -> Any:
    """Sum over the dimensions of a batch in which an array was repeated."""
    axes = tuple(axis for axis, extent in enumerate(shape[:-2]) if extent == 1 and grad.shape[axis] != 1)
    return grad.sum(axes, keepdims=True) if axes else grad
