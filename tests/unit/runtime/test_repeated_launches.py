"""A problem's launches, decided once: which operand's address each gets, with the driver left out."""

from __future__ import annotations

import itertools

import pytest

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT32
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, contiguous_gemm
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.runtime import execute, repeated
from support.fakes.launches import launched

__all__ = ["launched"]

ARCH = Arch.parse("sm_90a")
SPECS = {spec.name: spec for spec in REGISTRY}


def queue_of(problem, name, operands=("a", "b", "d"), addresses=(0x1000, 0x2000, 0x3000)):
    spec = SPECS[name]
    config = next(config for config in spec.configs if spec.why_not(problem, ARCH, config) is None)
    return repeated.repeated(problem, Choice(spec, config), operands, addresses, 0)


def test_one_launch(launched):
    queue = queue_of(contiguous_gemm(64, 64, 64, ("float32",) * 3), "g04_register_tile")
    assert queue.first == {"a": 0x1000, "b": 0x2000, "d": 0x3000}
    queue((1, 2, 3), 9)
    assert launched.made == [("g04_register_tile", {"a": 1, "b": 2, "d": 3}, 9)]
    assert not launched.memory


def test_nothing_to_launch(launched):
    assert queue_of(contiguous_gemm(0, 64, 64, ("float32",) * 3), "gemm_reference") is None


@pytest.mark.parametrize("b_type", ["float8_e4m3fn", "bfloat16"])
def test_nothing_to_widen_is_not_launched_and_the_result_is_written(launched, b_type):
    problem = contiguous_gemm(16, 48, 0, ("float8_e4m3fn", b_type, "bfloat16"))
    queue_of(problem, "hopper_gemm_upcast")((1, 2, 3), 9)
    ((kernel, places, stream),) = launched.made
    assert (kernel, places["d"], stream) == ("mma_sync_small", 3, 9)
    # Not only where the launches are kept.
    spec = SPECS["hopper_gemm_upcast"]
    (step,) = execute.launches_of(problem, Choice(spec, spec.default), 0, ("a", "b", "d")).steps()
    assert (step.kernel.name, step.places["d"]) == ("mma_sync_small", ("d", 0))


def test_operands_that_are_packed_first(launched):
    m, n, k = 131, 99, 77
    problem = contiguous_gemm(m, n, k, ("bfloat16",) * 3)
    queue = queue_of(problem, "hopper_gemm_repacked")
    product = SPECS["hopper_gemm_repacked"].next_kernel(problem, SPECS["hopper_gemm_repacked"].default)
    for number in range(1, 3):
        queue((0x10000 * number, 0x20000 * number, 0x30000 * number), number)
        memory = launched.memory[-1]
        assert (memory.stream, memory.open, len(launched.memory)) == (number, False, number)
        (pack, packing, _), (then, products, _) = launched.made[-2:]
        assert (pack, then) == ("hopper_gemm_repacked", "hopper_gemm_unaligned")
        assert (packing["a"], packing["b"], products["d"]) == (0x10000 * number, 0x20000 * number, 0x30000 * number)
        inside = {
            name: products[operand] - memory.address
            for operand, name in product.operands.items()
            if name in product.workspaces
        }
        ranges = sorted((inside[name], inside[name] + size) for name, size in product.workspaces.items())
        assert len(ranges) == len(product.workspaces) >= 1
        assert all(begin % 256 == 0 for begin, _ in ranges)
        assert ranges[0][0] >= 0
        assert ranges[-1][1] <= memory.nbytes
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ranges))
        # Both launches name a workspace alike.
        for operand, name in product.operands.items():
            if name in product.workspaces:
                assert packing[name] == products[operand]


def test_a_batch_that_takes_several_launches(launched):
    def matrix(rows, cols, strides):
        return StridedMatrix(FLOAT32, rows, cols, cols, 1, strides)

    problem = GemmProblem(
        m=8, n=8, k=8, batch=(2, 3, 4),
        a=matrix(8, 8, (10_000, 1_000, 0)), b=matrix(8, 8, (0, 100, 7_000)), d=matrix(8, 8, (768, 256, 64)), c=None,
    )  # fmt: skip
    spec = SPECS["gemm_reference"]
    queue = queue_of(problem, "gemm_reference")
    queue((1 << 20, 2 << 20, 3 << 20), 5)
    assert {kernel for kernel, *_ in launched.made} == {"gemm_reference"}
    assert len(launched.made) > 1
    # As a launch at a time would be prepared.
    expected = [
        {name: {"a": 1 << 20, "b": 2 << 20, "d": 3 << 20}[of] + beyond for name, (of, beyond) in step.places.items()}
        for step in execute.launches_of(problem, Choice(spec, spec.default), 0, ("a", "b", "d")).steps()
    ]
    assert [named for _, named, _ in launched.made] == expected
    begins = {(named["a"] - (1 << 20), named["b"] - (2 << 20), named["d"] - (3 << 20)) for named in expected}
    assert len(begins) == len(expected)


def test_a_batch_of_too_many_launches_is_not_kept(launched, monkeypatch):
    monkeypatch.setattr(repeated, "MAX_REPEATED_LAUNCHES", 1)
    problem = contiguous_gemm(131, 99, 77, (BFLOAT16.name,) * 3)
    assert queue_of(problem, "hopper_gemm_repacked") is None
