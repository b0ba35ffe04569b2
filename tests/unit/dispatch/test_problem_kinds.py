"""Kinds of products: every kernel takes all products of a kind in some config, or none."""

import dataclasses
import itertools

import pytest

from gemmule.core.arch import Arch
from gemmule.core.dtype import Precision, dtype_named
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, mark_own_transpose
from gemmule.dispatch.choices.choice_cache import clear_choices
from gemmule.dispatch.registry import kernels_of
from gemmule.dispatch.select import choose

HOPPER = Arch(9, 0, True)
#: Types of A, B and D, and precisions.
TYPES = [
    ("bfloat16", "bfloat16", "bfloat16", "ieee"),
    ("float16", "float16", "float8_e4m3fn", "ieee"),
    ("float32", "float32", "float32", "ieee"),
    ("float32", "float32", "float32", "tf32"),
    ("float32", "float32", "float32", "bf16x6"),
    ("float64", "float64", "float64", "ieee"),
    ("int8", "int8", "int32", "ieee"),
    ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float8"),
    ("bfloat16", "float8_e4m3fn", "bfloat16", "ieee"),
    ("complex64", "complex64", "complex64", "ieee"),
    ("complex128", "complex128", "complex128", "ieee"),
]


#: Extents of products that are changed: multiples of 16 bytes, and others.
EXTENTS = [(64, 128, 192), (61, 127, 193)]
REPLACED = dataclasses.replace


def matrix(dtype, rows, cols, batch, in_rows):
    """Return a row- or column-major matrix without padding."""
    strides = (cols, 1) if in_rows else (1, rows)
    return StridedMatrix(dtype, rows, cols, *strides, (rows * cols,) * len(batch), 16)


def product(types, extents, batch, in_rows):
    """Return a product, of whose A, B and D `in_rows` says which lie in rows."""
    (m, n, k), (a, b, d) = extents, map(dtype_named, types[:3])
    first, second, result = (
        matrix(dtype, *shape, batch, rows)
        for dtype, shape, rows in zip((a, b, d), ((m, k), (k, n), (m, n)), in_rows, strict=True)
    )
    return GemmProblem(m, n, k, batch, first, second, None, result, precision=Precision.parse(types[3]))


def changed(problem):
    """Yield products that differ from another in one thing."""
    for name, one in problem.operands().items():
        lead = "row_stride" if one.col_stride == 1 else "col_stride"
        stride = getattr(one, lead)
        for change in (
            {"alignment": one.dtype.itemsize},
            {"alignment": 128},
            {"conj": True},
            {"padded": True},
            *({lead: value} for value in (stride + 1, stride + 128, 1, 0, -stride, 1 << 42)),
            *({"batch_strides": (step,)} for step in (0, 1, stride * 64) if problem.batch),
        ):
            yield REPLACED(problem, **{name: REPLACED(one, **change)})
    for change in ({"alpha": 0}, *({"precision": one} for one in Precision)):
        yield REPLACED(problem, **change)


def resized(problem):
    """Yield products of other extents, whose lines begin where those of a product do."""
    for name, extent in itertools.product("mnk", (0, 1, 2, 16, 17, 65535, 140000)):
        sizes = {one: extent if one == name else getattr(problem, one) for one in "mnk"}
        m, n, k = sizes.values()
        a, b = REPLACED(problem.a, rows=m, cols=k), REPLACED(problem.b, rows=k, cols=n)
        yield REPLACED(problem, **sizes, a=a, b=b, d=REPLACED(problem.d, rows=m, cols=n))
    m, k = problem.m, problem.k
    square = REPLACED(problem, n=m, b=REPLACED(problem.a.transposed(), dtype=problem.b.dtype))
    square = REPLACED(square, d=matrix(problem.d.dtype, m, m, problem.batch, in_rows=True))
    yield square
    yield mark_own_transpose(square, same=True)


@pytest.mark.parametrize("types", TYPES, ids=lambda types: f"{types[0]}-{types[3]}")
def test_kernels_take_all_products_of_a_kind_or_none(types):
    layouts = [(True, True, True), (True, False, True), (False, True, False)]
    for extents, batch, in_rows in itertools.product(EXTENTS, ((), (8,)), layouts):
        first = product(types, extents, batch, in_rows)
        for spec in kernels_of("gemm"):
            # Of other types, one reason precedes all.
            if spec.refuses is None or (spec.refuses_types is not None and spec.refuses_types(first.types, HOPPER)):
                continue
            for problem in (first, *changed(first), *resized(first)) if spec.batch_dims or not batch else ():
                refused = spec.refuses(problem, HOPPER) is not None
                assert spec.is_refused(problem, HOPPER) == refused, (spec.name, problem)
                able = (spec.own_why_not(problem, HOPPER, config) is None for config in spec.configs)
                assert spec.takes(problem, HOPPER) == (not refused and any(able)), (spec.name, problem)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("alignments", [(4, 16, 16), (16, 4, 16), (4, 16, 4), (16, 16, 4)], ids=str)
def test_larger_operand_of_tf32_makes_a_kind(alignments, order):
    """It may be kept as it lies, so that what the prepared product is depends on which is larger."""
    clear_choices()
    for m, n in ((8192, 4096), (4096, 8192))[::order]:
        one = product(("float32", "float32", "float32", "tf32"), (m, n, 4096), (), (False, True, True))
        a, b, d = (REPLACED(x, alignment=y) for x, y in zip((one.a, one.b, one.d), alignments, strict=True))
        one = REPLACED(one, a=a, b=b, d=d)
        for spec in kernels_of("gemm"):
            if spec.refuses is not None and not (spec.refuses_types and spec.refuses_types(one.types, HOPPER)):
                assert spec.is_refused(one, HOPPER) == (spec.refuses(one, HOPPER) is not None), spec.name
        # Both operands are MN-major: nothing is faster than to transpose one or both.
        choice = choose(one, HOPPER, multiprocessors=132, chip="NVIDIA H100 80GB HBM3", tuned=False)
        assert choice.spec.name == "hopper_gemm_k_major"
        for step in choice.spec.next_kernel(one, choice.config).chain():
            assert step.spec.refuses(step.problem, HOPPER) is None
