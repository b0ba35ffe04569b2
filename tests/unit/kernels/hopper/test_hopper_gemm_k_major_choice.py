"""Operands that do not lie along K: which are transposed, where the product finds them, and when that pays."""

from __future__ import annotations

import dataclasses
import math
import random

import numpy as np
import pytest

from gemmule.core.arch import Arch
from gemmule.core.dtype import Precision
from gemmule.core.gpu_rates import H200_RATES
from gemmule.core.launch import TensorParam
from gemmule.core.problem import TransposeProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose
from gemmule.kernels.hopper.gemm import cost as gemm_cost
from gemmule.kernels.hopper.gemm import spec as gemm_spec
from gemmule.kernels.hopper.gemm.cost import costs
from gemmule.kernels.hopper.gemm.spec import SPEC as HOPPER_GEMM
from gemmule.kernels.hopper.gemm.spec import costs_with_k_major_copies
from gemmule.kernels.hopper.gemm_k_major.spec import SPEC
from gemmule.kernels.hopper.next_kernel import choose_next
from gemmule.lab.products import gemm_problem

HOPPER = Arch.parse("sm_90a")


def product(shape, dtype="int8", out="int32", layout="nn", precision=Precision.IEEE):
    return dataclasses.replace(gemm_problem(*shape, dtype, out, layout), precision=precision)


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
@pytest.mark.parametrize(
    ("dtype", "out", "precision"),
    [
        ("int8", "int32", Precision.IEEE),
        ("float8_e5m2", "bfloat16", Precision.FLOAT8),
    ],
)
def test_each_operand_that_does_not_lie_along_k_is_transposed(layout, dtype, out, precision):
    problem = product((2048, 1024, 4096), dtype, out, layout, precision)
    choice = choose(problem, HOPPER, multiprocessors=132)
    assert choice.spec is SPEC
    turned = [name for name, kind, along in zip("ab", layout, "nt", strict=True) if kind != along]
    extents = {"a": 2048, "b": 1024}
    item = problem.a.dtype.itemsize
    assert choice.workspaces(problem) == {f"{name} along k": extents[name] * 4096 * item for name in turned}
    launch = SPEC.launch(problem, choice.config)
    assert [one.operand for one in launch.params] == [turned[0], f"{turned[0]} along k"]
    *transposes, last = choice.next_kernel(problem).chain()
    assert [dict(one.operands) for one in transposes] == [{"a": name, "d": f"{name} along k"} for name in turned[1:]]
    assert all(isinstance(one.problem, TransposeProblem) for one in transposes)
    assert last.spec.name == "hopper_gemm"
    assert last.problem.layout == "nt"
    assert {name: last.operands[name] for name in "abd"} == {
        **{name: f"{name} along k" if name in turned else name for name in "ab"}, "d": "d",
    }  # fmt: skip


def tf32(shape, layout):
    return product(shape, "float32", "float32", layout, Precision.TF32)


@pytest.mark.parametrize(("shape", "turned"), [((2048, 1024, 4096), "b"), ((1024, 2048, 4096), "a")])
def test_of_two_tf32_operands_across_k_the_smaller_is_transposed(shape, turned):
    problem = tf32(shape, "tn")
    choice = choose(problem, HOPPER, multiprocessors=132)
    assert choice.spec is SPEC
    assert choice.workspaces(problem) == {f"{turned} along k": 1024 * 4096 * 4}
    (last,) = choice.next_kernel(problem).chain()
    assert last.spec.name == "hopper_gemm"
    assert {"a_major": "m", "b_major": "k"}.items() <= dict(last.spec.signature(last.problem, last.config)).items()


@pytest.mark.parametrize(
    ("m", "n"), [(2048, 1026), (2050, 1024)], ids=["D that TMA does not store", "the larger one in odd lines"]
)
def test_two_tf32_operands_are_transposed_where_wgmma_cannot_have_one_from_registers(m, n):
    problem = tf32((m, n, 4096), "tn")
    assert set(Choice(SPEC, SPEC.default).workspaces(problem)) == {"a along k", "b along k"}


@pytest.mark.parametrize(
    ("shape", "layout", "taken"),
    [((636, 104, 1804), "tt", "hopper_gemm"), ((1692, 220, 5760), "nn", "hopper_gemm_k_major")],
)
def test_one_tf32_operand_across_k_is_transposed_where_that_is_faster(shape, layout, taken):
    # As measured: 7.6 and 9.2 us by both, and 38 and 31 us.
    assert choose(tf32(shape, layout), HOPPER, multiprocessors=132).spec.name == taken


def test_lines_along_k_begin_at_multiples_of_128_bytes():
    problem = product((512, 512, 1008))
    (last,) = Choice(SPEC, SPEC.default).next_kernel(problem).chain()
    assert last.problem.b.col_stride == 1024
    assert Choice(SPEC, SPEC.default).workspaces(problem) == {"b along k": 512 * 1024}


def batched(step):
    problem = product((512, 512, 1024))
    steps = {"a": 512 * 1024, "b": step, "d": 512 * 512}
    operands = {name: dataclasses.replace(x, batch_strides=(steps[name],)) for name, x in problem.operands().items()}
    return problem.with_operands((7,), operands)


def test_every_matrix_of_a_batch_is_transposed():
    problem = batched(512 * 1024)
    choice = Choice(SPEC, SPEC.default)
    assert SPEC.why_not(problem, HOPPER, SPEC.default) is None
    assert choice.workspaces(problem) == {"b along k": 7 * 512 * 1024}
    (last,) = choice.next_kernel(problem).chain()
    assert last.problem.b.batch_strides == (512 * 1024,)


def test_one_matrix_for_all_of_a_batch_is_transposed_once():
    problem = batched(0)
    choice = Choice(SPEC, SPEC.default)
    assert choice.workspaces(problem) == {"b along k": 512 * 1024}
    launches, _ = choice.launches(problem)
    assert launches[0].launch.grid[2] == 1
    (last,) = choice.next_kernel(problem).chain()
    assert (last.problem.batch, last.problem.b.batch_strides) == ((7,), (0,))


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (product((512, 512, 512), layout="nt"), "A and B are K-major"),
        (product((512, 512, 512), "float32", "float32"), "precision is 'ieee'; this kernel is for int8"),
        (product((512, 512, 512), "bfloat16", "bfloat16"), "A is bfloat16"),
        (product((512, 511, 512)), "no kernel multiplies the prepared operands"),
        (product((512, 0, 512)), "there is nothing to multiply"),
    ],
)
def test_what_it_refuses(problem, reason):
    assert reason in SPEC.why_not(problem, HOPPER, SPEC.default)


@pytest.mark.parametrize(
    ("layout", "transposed", "packed"), [("nn", ["b"], ["a"]), ("tt", ["a"], ["b"]), ("tn", ["a", "b"], [])]
)
def test_a_k_major_operand_that_tma_cannot_load_is_repacked(layout, transposed, packed):
    problem = product((2047, 1023, 1001), "float32", "float32", layout, Precision.TF32)
    choice = choose(problem, HOPPER, multiprocessors=132)
    assert choice.spec is SPEC
    assert set(choice.workspaces(problem)) == {f"{x} along k" for x in transposed} | {f"packed {x}" for x in packed}
    *copies, last = choice.next_kernel(problem).chain()
    assert [one.spec.name for one in copies] == ["hopper_gemm_repacked"] * len(packed) + ["transpose_tiled"] * (
        len(transposed) - 1
    )
    assert last.spec.name == "hopper_gemm_unaligned"
    assert {last.operands[x] for x in "ab"} == set(choice.workspaces(problem))
    launches, _ = choice.launches(problem)
    launched = {one.operand for step in launches for one in step.launch.params if isinstance(one, TensorParam)}
    assert launched >= {f"packed {x}" for x in packed}


def test_small_products_do_not_pay_for_it():
    choice = choose(product((64, 64, 64)), HOPPER, multiprocessors=132)
    assert choice.spec.name == "mma_sync_gemm"
    assert dict(choice.refused)["hopper_gemm_k_major"] == "supported, but mma_sync_gemm has a lower predicted time"


def test_the_cache_knows_where_its_code_comes_from():
    transpose = next(spec for spec in REGISTRY if spec.name == "transpose_tiled")
    assert SPEC.package == transpose.package


def random_tf32_products(count):
    generator = random.Random(4)
    for _ in range(count):
        shape = [4 * round(2 ** generator.uniform(4, 11)) for _ in range(3)]
        yield tf32(shape, generator.choice(["nn", "tt"]))


def test_both_ways_of_a_tf32_product_are_predicted_at_once_as_each_is_alone():
    configs = HOPPER_GEMM.configs_on(H200_RATES)
    for problem in random_tf32_products(20):
        prepared = Choice(SPEC, SPEC.default).next_kernel(problem).problem
        alone = [costs(one, configs, H200_RATES) for one in (problem, prepared)]
        together = costs_with_k_major_copies(problem, H200_RATES)
        for one, other in zip(alone, together, strict=True):
            # Behind the configs that lead, times are bounds.
            assert min(other) == pytest.approx(min(one), rel=1e-4)
            assert np.argmin(other) == np.argmin(one)


def test_a_tf32_operand_whose_transpose_cannot_pay_is_multiplied_as_it_is_without_predicting_the_transpose():
    gpu, yielding = H200_RATES, 0
    for problem in random_tf32_products(120):
        direct = min(HOPPER_GEMM.costs(problem, HOPPER_GEMM.configs_on(gpu), gpu))
        transposed = min(SPEC.costs(problem, SPEC.configs_on(gpu), gpu))
        if (other := SPEC.defers_to(problem, gpu)) is not None:
            assert other == "hopper_gemm"
            assert direct < transposed
            yielding += 1
    assert 60 < yielding < 120, "the rule saves few predictions, or lets no transpose compete"


def test_one_choice_of_a_tf32_product_predicts_hopper_gemm_once(monkeypatch):
    """Of operands as they are and as K-major copies at once; the kernels that ask again find both."""
    predicted, predict = [], gemm_cost.costs_of_each
    for module in (gemm_cost, gemm_spec):
        monkeypatch.setattr(module, "costs_of_each", lambda *given: predicted.append(given) or predict(*given))
    # One yields to the product with an operand from registers, for the other a transpose is predicted.
    for shape in ((516, 1028, 1540), (8196, 8196, 8196)):
        predicted.clear()
        choose(tf32(shape, "nn"), Arch.parse("sm_90a"), multiprocessors=132)
        assert len(predicted) == 1


def test_costs_of_two_problems_are_cached_by_problem_configs_and_rates():
    calls = []
    costs = dataclasses.replace(HOPPER_GEMM, costs=lambda *given: calls.append(given) or [float(len(calls))]).costs
    first, second, third = (tf32((64, 64, 64), "nn") for _ in range(3))
    configs, rates = HOPPER_GEMM.configs, (H200_RATES, dataclasses.replace(H200_RATES))
    assert [costs(one, configs, rates[0]) for one in (first, second, first, second)] == [[1.0], [2.0], [1.0], [2.0]]
    # Of others nothing is known; equal ones are looked at as such only where they are the same object.
    assert costs.known(second, configs, rates[1]) is None
    assert costs.known(second, configs[:1], rates[0]) is None
    assert costs.known(third, configs, rates[0]) is None
    assert costs(second, configs, rates[1]) == [3.0]
    assert costs.known(first, configs, rates[0]) is None
    assert costs.known(second, configs, rates[0]) == ([2.0], 0)


def test_prepared_products_without_a_finite_cost_are_left_to_a_later_kernel():
    infinite = dataclasses.replace(HOPPER_GEMM, costs=lambda _problem, configs, _gpu: [math.inf] * len(configs))
    problem = tf32((512, 512, 512), "nt")
    spec, _, cost = choose_next(problem, (infinite, HOPPER_GEMM), H200_RATES)
    assert spec is HOPPER_GEMM
    assert cost == HOPPER_GEMM.least_cost(problem, H200_RATES)
    # Without another one that takes them, it computes them.
    spec, _, cost = choose_next(problem, (infinite,), H200_RATES)
    assert (spec, cost) == (infinite, math.inf)
