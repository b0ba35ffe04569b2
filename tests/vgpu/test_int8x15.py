"""float64 as residues of int8 on the virtual GPU, all checks on: each launch, and what they make together."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from oracle import poisoned
from test_kernels import laid_out, problem_of

from gemmule.compiler.cache import artifact_for
from gemmule.core.dtype import FLOAT64, Precision
from gemmule.kernels.gemm.h14_int8x15.spec import SPEC
from gemmule.kernels.gemm.h14_products.spec import SPEC as PRODUCTS
from gemmule.vgpu import Options, launch
from gemmule.vgpu.arch import virtual_arch

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

COUNT = 15
U = FLOAT64.unit_roundoff


def problem_like(*operands, **numbers):
    return dataclasses.replace(problem_of(*operands, **numbers), precision=Precision.INT8X15)


def multiply(a, b, d, c=None, alpha=1, beta=0, config=None, spaces=None):
    """Run every launch; what they leave in workspaces is in `spaces`."""
    problem = problem_like(a, b, d, c=c, alpha=alpha, beta=beta)
    assert SPEC.why_not(problem, virtual_arch(), SPEC.default) is None
    then = SPEC.following(problem, SPEC.default)
    arrays = {"a": a, "b": b, "d": d} | ({"c": c} if c is not None else {})
    # What a kernel must not rely on is not zero.
    spaces = {} if spaces is None else spaces
    spaces |= {name: np.full(size, 77, np.uint8) for name, size in then.workspaces.items()}
    arrays |= spaces
    run(SPEC, SPEC.default, problem, arrays)
    turned = not problem.d.is_row_major
    for one in then.chain():
        given = {name: beyond(arrays[of], one.beyond.get(name, 0), turned) for name, of in one.operands.items()}
        chosen = config if config is not None and one.spec is PRODUCTS else one.config
        run(one.spec, chosen, one.problem, arrays | given)
    return d


def run(spec, config, problem, arrays):
    recipe = spec.launch(problem, config)
    artifact = artifact_for(spec, config, spec.signature(problem, config), virtual_arch())
    named = {param.operand for param in recipe.params if hasattr(param, "operand")}
    launch(artifact, recipe, {name: arrays[name] for name in named}, options=Options(checks=True))


def beyond(array, nbytes, turned):
    """The array from so many bytes on: of a matrix other columns, or rows where the transposed product is computed."""
    if array.ndim == 1:
        return array[nbytes:]
    axis = 0 if turned else 1
    first = nbytes // array.strides[axis]
    return array[first:] if turned else array[:, first:]


def exact(a, b):
    """The product without any error, as fractions."""
    rows = [[Fraction(float(x)) for x in row] for row in a]
    cols = [[Fraction(float(x)) for x in col] for col in b.T]
    return [[sum((x * y for x, y in zip(row, col, strict=True)), Fraction(0)) for col in cols] for row in rows]


def eta(got, a, b, alpha=1, c=None, beta=0):
    """The largest error, in units of the last place of float64 and of the sum of magnitudes."""
    right = exact(a, b)
    size = exact(np.abs(a), np.abs(b))
    worst = Fraction(0)
    for i, row in enumerate(got):
        for j, value in enumerate(row):
            addend = Fraction(float(c[i, j])) * Fraction(beta) if c is not None else Fraction(0)
            unit = abs(Fraction(alpha)) * size[i][j] + abs(addend)
            error = abs(Fraction(float(value)) - Fraction(alpha) * right[i][j] - addend)
            assert unit > 0 or error == 0
            worst = max(worst, error / unit if unit else Fraction(0))
    return float(worst) / U


#: How A, B and the result lie.
LAYOUTS = [("row", "row", "row"), ("col", "col", "col")]
OTHERS = [("row", "col", "row"), ("col", "row", "row"), ("row", "row", "col"), ("col", "col", "row")]


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize(
    "layout", [*LAYOUTS, *(pytest.param(one, marks=pytest.mark.slow) for one in OTHERS)], ids="-".join
)
def test_layouts_offsets_and_addends(layout, offset, rng):
    m, n, k = 37, 29, 141
    a, b, c = (rng.standard_normal(shape) for shape in ((m, k), (k, n), (m, n)))
    laid = [laid_out(x, kind, offset) for x, kind in zip((a, b, c), layout, strict=True)]
    d = laid_out(poisoned(FLOAT64, (m, n)), layout[2], offset)
    multiply(laid[0], laid[1], d, laid[2], 0.75, -1.5)
    assert eta(d, a, b, 0.75, c, -1.5) <= 3
