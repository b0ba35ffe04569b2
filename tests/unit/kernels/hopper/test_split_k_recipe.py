"""What a launch with split-K asks for, who gets it by itself, and records of configs that had stream-K."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.core.arch import Arch
from gemmule.core.chips import chip_named
from gemmule.core.epilogue import Epilogue, Expression
from gemmule.core.errors import ArgumentError, UnsupportedError
from gemmule.core.launch import TensorParam
from gemmule.core.spec import Choice
from gemmule.dispatch.kernel_names import parse_kernels
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.spec import SPEC
from gemmule.lab.explain import explain
from gemmule.lab.products import gemm_problem

HOPPER = Arch.parse("sm_90a")
PLAIN = HopperGemmConfig(cluster_m=1)
SPLIT = dataclasses.replace(PLAIN, split_k=1)
#: Two tiles of 110 k-tiles, for 66 clusters each.
PROBLEM = gemm_problem(128, 512, 7040, "bfloat16", "bfloat16", "nn")


@pytest.mark.parametrize("pingpong", [0, 1])
def test_a_slot_and_flags_for_every_part_but_the_last(pingpong):
    config = dataclasses.replace(SPLIT, tile_n=128, pingpong=pingpong)
    launch = SPEC.launch(PROBLEM, config)
    clusters, parts, _ = launch.grid
    assert clusters == 4 < parts * clusters <= 132
    sums, flags = launch.workspaces
    slots = clusters * (parts - 1)
    assert (sums.nbytes, sums.zeroed) == (slots * 128 * 128 * 4, False)
    assert (flags.nbytes, flags.zeroed) == (slots * (1 if pingpong else 2) * 8, False)
    assert launch.params[-2:] == (
        TensorParam(sums.name, (sums.nbytes // 4,), ()), TensorParam(flags.name, (flags.nbytes // 8,), ()),
    )  # fmt: skip
    assert not SPEC.launch(PROBLEM, PLAIN).workspaces


def test_nothing_comes_between_two_launches():
    assert SPEC.launch(PROBLEM, PLAIN).overlaps
    assert SPEC.launch(PROBLEM, SPLIT).overlaps


def test_what_cannot_be():
    with pytest.raises(ArgumentError, match="by split_k, not by both"):
        HopperGemmConfig(cluster_m=1, cluster_k=2, stages=2, split_k=1)
    with pytest.raises(ArgumentError, match="split_k must be 0 or 1"):
        dataclasses.replace(PLAIN, split_k=2)
    # More k-tiles than 32-bit numbers count.
    long = dataclasses.replace(gemm_problem(8, 8, 64, "bfloat16", "bfloat16", "nt"), k=2**30)
    long = dataclasses.replace(
        long, a=dataclasses.replace(long.a, cols=2**30, row_stride=2**30),
        b=dataclasses.replace(long.b, rows=2**30, col_stride=2**30),
    )  # fmt: skip
    assert SPEC.why_not(long, HOPPER, PLAIN) is None
    assert "numbers of split_k=1" in SPEC.why_not(long, HOPPER, SPLIT)


def test_a_measurement_names_it():
    word = "hopper_gemm[tile_n=192,pingpong=1,cluster_m=1,split_k=1]"
    (choice,) = parse_kernels([word], PROBLEM, HOPPER)
    assert choice.config == HopperGemmConfig(tile_n=192, pingpong=1, cluster_m=1, split_k=1)
    with pytest.raises(ArgumentError, match="tile_m must be a multiple of 128"):
        parse_kernels(["hopper_gemm[tile_m=96,split_k=1]"], PROBLEM, HOPPER)
    with pytest.raises(ArgumentError, match="has no config"):
        parse_kernels(["hopper_gemm[split=1]"], PROBLEM, HOPPER)


def test_records_of_configs_with_and_without_former_fields():
    """Those of stream-K, which configs no longer have, are of no config; without it they are of the same as before."""
    fields = PLAIN.as_dict()
    assert PLAIN.is_recorded(fields)
    assert not SPLIT.is_recorded(fields)
    assert PLAIN.is_recorded(fields | {"stream_k": 0})
    assert HopperGemmConfig.of_record(fields | {"stream_k": 0}) == PLAIN
    assert not PLAIN.is_recorded(fields | {"stream_k": 1})
    with pytest.raises(TypeError, match="stream_k"):
        HopperGemmConfig.of_record(fields | {"stream_k": 1})
    with pytest.raises(TypeError, match="tile_mm"):
        HopperGemmConfig.of_record(fields | {"tile_mm": 0})
    del fields["split_k"]
    assert PLAIN.is_recorded(fields)
    assert not SPLIT.is_recorded(fields)
    assert not PLAIN.is_recorded(fields | {"tile_n": 128})


def test_gated_epilogues_are_split_too():
    gated = Epilogue(Expression(("acc", "up", "mul 0 1")), second=PROBLEM.b)
    problem = dataclasses.replace(PROBLEM, c=None, beta=0, epilogue=gated)
    for config in (PLAIN, SPLIT):
        assert SPEC.why_not(problem, HOPPER, config) is None
    assert SPEC.launch(problem, SPLIT).grid[1] > 1


def test_tiles_that_are_shared_out_cannot_be_sampled():
    choice = Choice(SPEC, SPLIT)
    with pytest.raises(UnsupportedError, match=r"explain .*split_k=0.*which does not"):
        explain(PROBLEM, choice, chip_named("h100"), None)
