"""Every transpose kernel of the registry on the hardware, from its artifact and recipe."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gemmule.core.dtype import opaque_dtype
from gemmule.core.permutation import transpose_problem
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.runtime.device import get_device
from gemmule.runtime.execute import run_kernel
from support.gpu.device_arrays import STREAM, DeviceMatrix, strides_of

TRANSPOSES = [spec for spec in REGISTRY if spec.operation == "transpose" and not spec.in_place]
IN_PLACE = [spec for spec in REGISTRY if spec.in_place]
ITEMSIZES = (1, 2, 4, 8, 16)


def alignment_of(matrix):
    return min(matrix.address & -matrix.address, 256)


def copy(spec, values, source_strides, target_strides, axes=None, offset=0, config=None):
    """Write `values`, axes permuted, through the kernel between arrays with those strides."""
    itemsize = values.dtype.itemsize
    dtype = opaque_dtype(itemsize)
    order = axes or tuple(reversed(range(values.ndim)))
    shape = tuple(values.shape[axis] for axis in order)
    with (
        DeviceMatrix(dtype, values.shape, source_strides, offset) as source,
        DeviceMatrix(dtype, shape, target_strides, offset) as target,
    ):
        source.put(values)
        strides = tuple(source_strides[axis] for axis in order)
        problem = transpose_problem(
            shape, strides, target_strides, itemsize, (alignment_of(source), alignment_of(target))
        )
        config = config or spec.default
        if reason := spec.why_not(problem, get_device().arch, config):
            pytest.skip(reason)
        run_kernel(problem, Choice(spec, config), {"a": source.address, "d": target.address}, 0, STREAM)
        return target.get()


def random_bits(rng, itemsize, shape):
    return np.frombuffer(rng.bytes(int(np.prod(shape)) * itemsize), opaque_dtype(itemsize).numpy()).reshape(shape)


def assert_same_bits(got, expected):
    assert got.shape == expected.shape
    bits = [np.ascontiguousarray(x).view(np.uint8) for x in (got, expected)]
    np.testing.assert_array_equal(*bits)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize(
    "kinds", [("row", "row"), ("col", "row"), ("padded", "padded"), ("gapped", "reversed"), ("reversed", "col")]
)
@pytest.mark.parametrize("shape", [(1, 1), (1, 100), (100, 1), (31, 33), (64, 64), (97, 130), (2, 515)], ids=str)
@pytest.mark.parametrize("itemsize", ITEMSIZES)
@pytest.mark.parametrize("spec", TRANSPOSES, ids=lambda spec: spec.name)
def test_shapes_and_strides(spec, itemsize, shape, kinds, offset, rng):
    values = random_bits(rng, itemsize, shape)
    got = copy(spec, values, strides_of(kinds[0], (), *shape), strides_of(kinds[1], (), *shape[::-1]), offset=offset)
    assert_same_bits(got, values.T)


@pytest.mark.parametrize("kinds", [("row", "row"), ("padded", "padded")])
@pytest.mark.parametrize("shape", [(768, 1024), (1030, 517), (1024, 513)], ids=str)
@pytest.mark.parametrize("itemsize", ITEMSIZES)
@pytest.mark.parametrize(
    ("spec", "config"),
    [(spec, config) for spec in TRANSPOSES for config in spec.configs],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_every_config_on_many_tiles(spec, config, itemsize, shape, kinds, rng):
    values = random_bits(rng, itemsize, shape)
    strides = strides_of(kinds[0], (), *shape), strides_of(kinds[1], (), *shape[::-1])
    assert_same_bits(copy(spec, values, *strides, config=config), values.T)


@pytest.mark.parametrize("axes", [(2, 1, 0), (0, 2, 1), (1, 0, 2), (2, 0, 1)], ids=str)
@pytest.mark.parametrize("spec", TRANSPOSES, ids=lambda spec: spec.name)
def test_permutations(spec, axes, rng):
    values = random_bits(rng, 4, (7, 36, 52))
    shape = tuple(values.shape[axis] for axis in axes)
    got = copy(spec, values, (36 * 52, 52, 1), (shape[1] * shape[2], shape[2], 1), axes)
    assert_same_bits(got, values.transpose(axes))


@pytest.mark.parametrize("spec", TRANSPOSES, ids=lambda spec: spec.name)
def test_more_dimensions_than_a_launch_covers(spec, rng):
    shape = (2, 3, 2, 3, 2, 4, 3)
    values = random_bits(rng, 2, shape)
    strides = tuple(int(np.prod(shape[axis + 1 :])) for axis in range(7))
    target = tuple(int(np.prod(shape[::-1][axis + 1 :])) for axis in range(7))
    assert_same_bits(copy(spec, values, strides, target), values.transpose())


@pytest.mark.parametrize("kind", ["row", "padded", "apart"])
@pytest.mark.parametrize("edge", [1, 63, 64, 200, 1023, 2048])
@pytest.mark.parametrize("itemsize", ITEMSIZES)
@pytest.mark.parametrize(
    ("spec", "config"),
    [(spec, config) for spec in IN_PLACE for config in spec.configs],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_in_place(spec, config, itemsize, edge, kind, rng):
    values = random_bits(rng, itemsize, (3, edge, edge))
    strides = strides_of(kind, (3,), edge, edge)
    with DeviceMatrix(opaque_dtype(itemsize), values.shape, strides) as matrix:
        matrix.put(values)
        alignments = (alignment_of(matrix),) * 2
        moved = (strides[0], strides[2], strides[1])
        problem = transpose_problem(values.shape, moved, strides, itemsize, alignments, in_place=True)
        if reason := spec.why_not(problem, get_device().arch, config):
            pytest.skip(reason)
        run_kernel(problem, Choice(spec, config), {"a": matrix.address, "d": matrix.address}, 0, STREAM)
        assert_same_bits(matrix.get(), values.swapaxes(1, 2))


@pytest.mark.parametrize("spec", [spec for spec in TRANSPOSES if "reference" in spec.name], ids=lambda spec: spec.name)
def test_a_grid_smaller_than_the_tiles_goes_round(spec, rng):
    """What happens beyond 2**31 tiles, with 3 CTAs."""
    looping = dataclasses.replace(
        spec, launch=lambda problem, config: dataclasses.replace(spec.launch(problem, config), grid=(3, 1, 1))
    )
    values = random_bits(rng, 4, (5, 97, 130))
    got = copy(looping, values, (97 * 130, 130, 1), (5 * 97, 5, 1))
    assert_same_bits(got, values.transpose())
