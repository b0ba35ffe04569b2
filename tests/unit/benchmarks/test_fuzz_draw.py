"""The draw of the random campaign reaches every kernel that dispatch can choose, with bounded compilation."""

from __future__ import annotations

import collections
import functools

import numpy as np
import pytest
from drawing import detailed, sketch
from layouts import Layout
from operands import stand_in
from planning import Setting, Target, planned, problem_numbered, problem_of, template
from recipes import KERNELS, KINDS, RECIPES, SCHEDULE, kernels_for
from workers import chunks

from gemmule.dispatch.registry import EVERY_KERNEL
from gemmule.kernels.quantize.spec import BY_TENSOR, SPEC

#: Rungs of the ladders, which others take the place of on a Hopper GPU, and what fills the rest.
RUNGS = {
    *(f"h{n:02}" for n in range(2, 9)), *(f"g{n:02}" for n in range(1, 7)), "d01", "d02",
    *(f"t{n:02}" for n in range(1, 12)),
}  # fmt: skip
#: Kernels that dispatch does not choose on Hopper: `simt_gemm` takes all products of the first.
UNCHOSEN = {"g07_cp_async", "gemm_upcast"}
#: Kernels that random problems of a campaign's memory hardly ever run; tests of their own multiply and move with them.
RARE = {"hopper_gemm_small_repacked", "transpose_whole_matrices", "mma_sync_batched"}
HERE = Setting(seed=3, target=Target())


@functools.cache
def problem(index):
    return problem_numbered(HERE, index)


@functools.cache
def kernels():
    """The kernel of each problem of the first two turns of the schedule."""
    return [planned(problem(index), HERE.target).kernel for index in range(2 * len(SCHEDULE))]


def test_every_kernel_but_rungs_is_drawn():
    every = {spec.name for spec in (*EVERY_KERNEL, SPEC, BY_TENSOR)}
    assert set(KERNELS) == {name for name in every if name.split("_")[0] not in RUNGS} - UNCHOSEN - RARE


@pytest.mark.parametrize("kind", KINDS)
def test_each_recipe_reaches_its_kernel(kind):
    for number, one in enumerate(SCHEDULE):
        if one == kind:
            assert template(HERE, number).planned.kernel in kernels_for(kind)


def test_each_kernel_takes_its_share_of_problems():
    counts = collections.Counter(kernels())
    assert min(
        counts[name] for kind in KINDS if not RECIPES[kind].kernels for name in kernels_for(kind)
    ) >= 0.012 * len(kernels())


def test_problems_need_no_more_than_their_templates():
    for index in range(len(SCHEDULE), 2 * len(SCHEDULE)):
        of = template(HERE, index % HERE.templates).planned
        assert planned(problem(index), HERE.target).jobs.keys() <= of.jobs.keys()


def test_templates_need_few_kernels():
    each = len({name for number in range(2 * len(SCHEDULE)) for name in template(HERE, number).planned.jobs})
    # Later templates share more of them: all need about 1100.
    assert each <= 450


def forms_of(p):
    """Words for what is special to a problem."""
    return {
        p.precision, p.epilogue, p.library, p.target, p.operation, p.values, "gram" if p.gram else None,
        "no K" if p.k == 0 and RECIPES[p.kind].operation == "product" else None,
        "NaN in C" if "c" in p.shapes and p.beta == 0 and p.epilogue != "residual" else None,
        "one" if p.m == p.n == 1 else None, "empty" if 0 in p.result else None,
        "batch" if len(p.result) > 2 else None,
        *("negative" for one in p.layouts.values() if one.reversed_axes),
        *("repeated" for one in p.layouts.values() if one.repeated),
        *("misaligned" for one in p.layouts.values() if one.offset % 16),
        f"groups of {p.divided}" if p.divided else None, p.options.get("by"), p.options.get("scale_dtype"), p.frontend,
        "lazy" if p.lazy else None, f"conjugate of {p.conjugated}" if p.conjugated else None,
        "permutation" if "axes" in p.options else None, "complex alpha" if isinstance(p.alpha, complex) else None,
        "beyond the end" if p.divided and max(p.numbers, default=0) > p.extent else None,
        "empty group" if p.divided == "m" and 0 in np.diff(p.numbers) else None,
        *p.dtypes.values(),
    }  # fmt: skip


def test_all_forms_come_in_six_turns():
    left = {
        "tf32", "bf16x6", "ozaki-14", "ozaki-15", "ozaki-16", "float8", "bias", "relu", "gelu", "silu", "gelu_tanh",
        "residual", "two_matrices", "swiglu", "pairs", "second", "absmax", "torch", "cupy", "jax", "numpy", "new",
        "given", "c", "x", "matmul", "gemm", "transpose", "matrix_transpose", "staircase", "special", "gram", "no K",
        "NaN in C", "one", "empty", "batch", "negative", "repeated", "misaligned", "float8_e5m2", "int32", "ozaki",
        "spans", "opposed", "subnormal",
        "groups of m", "groups of n", "groups of k", "groups of row", "tensor", "row", "block",
        "float8_e8m0fnu", "lazy", "conjugate of a", "conjugate of b", "conjugate of ab", "permutation", "complex64",
        "complex128", "complex alpha", "beyond the end", "empty group", "grouped_gemm", "scaled_gemm", "quantize",
    }  # fmt: skip
    for index in range(6 * len(SCHEDULE)):
        left -= forms_of(problem(index))
        if not left:
            break
    assert left == set()


def test_nothing_is_drawn_that_is_refused():
    for index in range(4 * len(SCHEDULE)):
        rng = np.random.default_rng((9, index))
        kind = SCHEDULE[index % len(SCHEDULE)]
        drawn = sketch(kind, rng, most=HERE.most, libraries=HERE.libraries)
        problem_of(detailed(drawn, rng, 9, index), HERE.target)


def test_stand_ins_lie_as_layouts_say():
    layout = Layout((1, 0), 2, (3, 0), 10, (0,))
    array = stand_in((4, 5), "int16", layout)
    assert array.strides == (-4, 22)
    assert (array.ctypes.data + 3 * array.strides[0]) % 256 == 10
    assert stand_in((2, 0), "float64", Layout((0, 1))).size == 0
    assert stand_in((3,), "bfloat16", Layout((0,))).dtype == np.dtype("bfloat16")


def test_chunks_hold_all_problems_of_one_template_each():
    found = chunks(1000, 7)
    assert sorted(index for chunk in found for index in chunk) == list(range(1000))
    assert all(len({index % 7 for index in chunk}) == 1 for chunk in found)
    assert [chunk[0] for chunk in found[:7]] == list(range(7))
