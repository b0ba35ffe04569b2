"""Every transpose kernel of the registry on the hardware, from its artifact and recipe."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from device_arrays import STREAM, DeviceMatrix, strides_of

from gemmule.core.dtype import opaque_dtype
from gemmule.core.permutation import transpose_problem
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.runtime.device import get_device
from gemmule.runtime.execute import run_kernel

TRANSPOSES = [spec for spec in REGISTRY if spec.operation == "transpose"]


def copy(spec, values, source_strides, target_strides, axes=None, offset=0):
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
        target.put(np.full(shape, 77, dtype.numpy()))
        problem = transpose_problem(shape, tuple(source_strides[axis] for axis in order), target_strides, itemsize)
        if reason := spec.why_not(problem, get_device().arch, spec.default):
            pytest.skip(reason)
        run_kernel(problem, Choice(spec, spec.default), {"a": source.address, "d": target.address}, 0, STREAM)
        return target.get()


def random_bits(rng, itemsize, shape):
    dtype = opaque_dtype(itemsize).numpy()
    return rng.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize(
    "kinds", [("row", "row"), ("col", "row"), ("padded", "padded"), ("gapped", "reversed"), ("reversed", "col")]
)
@pytest.mark.parametrize("shape", [(1, 1), (1, 100), (100, 1), (31, 33), (64, 64), (97, 130), (2, 515)], ids=str)
@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
@pytest.mark.parametrize("spec", TRANSPOSES, ids=lambda spec: spec.name)
def test_shapes_and_strides(spec, itemsize, shape, kinds, offset, rng):
    values = random_bits(rng, itemsize, shape)
    got = copy(spec, values, strides_of(kinds[0], (), *shape), strides_of(kinds[1], (), *shape[::-1]), offset=offset)
    np.testing.assert_array_equal(got, values.T)


@pytest.mark.parametrize("axes", [(2, 1, 0), (0, 2, 1), (1, 0, 2), (2, 0, 1)], ids=str)
@pytest.mark.parametrize("spec", TRANSPOSES, ids=lambda spec: spec.name)
def test_permutations(spec, axes, rng):
    values = random_bits(rng, 4, (7, 35, 50))
    shape = tuple(values.shape[axis] for axis in axes)
    got = copy(spec, values, (35 * 50, 50, 1), (shape[1] * shape[2], shape[2], 1), axes)
    np.testing.assert_array_equal(got, values.transpose(axes))


@pytest.mark.parametrize("spec", TRANSPOSES, ids=lambda spec: spec.name)
def test_more_dimensions_than_a_launch_covers(spec, rng):
    shape = (2, 3, 2, 3, 2, 4, 3)
    values = random_bits(rng, 2, shape)
    strides = tuple(int(np.prod(shape[axis + 1 :])) for axis in range(7))
    target = tuple(int(np.prod(shape[::-1][axis + 1 :])) for axis in range(7))
    np.testing.assert_array_equal(copy(spec, values, strides, target), values.transpose())


@pytest.mark.parametrize("spec", [spec for spec in TRANSPOSES if "reference" in spec.name], ids=lambda spec: spec.name)
def test_a_grid_smaller_than_the_tiles_goes_round(spec, rng):
    """What happens beyond 2**31 tiles, with 3 CTAs."""
    looping = dataclasses.replace(
        spec, launch=lambda problem, config: dataclasses.replace(spec.launch(problem, config), grid=(3, 1, 1))
    )
    values = random_bits(rng, 4, (5, 97, 130))
    got = copy(looping, values, (97 * 130, 130, 1), (5 * 97, 5, 1))
    np.testing.assert_array_equal(got, values.transpose())
