"""Types of JAX arrays on a mesh: shardings over explicit axes, and the axes of `jax.shard_map` that they vary over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.sharding import NamedSharding, PartitionSpec

#: Names of mesh axes that a dimension is sharded over.
Axes = tuple[str, ...]


def bind(primitive: Primitive, *operands: Any, **params: Any) -> Any:
    """Apply a primitive to operands that vary over the same manual axes: the transpose of the cast sums gradients."""
    every = frozenset[str]().union(*(_varying(jax.typeof(x)) for x in operands))
    return primitive.bind(*(_cast(x, every) for x in operands), **params)


def result_type(shape: tuple[int, ...], operands: Sequence[Any], names: Sequence[Sequence[str]] = ()) -> Any:
    """Return the type of a product of operands of those types.

    Parameters
    ----------
    shape : tuple of int
        Shape of the result.
    operands : sequence of ShapedArray
        Types of the operands, which vary over the same manual axes.
    names : sequence of sequence of str, optional
        Names of the dimensions of each operand, then of the result: a dimension is sharded as the first operand's of
        its name. Without names the result is not sharded.
    """
    first = operands[0]
    meshes = [x.sharding.mesh for x in operands if x.sharding is not None and not x.sharding.mesh.empty]
    if not meshes:
        return first.update(shape=shape, weak_type=False, sharding=None)
    over: dict[str, Axes] = {}
    for x, own in zip(operands, names, strict=False):
        for name, axes in zip(own, axes_of(x), strict=True):
            taken = {axis for others in over.values() for axis in others}
            if not over.get(name) and not taken.intersection(axes):
                over[name] = axes
    spec = PartitionSpec(*(over.get(name) or None for name in names[-1])) if names else PartitionSpec()
    return first.update(shape=shape, weak_type=False, sharding=NamedSharding(meshes[0], spec))


def as_type(x: Any, wanted: Any) -> Any:
    """Return an array as of a type of the same shape: a tangent as of its result's, a gradient as of its operand's."""
    x = _cast(x, _varying(wanted))
    own, target = jax.typeof(x).sharding, wanted.sharding
    if target.mesh.empty or own.spec == target.spec:
        return x
    return jax.sharding.reshard(x, target)


def rows_merge(of: Any) -> bool:
    """Return whether the dimensions before the last of a type become one: explicit axes shard only the first."""
    return not any(axes_of(of)[1:-1])


def axes_of(x: Any) -> list[Axes]:
    """Return the axes that each dimension of an array is sharded over."""
    spec = x.sharding.spec if isinstance(x.sharding, NamedSharding) else ()
    found = [() if one is None else (one,) if isinstance(one, str) else tuple(one) for one in spec]
    return found + [()] * (len(x.shape) - len(found))


def _varying(of: Any) -> frozenset[str]:
    """Return the manual axes that values of a type vary over."""
    # JAX before 0.10 has `vma`, and before 0.7 none.
    axes: frozenset[str] = of.mat.varying if hasattr(of, "mat") else getattr(of, "vma", frozenset())
    return axes


def _cast(x: Any, axes: frozenset[str]) -> Any:
    """Return an array as one that varies over these axes too."""
    own = jax.typeof(x)
    missing = tuple(axis for axis in own.sharding.mesh.axis_names if axis in axes - _varying(own))
    if not missing:
        return x
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(x, missing, to="varying")
    return jax.lax.pvary(x, missing)
