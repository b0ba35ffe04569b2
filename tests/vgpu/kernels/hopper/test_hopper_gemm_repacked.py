"""The packing of hopper_gemm_repacked on the virtual GPU, all checks on: row strides, offsets, layouts, batches."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import gemmule as gm
from gemmule.compiler.cache import artifact_for
from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT32, INT8, Precision, dtype_named
from gemmule.kernels.hopper.gemm_repacked.spec import SPEC
from gemmule.vgpu import Options
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.launcher import launch
from support.oracle import random_matrix
from support.vgpu.kernel_products import laid_out, problem_of, seen

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

HOPPER = Arch.parse("sm_90a")


def pack(a, b, d, precision=Precision.IEEE):
    """Pack what must be packed; return the workspaces as they are then."""
    problem = dataclasses.replace(problem_of(a, b, d), precision=precision)
    recipe, then = SPEC.launch(problem, SPEC.default), SPEC.next_kernel(problem, SPEC.default)
    signature = SPEC.signature(problem, SPEC.default)
    operands = (problem.a, problem.b)
    assert ("strided" in dict(signature)) == any(not (x.is_row_major or x.is_col_major) for x in operands)
    artifact = artifact_for(SPEC, SPEC.default, signature, virtual_arch())
    artifact.check_launch(recipe)
    spaces = {name: np.full(size // a.dtype.itemsize, 77, a.dtype) for name, size in then.workspaces.items()}
    launch(artifact, recipe, {"a": a, "b": b, **spaces}, options=Options(checks=True))
    return then, spaces


@pytest.mark.parametrize("offset", [0, 1, 3, 7])
@pytest.mark.parametrize("kinds", [("row", "row"), ("col", "col"), ("row", "col")], ids="-".join)
@pytest.mark.parametrize("shape", [(1, 1, 1), (9, 11, 13), (33, 31, 65), (17, 24, 40), (3, 4111, 2)], ids=str)
def test_every_element_is_where_the_product_looks_for_it(shape, kinds, offset, rng):
    m, n, k = shape
    a, b = random_matrix(rng, BFLOAT16, (m, k)), random_matrix(rng, BFLOAT16, (k, n))
    moved = [laid_out(x, kind, offset) for x, kind in zip((a, b), kinds, strict=True)]
    d = np.zeros((m, n), BFLOAT16.numpy())
    if SPEC.why_not(problem_of(*moved, d), HOPPER, SPEC.default) is not None:
        pytest.skip("nothing to pack")
    then, spaces = pack(*moved, d)
    for name, x in (("a", a), ("b", b)):
        if (space := f"packed {name}") in spaces:
            packed = seen(then.problem.operands()[name], spaces[space], ())
            np.testing.assert_array_equal(packed.view(np.uint16), x.view(np.uint16))


@pytest.mark.parametrize("dtype", [BFLOAT16, INT8, FLOAT32], ids=str)
@pytest.mark.parametrize("shape", [(1, 33, 2), (9, 11, 13), (33, 31, 65), (3, 4111, 2)], ids=str)
@pytest.mark.parametrize("steps", [(2, 1), (-1, 3), (-2, -1)], ids=str)
def test_operands_without_contiguous_lines(shape, steps, dtype, rng):
    m, n, k = shape
    views = [(..., slice(None, None, steps[0])), (slice(None, None, steps[1]), slice(None, None, 2))]
    a, b = (
        random_matrix(rng, dtype, tuple(4 * extent for extent in sides))[view][: sides[0], : sides[1]]
        for sides, view in zip(((m, k), (k, n)), views, strict=True)
    )
    d = np.zeros((m, n), {INT8: np.int32}.get(dtype, dtype.numpy()))
    precision = Precision.TF32 if dtype == FLOAT32 else Precision.IEEE
    then, spaces = pack(a, b, d, precision)
    for name, x in (("a", a), ("b", b)):
        if (space := f"packed {name}") in spaces:
            packed = seen(then.problem.operands()[name], spaces[space], ())
            assert np.ascontiguousarray(packed).tobytes() == np.ascontiguousarray(x).tobytes()


@pytest.mark.parametrize("types", [("bfloat16", None), ("int8", "int32")], ids=str)
@pytest.mark.parametrize("result", [(40, 48), (37, 41)], ids=str)
def test_products_of_operands_without_contiguous_lines(types, result, rng):
    """Beside one of these, an int8 operand of the wrong major is gathered as well."""
    (m, n), k, (element, out) = result, 56, types
    a = random_matrix(rng, dtype_named(element), (m, 2 * k))[:, ::2]
    b = random_matrix(rng, dtype_named(element), (k, n))
    plan = gm.matmul.plan(a, b, out_dtype=out, executor="vgpu")
    assert plan.kernel == "hopper_gemm_repacked"
    exact = a.astype(np.float64) @ b.astype(np.float64)
    bound = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64) * (0 if out else 2**-8)
    assert (np.abs(plan.execute().astype(np.float64) - exact) <= bound).all()


def test_elements_of_one_byte(rng):
    m, n, k = 19, 24, 45
    a, b = random_matrix(rng, INT8, (m, k)), random_matrix(rng, INT8, (k, n))
    moved = [laid_out(x, kind, 1) for x, kind in zip((a, b), ("row", "col"), strict=True)]
    then, spaces = pack(*moved, np.zeros((m, n), np.int32))
    for name, x in (("a", a), ("b", b)):
        np.testing.assert_array_equal(seen(then.problem.operands()[name], spaces[f"packed {name}"], ()), x)


def test_batches(rng):
    a, b = random_matrix(rng, BFLOAT16, (3, 7, 19)), random_matrix(rng, BFLOAT16, (3, 19, 11))
    then, spaces = pack(a, b, np.zeros((3, 7, 11), BFLOAT16.numpy()))
    assert then.problem.batch == (3,)
    for name, x in (("a", a), ("b", b)):
        packed = seen(then.problem.operands()[name], spaces[f"packed {name}"], (3,))
        np.testing.assert_array_equal(packed.view(np.uint16), x.view(np.uint16))


@pytest.mark.parametrize(("batch", "swapped"), [(40, "ab"), (2, "ab"), (5, "b"), (5, "a")], ids=str)
def test_batches_that_are_nearest_in_memory(batch, swapped, rng):
    """Lines of the copies are those of all matrices, so that neighbouring threads read neighbours."""
    shapes = {"a": (batch, 7, 19), "b": (batch, 19, 11)}
    wanted = {name: random_matrix(rng, BFLOAT16, shape) for name, shape in shapes.items()}
    given = {
        name: np.ascontiguousarray(x.transpose(1, 2, 0)).transpose(2, 0, 1) if name in swapped else x
        for name, x in wanted.items()
    }
    problem = problem_of(*given.values(), np.zeros((batch, 7, 11), BFLOAT16.numpy()))
    extents = {one.operand: one.shape for one in SPEC.launch(problem, SPEC.default).params if one.operand in "ab"}

    assert (extents["a"][1:] == (batch, 7)) == ("a" in swapped)
    then, spaces = pack(*given.values(), np.zeros((batch, 7, 11), BFLOAT16.numpy()))
    for name, x in wanted.items():
        packed = seen(then.problem.operands()[name], spaces[f"packed {name}"], (batch,))
        np.testing.assert_array_equal(packed.view(np.uint16), x.view(np.uint16))
