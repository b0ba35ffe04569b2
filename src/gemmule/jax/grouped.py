"""Grouped products of JAX arrays, with their gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from gemmule.core.errors import DTypeError, ShapeError

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
    group_sizes : array of int32, shape (groups,)
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
    if sizes.dtype != jnp.int32:
        raise DTypeError(f"group_sizes is {sizes.dtype.name}; it must be int32: convert it")
    ends, (depth, columns) = jnp.cumsum(sizes, dtype=jnp.int32), rhs.shape[1:]
    if lhs.dtype.itemsize == _HALF and (depth % _LINE or columns % _LINE):
        beyond = (0, -depth % _LINE)
        lhs, rhs = jnp.pad(lhs, ((0, 0), beyond)), jnp.pad(rhs, ((0, 0), beyond, (0, -columns % _LINE)))
        return _rows(lhs, rhs, ends)[:, :columns]
    return _rows(lhs, rhs, ends)


def _call(stored: str, shape: tuple[int, ...], a: Any, b: Any, ends: Any) -> Any:
    """Call the product; `stored` names the operand, if one is, whose last two dimensions are exchanged."""
    if 0 in (*shape, a.shape[0 if stored == "a" else 1], ends.shape[0]):
        # No element, or nothing to add up, which kernels refuse.
        return jnp.zeros(shape, a.dtype)
    call = jax.ffi.ffi_call(GROUPED, jax.ShapeDtypeStruct(shape, a.dtype), vmap_method="sequential")
    return call(a, b, ends, options=stored)


@jax.custom_vjp
def _rows(a: Any, b: Any, ends: Any) -> Any:
    """Return each group of rows of A, times its matrix B."""
    return _call("", (a.shape[0], b.shape[2]), a, b, ends)


@jax.custom_vjp
def _rows_by_transposes(a: Any, b: Any, ends: Any) -> Any:
    """Return each group of rows of A, times the transpose of its matrix B."""
    return _call("b", (a.shape[0], b.shape[1]), a, b, ends)


@jax.custom_vjp
def _transposes_by_groups(a: Any, b: Any, ends: Any) -> Any:
    """Return for each group the transpose of its rows of A, times those of B."""
    return _call("a", (ends.shape[0], a.shape[1], b.shape[1]), a, b, ends)


def _save(product: Any, a: Any, b: Any, ends: Any) -> tuple[Any, Any]:
    return product(a, b, ends), (a, b, ends)


def _of_rows(saved: Any, grad: Any) -> tuple[Any, Any, None]:
    a, b, ends = saved
    return _rows_by_transposes(grad, b, ends), _transposes_by_groups(a, grad, ends), None


def _of_rows_by_transposes(saved: Any, grad: Any) -> tuple[Any, Any, None]:
    a, b, ends = saved
    return _rows(grad, b, ends), _transposes_by_groups(grad, a, ends), None


def _of_transposes_by_groups(saved: Any, grad: Any) -> tuple[Any, Any, None]:
    a, b, ends = saved
    return _rows_by_transposes(b, grad, ends), _rows(a, grad, ends), None


_rows.defvjp(lambda *given: _save(_rows, *given), _of_rows)
_rows_by_transposes.defvjp(lambda *given: _save(_rows_by_transposes, *given), _of_rows_by_transposes)
_transposes_by_groups.defvjp(lambda *given: _save(_transposes_by_groups, *given), _of_transposes_by_groups)
