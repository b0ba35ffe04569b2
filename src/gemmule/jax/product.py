"""Products of JAX arrays, with the rules for their derivatives."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from gemmule.api.scalars import said_beta, scalar
from gemmule.api.shapes import product_shape
from gemmule.core.dtype import Precision
from gemmule.core.errors import DTypeError, ShapeError

from .handlers import TARGET
from .options import Options

#: Types that have a derivative, and a kernel.
DTYPES = ("float64", "float32", "float16", "bfloat16")


def matmul(a: Any, b: Any, *, precision: str | None = None) -> Any:
    """Multiply two arrays, by the rules of `jax.numpy.matmul`, under JAX's transformations too.

    Parameters
    ----------
    a : array, shape (..., m, k) or (k,)
        First factor: float64, float32, float16 or bfloat16.
    b : array, shape (..., k, n) or (k,)
        Second factor, of the same type. Batch dimensions are broadcast.
    precision : {'ieee', 'tf32', 'bf16x6', 'int8x14', 'int8x15', 'int8x16'}, optional
        For float32 and float64, as of `gemmule.matmul`.

    Returns
    -------
    array, shape (..., m, n)
        The product. A 1-D factor's dimension is left out.

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
        Factors, as of `matmul`.
    c : array, broadcastable to the shape of the product, optional
        What is added, of the factors' type; needed if `beta` is not 0, not read if it is, and refused if
        that is not said: `alpha` is 1 and `beta` 0 by default.
    alpha, beta : number
        Scalars, not traced.
    precision : {'ieee', 'tf32', 'bf16x6', 'int8x14', 'int8x15', 'int8x16'}, optional
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
    """Return what computes products with these scalars, given as text, in which 0.0 is not -0.0.

    It is traced and compiled once for each shape and type, and written out within other programs.
    """
    return jax.jit(functools.partial(_gemm, _number(alpha), _number(beta), precision), inline=True)


def _number(text: str) -> float | int | None:
    if text == "None":
        return None
    return int(text) if text.lstrip("-").isdigit() else float(text)


def _gemm(alpha: Any, beta: Any, precision: Any, a: Any, b: Any, c: Any = None) -> Any:
    arrays = {"a": jnp.asarray(a), "b": jnp.asarray(b)} | ({} if c is None else {"c": jnp.asarray(c)})
    _check_dtypes(arrays)
    shape = product_shape(arrays["a"].shape, arrays["b"].shape)
    real = {"integer": False, "complex_allowed": False}
    beta = said_beta(beta, unread=c is not None)
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
            raise DTypeError(f"a is {one.name} and {name} is {x.dtype.name}; convert one of them")


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(options: Options, a: Any, b: Any, c: Any) -> Any:
    """Multiply arrays of two or more dimensions, the last two stored as the options say."""
    m = a.shape[-1] if options.transpose_a else a.shape[-2]
    n = b.shape[-2] if options.transpose_b else b.shape[-1]
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    # Of equal rank, a dimension that vmap puts before all is the first of the batch in each of them.
    operands = [x.reshape((1,) * (len(batch) + 2 - x.ndim) + x.shape) for x in (a, b, *(() if c is None else (c,)))]
    out = jax.ShapeDtypeStruct((*batch, m, n), a.dtype)
    call = jax.ffi.ffi_call(TARGET, out, vmap_method="expand_dims")
    return call(*operands, options=options.text())


@functools.partial(jax.jit, static_argnums=0, inline=True)
def _compiled(options: Options, a: Any, b: Any, c: Any) -> Any:
    """Be compiled once for calls outside of `jax.jit`, which would otherwise be traced and lowered one by one."""
    return _product(options, a, b, c)


def _forward(options: Options, a: Any, b: Any, c: Any) -> tuple[Any, Any]:
    return _product(options, a, b, c), (a, b, c)


def _backward(options: Options, kept: tuple[Any, Any, Any], grad: Any) -> tuple[Any, Any, Any]:
    a, b, c = kept
    across, along = options.transpose_a, options.transpose_b

    def multiply(first: Any, second: Any, transpose_first: bool, transpose_second: bool) -> Any:
        plain = dataclasses.replace(options, beta=0.0, transpose_a=transpose_first, transpose_b=transpose_second)
        return _product(plain, first, second, None)

    grad_a = multiply(b, grad, along, True) if across else multiply(grad, b, False, not along)
    if math.prod(b.shape[:-2]) == 1 and a.shape[:-2] == grad.shape[:-2] and not across:
        # What b was multiplied with in every matrix of the batch is one long sum.
        rows, grads = (x.reshape(math.prod(x.shape[:-1]), x.shape[-1]) for x in (a, grad))
        grad_b = multiply(grads, rows, True, False) if along else multiply(rows, grads, True, False)
    else:
        grad_b = multiply(grad, a, True, across) if along else multiply(a, grad, not across, False)
    grad_c = None if c is None else grad * jnp.asarray(options.beta, grad.dtype)
    return _summed(grad_a, a.shape), _summed(grad_b, b.shape), grad_c


def _summed(grad: Any, shape: tuple[int, ...]) -> Any:
    """Sum over the dimensions of a batch in which an array was repeated."""
    missing = max(grad.ndim - len(shape), 0)
    axes = tuple(range(missing)) + tuple(
        axis + missing for axis, extent in enumerate(shape[:-2]) if extent == 1 and grad.shape[axis + missing] != 1
    )
    return (grad.sum(axes) if axes else grad).reshape(shape)


_product.defvjp(_forward, _backward)
