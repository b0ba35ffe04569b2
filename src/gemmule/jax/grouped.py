"""Grouped products of JAX arrays, with their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from gemmule.core.errors import ArgumentError, DTypeError, ShapeError

from .array_types import as_type, bind, result_type
from .handlers import GROUPED
from .product import REAL_DTYPES, as_array

#: Bytes of the types that kernels load by TMA, and of how many elements, 16 bytes, its lines are multiples.
_HALF, _LINE = 2, 8


def ragged_dot(lhs: Any, rhs: Any, group_sizes: Any) -> Any:
    """Multiply groups of rows with a matrix each, as `jax.lax.ragged_dot`; under `jit` and `grad` too.

    Parameters
    ----------
    lhs : array, shape (m, k)
        Rows, group after group: on a GPU float16, bfloat16 or float32, on the host also float64.
    rhs : array, shape (groups, k, n)
        A matrix for each group, of the same type.
    group_sizes : array of int32 or int64, shape (groups,)
        Rows of each group, at most m in all; nothing waits for them.

    Returns
    -------
    array, shape (m, n)
        The product; rows beyond the groups are zero.

    Raises
    ------
    ShapeError, DTypeError
        If shapes or types do not fit together.

    Examples
    --------
    >>> import jax.numpy as jnp, gemmule.jax
    >>> sizes = jnp.array([1, 2], jnp.int32)
    >>> gemmule.jax.ragged_dot(jnp.ones((3, 2)), jnp.array([[[1.0], [1.0]], [[5.0], [5.0]]]), sizes).tolist()
    [[2.0], [10.0], [10.0]]
    """
    lhs, rhs, sizes = as_array("lhs", lhs), as_array("rhs", rhs), as_array("group_sizes", group_sizes)
    if lhs.ndim != 2 or rhs.ndim != 3 or sizes.shape != rhs.shape[:1] or lhs.shape[1] != rhs.shape[1]:
        raise ShapeError(
            f"lhs has shape {lhs.shape}, rhs {rhs.shape} and group_sizes {sizes.shape}; they must be (m, k), "
            "(groups, k, n) and (groups,)"
        )
    if lhs.dtype != rhs.dtype or lhs.dtype.name not in REAL_DTYPES:
        raise DTypeError(
            f"lhs is {lhs.dtype.name} and rhs {rhs.dtype.name}; ragged_dot takes both of one type among "
            f"{', '.join(REAL_DTYPES)}: convert one of them"
        )
    if sizes.dtype == jnp.int64:
        most = jnp.iinfo(jnp.int32)
        # What does not fit is no number of rows, and stays none.
        sizes = sizes.clip(most.min, most.max).astype(jnp.int32)
    if sizes.dtype != jnp.int32:
        raise DTypeError(f"group_sizes is {sizes.dtype.name}; it must be int32 or int64: convert it")
    ends, (depth, columns) = jnp.cumsum(sizes, dtype=jnp.int32), rhs.shape[1:]
    if lhs.dtype.itemsize == _HALF and (depth % _LINE or columns % _LINE):
        beyond = (0, -depth % _LINE)
        lhs, rhs = jnp.pad(lhs, ((0, 0), beyond)), jnp.pad(rhs, ((0, 0), beyond, (0, -columns % _LINE)))
        return _product("", lhs, rhs, ends)[:, :columns]
    return _product("", lhs, rhs, ends)


#: The product of arrays, of which `stored` names the one, if one is, whose last two dimensions are exchanged: of groups
#: of rows of A, each times its matrix B, or its transpose ("b"), or of their transposes, times the groups of B ("a").
_groups_p = Primitive("gemmule_groups")


def _product(stored: str, a: Any, b: Any, ends: Any) -> Any:
    shape = _result_shape(stored, a, b, ends)
    if 0 in (*shape, a.shape[0 if stored == "a" else 1], ends.shape[0]):
        # No element, or nothing to add up, which kernels refuse.
        return jnp.zeros(shape, a.dtype)
    return bind(_groups_p, a, b, ends, stored=stored)


def _result_shape(stored: str, a: Any, b: Any, ends: Any) -> tuple[int, ...]:
    if stored == "a":
        return ends.shape[0], a.shape[1], b.shape[1]
    return a.shape[0], b.shape[1 if stored == "b" else 2]


@_groups_p.def_impl
def _call(a: Any, b: Any, ends: Any, *, stored: str) -> Any:
    out = jax.ShapeDtypeStruct(_result_shape(stored, a, b, ends), a.dtype)
    return jax.ffi.ffi_call(GROUPED, out)(a, b, ends, options=stored)


@_groups_p.def_abstract_eval
def _describe(a: Any, b: Any, ends: Any, *, stored: str) -> Any:
    return result_type(_result_shape(stored, a, b, ends), (a, b, ends))


mlir.register_lowering(_groups_p, mlir.lower_fun(_call, multiple_results=False))


def _one_by_one(operands: Sequence[Any], dims: Sequence[Any], *, stored: str) -> tuple[Any, int]:
    """Map over a batch by one product after another: there is none of a batch."""
    mapped = {
        i: jnp.moveaxis(x, dim, 0) for i, (x, dim) in enumerate(zip(operands, dims, strict=True)) if dim is not None
    }

    def one(parts: dict[int, Any]) -> Any:
        return bind(_groups_p, *(parts.get(i, x) for i, x in enumerate(operands)), stored=stored)

    return jax.lax.map(one, mapped), 0


batching.primitive_batchers[_groups_p] = _one_by_one


def _forward_mode(primals: Sequence[Any], tangents: Sequence[Any], *, stored: str) -> tuple[Any, Any]:
    a, b, ends = primals
    out = bind(_groups_p, a, b, ends, stored=stored)
    terms = [
        bind(_groups_p, *factors, ends, stored=stored)
        for factors, tangent in (((tangents[0], b), tangents[0]), ((a, tangents[1]), tangents[1]))
        if type(tangent) is not ad.Zero
    ]
    return out, sum(terms[1:], terms[0]) if terms else ad.Zero.from_primal_value(out)


def _transposed(grad: Any, a: Any, b: Any, ends: Any, *, stored: str) -> tuple[Any, Any, None]:
    """Return the gradient of the operand that the product is linear in."""
    of_a, of_b = map(ad.is_undefined_primal, (a, b))
    if type(grad) is ad.Zero:
        return None, None, None
    if of_a and of_b:
        raise ArgumentError("a product is not linear in both operands; transpose it in one of them")
    if stored == "a":
        found = _product("b", b, grad, ends) if of_a else _product("", a, grad, ends)
    elif of_a:
        found = _product("" if stored else "b", grad, b, ends)
    else:
        found = _product("a", *((grad, a) if stored else (a, grad)), ends)
    found = as_type(found, (a if of_a else b).aval)
    return (found, None, None) if of_a else (None, found, None)


ad.primitive_jvps[_groups_p] = _forward_mode
ad.primitive_transposes[_groups_p] = _transposed
