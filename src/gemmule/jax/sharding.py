"""Products of arrays that are sharded over devices: each device multiplies its shards, and sums go over shards of K."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src.dispatch import prim_requires_devices_during_lowering
from jax.experimental.custom_partitioning import ArrayMapping, SdyShardingRule, custom_partitioning
from jax.extend.core import Primitive
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .array_types import Axes, axes_of
from .options import Options

# The JAX that has Shardy for its partitioner.
_FIRST = (0, 7)


def sharded(call: Callable[..., Any], primitive: Primitive) -> Callable[..., Any]:
    """Return the product with its partitioning rule; on one device, and in `jax.shard_map`, it is the product itself.

    Parameters
    ----------
    call : callable
        ``call(*operands, options=options)``, the product of arrays of equal rank on one device.
    primitive : Primitive
        The primitive that is lowered to it.
    """

    # custom_partitioning takes functions of as many operands as they have names for: with C and without.
    def of_two(options: Options, a: Any, b: Any) -> Any:
        return call(a, b, options=options)

    def of_three(options: Options, a: Any, b: Any, c: Any) -> Any:
        return call(a, b, c, options=options)

    two, three = (custom_partitioning(product, static_argnums=(0,)) for product in (of_two, of_three))
    for product in (two, three):
        product.def_partition(_partition_of(call), infer_sharding_from_operands=None, sharding_rule=_rule)
    # Without it JAX lowers programs before it knows their devices; it has no public name.
    prim_requires_devices_during_lowering.add(primitive)

    def whole(*operands: Any, options: Options) -> Any:
        if jax.__version_info__ < _FIRST or not jax.config.jax_use_shardy_partitioner:
            # GSPMD, of earlier JAX, gathers the operands on each device.
            return call(*operands, options=options)
        return (two, three)[len(operands) - 2](options, *operands)

    return whole


def dimensions(options: Options, shapes: Sequence[Sequence[int]]) -> list[tuple[str, ...]]:
    """Return a name for each dimension of A, B, C if it is there, and the result; equal names are equal extents.

    A dimension of a batch that is repeated has a name of its own, since it is not sharded with those that it meets.
    """
    rank = len(shapes[-1])
    ends = [("k", "m") if options.transpose_a else ("m", "k"), ("n", "k") if options.transpose_b else ("k", "n")]
    ends += [("m", "n")] * (len(shapes) - 2)
    return [
        tuple(
            f"b{axis}" if shape[axis] == shapes[-1][axis] else f"r{number}_{axis}" for axis in range(rank - 2)
        ) + end
        for number, (shape, end) in enumerate(zip(shapes, ends, strict=True))
    ]  # fmt: skip


def _rule(options: Options, mesh: Mesh, operands: Sequence[Any], results: Sequence[Any]) -> SdyShardingRule:
    """Return which dimensions are one, by which Shardy spreads shardings over a program."""
    del mesh
    *read, written = dimensions(options, [x.shape for x in (*operands, *results)])
    return SdyShardingRule(
        tuple(ArrayMapping(*names) for names in read), (ArrayMapping(*written),), reduction_factors=("k",)
    )


def _partition_of(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function by which XLA's partitioner asks for the program of one device."""

    def partition(options: Options, mesh: Mesh, operands: Sequence[Any], result: Any) -> Any:
        """Return what each device computes, and how its operands and the result are sharded for it."""
        names = dimensions(options, [x.shape for x in (*operands, result)])
        extents: dict[str, int] = {}
        for x, own in zip((*operands, result), names, strict=True):
            extents.update(zip(own, x.shape, strict=True))
        over: dict[str, Axes] = {}
        # The result's sharding first; what only an operand has keeps devices from computing the same.
        for x, own in zip((result, *operands), (names[-1], *names[:-1]), strict=True):
            for name, axes in zip(own, axes_of(x), strict=True):
                taken = {axis for others in over.values() for axis in others}
                divides = extents[name] % math.prod(mesh.shape[axis] for axis in axes) == 0
                if not over.get(name) and not taken.intersection(axes) and divides:
                    over[name] = axes
        shardings = [
            NamedSharding(mesh, PartitionSpec(*(over.get(name) or None for name in own))) for own in names
        ]  # fmt: skip
        summed = over.get("k", ())

        def compute(*shards: Any) -> Any:
            if not summed:
                return call(*shards, options=options)
            a, b, *c = shards
            total = jax.lax.psum(call(a, b, options=dataclasses.replace(options, beta=0.0)), summed)
            return total + c[0] * jax.numpy.asarray(options.beta, total.dtype) if c else total

        return mesh, compute, shardings[-1], tuple(shardings[:-1])

    return partition
