"""Products of a matrix and its own transpose: where a problem says so, what is chosen for it, what is kept of it."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest

import gemmule as gm
from gemmule.api.calls.call_cache import CALLS
from gemmule.core.batch_folding import fold_batch
from gemmule.core.dtype import BFLOAT16
from gemmule.core.errors import ArgumentError, NoKernelError
from gemmule.core.layout import StridedMatrix, contiguous
from gemmule.core.problem import GemmProblem, mark_own_transpose, split_batch
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose
from gemmule.dispatch.tuned_file import write_tuned
from gemmule.lab.gemm_operation import named
from gemmule.lab.products import as_matrix, gemm_problem, own_product, random_inputs
from support.fakes.tensors import OUT, FakeTensor, again, fake, gemm, guarded, matmul, state
from support.tuned_entries import HOPPER, chosen, entry, forget, table

__all__ = ["fake", "guarded", "state", "table"]

SPEC = next(spec for spec in REGISTRY if spec.name == "hopper_syrk")


def own(n, k, layout="nt", out="bfloat16"):
    return own_product(gemm_problem(n, n, k, "bfloat16", out, layout))


def test_b_is_a_transposed_in_the_same_memory():
    plain = gemm_problem(64, 64, 32, "bfloat16", "bfloat16", "nt")
    assert not plain.own_transpose
    assert mark_own_transpose(plain, same=True).own_transpose
    assert not mark_own_transpose(mark_own_transpose(plain, same=True), same=False).own_transpose
    for other in ("nn", "tt"):
        assert not mark_own_transpose(gemm_problem(64, 64, 32, "bfloat16", "bfloat16", other), same=True).own_transpose
    wide = dataclasses.replace(plain, b=dataclasses.replace(plain.b, col_stride=40))
    assert not mark_own_transpose(wide, same=True).own_transpose
    # What is read is read once.
    assert mark_own_transpose(plain, same=True).bytes_min == plain.bytes_min - 64 * 32 * 2
    # And of the result the triangle with the diagonal computed, where there is no C.
    assert mark_own_transpose(plain, same=True).flop_min == 2 * 32 * (64 * 65 // 2)
    assert (
        mark_own_transpose(dataclasses.replace(plain, c=plain.d, beta=1), same=True).flop_min
        == plain.flop
        == plain.flop_min
    )


def test_a_batch_that_becomes_rows_is_no_such_product():
    """Rows of one element's line, the same for all of the batch: fold_batch, they are no square matrix any more."""
    row = StridedMatrix(BFLOAT16, 1, 8, 8, 1, (0,))
    one = GemmProblem(1, 1, 8, (5,), row, row.transposed(), None, contiguous(BFLOAT16, 1, 1, (5,)))
    found = mark_own_transpose(fold_batch(one), same=True)
    assert found.m != found.n
    assert not found.own_transpose
    batched = contiguous(BFLOAT16, 16, 8, (2, 3))
    many = GemmProblem(
        16, 16, 8, (2, 3), batched, batched.transposed(), None, contiguous(BFLOAT16, 16, 16, (2, 3))
    )  # fmt: skip
    inner, _, _ = split_batch(mark_own_transpose(fold_batch(many), same=True), 1)
    assert (inner.own_transpose, inner.batch) == (True, (6,))


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        (lambda x, y: (x, x.T), True),
        (lambda x, y: (x.T, x), True),
        (lambda x, y: (x[:, :8], x[:, :8].T), True),
        (lambda x, y: (np.stack([x, y]), None), True),
        (lambda x, y: (x, y.T), False),
        (lambda x, y: (x, x), False),
        (lambda x, y: (x[:16], x[16:].T), False),
        (lambda x, y: (x, x.T.copy()), False),
        (lambda x, y: (x[:16], x.T[:, :20]), False),
    ],
)
def test_arrays_that_are_multiplied(factors, expected, rng):
    pytest.importorskip("cutlass", reason="the kernel compiler is not installed")
    x, y = (rng.standard_normal((32, 32)).astype(ml_dtypes.bfloat16) for _ in range(2))
    a, b = factors(x, y)
    b = a.swapaxes(-1, -2) if b is None else b
    plan = gm.matmul.plan(a, b, executor="vgpu")
    assert plan.problem.own_transpose == expected
    assert (plan.kernel == "hopper_syrk") == expected


def test_what_is_chosen():
    def kernel(problem):
        return choose(problem, HOPPER, multiprocessors=132).spec.name

    for n in (4096, 8192):
        assert kernel(own(n, n)) == kernel(own(n, n, "tn", "float32")) == "hopper_syrk"
        plain = gemm_problem(n, n, n, "bfloat16", "bfloat16", "nt")
        found = choose(plain, HOPPER, multiprocessors=132)
        # Where it cannot be taken it is not even named.
        assert found.spec.name == "hopper_gemm"
        assert "hopper_syrk" not in dict(found.refused)
        assert choose(own(n, n), HOPPER, multiprocessors=132).predicted_us < 0.7 * found.predicted_us
    # Few tiles are not worth it, and C is no part of a symmetric result.
    small = choose(own(128, 4096), HOPPER, multiprocessors=132)
    assert small.spec.name == "hopper_gemm"
    assert dict(small.refused)["hopper_syrk"] == "supported, but hopper_gemm has a lower predicted time"
    with_c = dataclasses.replace(own(4096, 4096), c=contiguous(BFLOAT16, 4096, 4096), beta=1)
    assert kernel(with_c) == "hopper_gemm"
    with pytest.raises(NoKernelError, match="not A transposed"):
        choose(gemm_problem(64, 64, 64, "bfloat16", "bfloat16", "nt"), HOPPER, [SPEC])


def test_tuned_entries_of_plain_products_do_not_hide_it(table):
    plain = gemm_problem(4096, 4096, 4096, "bfloat16", "bfloat16", "nt")
    plain_choice = chosen(plain)
    write_tuned(table, [entry(plain_choice.config, problem=plain, us=170.0)])
    forget()
    assert chosen(plain).chosen_by == "tuned"
    assert chosen(own(4096, 4096)).spec is SPEC
    # Faster than what is predicted: it is measured.
    write_tuned(table, [entry(plain_choice.config, problem=plain, us=1.0)])
    forget()
    found = chosen(own(4096, 4096))
    assert (found.spec.name, found.chosen_by) == ("hopper_gemm", "tuned")


def test_what_is_kept_of_one_memory_is_not_taken_for_two(guarded):
    """Views are made anew at every call, and may have the identities of those before."""
    x, y = FakeTensor(0x1000), FakeTensor(0x2000)
    turned, other = FakeTensor(0x1000, stride=(1, 4)), FakeTensor(0x2000, stride=(1, 4))
    for out in (OUT, None):
        before = len(guarded.planned)
        assert [again(x, turned, out)[1] for _ in range(4)] == [False, False, True, True]
        assert [again(x, other, out)[1] for _ in range(4)] == [False, False, True, True]
        assert [again(y, other, out)[1] for _ in range(3)] == [False, True, True]
        # One plan for the one, and one for the other.
        assert len(guarded.planned) == before + 2
        # The very same tensors, of other memory.
        turned.address = 0x2000
        assert not again(x, turned, out)[1]
        other.address = 0x1000
        assert not again(x, other, out)[1]
        turned.address, other.address = 0x1000, 0x2000
        assert [again(x, turned, out)[1] for _ in range(2)] == [False, True]
        assert len(guarded.planned) == before + 2
    kinds = {(kind[0], addresses[0] == addresses[1]) for kind, addresses, _ in guarded.queued}
    # What was planned for the one never ran for the other.
    assert len(kinds) == len({number for number, _ in kinds}) == 4


def test_with_C_too(guarded):
    x, c = FakeTensor(0x1000), FakeTensor(0x5000)
    turned = FakeTensor(0x1000, stride=(1, 4))
    for _ in range(4):
        gemm(x, turned, c, beta=1.0, out=OUT)
    found = CALLS.by_identity.get((id(x), id(turned), id(OUT), 1.0, 1.0, None, id(c), id(None)))
    assert found is not None
    assert found(x, turned, OUT, c, None) is OUT
    turned.address = 0x2000
    assert found(x, turned, OUT, c, None) is None
    matmul(x, turned, OUT)


@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_inputs_and_records_of_a_measurement(layout):
    problem = own(24, 16, layout)
    inputs = random_inputs(problem, 3)
    a, b = as_matrix(inputs["a"], problem.a), as_matrix(inputs["b"], problem.b)
    np.testing.assert_array_equal(a.T, b)
    assert named(problem)["own_transpose"]
    assert "own_transpose" not in named(mark_own_transpose(problem, same=False))


def test_products_that_are_no_such():
    for n, layout in ((24, "nn"), (32, "nt")):
        with pytest.raises(ArgumentError, match="M = N and the layout is nt or tn"):
            own_product(gemm_problem(24, n, 16, "bfloat16", "bfloat16", layout))
