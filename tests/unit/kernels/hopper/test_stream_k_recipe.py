"""What a launch with stream-K asks for, and who gets it by itself (nobody yet)."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.core.arch import Arch
from gemmule.core.chips import chip_named
from gemmule.core.epilogue import Epilogue, Expression
from gemmule.core.errors import ArgumentError, UnsupportedError
from gemmule.core.gpu_rates import H200_RATES
from gemmule.core.launch import TensorParam
from gemmule.core.spec import Choice
from gemmule.dispatch.kernel_names import parse_kernels
from gemmule.dispatch.select import choose
from gemmule.kernels.hopper.gemm import config as configs
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig, search_space
from gemmule.kernels.hopper.gemm.spec import SPEC
from gemmule.lab.explain import explain
from gemmule.lab.products import gemm_problem

HOPPER = Arch.parse("sm_90a")
PLAIN = HopperGemmConfig(cluster_m=1)
SHARED = dataclasses.replace(PLAIN, stream_k=1)
PROBLEM = gemm_problem(936, 7256, 5640, "bfloat16", "bfloat16", "nn")


@pytest.mark.parametrize("pingpong", [0, 1])
def test_a_slot_and_flags_for_every_cta(pingpong):
    config = dataclasses.replace(SHARED, tile_n=192, pingpong=pingpong)
    launch = SPEC.launch(PROBLEM, config)
    assert launch.grid == (132, 1, 1)
    sums, flags = launch.workspaces
    assert (sums.nbytes, sums.zeroed) == (132 * 128 * 192 * 4, False)
    assert (flags.nbytes, flags.zeroed) == (132 * (1 if pingpong else 2) * 8, False)
    assert launch.params[-2:] == (
        TensorParam(sums.name, (sums.nbytes // 4,), ()), TensorParam(flags.name, (flags.nbytes // 8,), ()),
    )  # fmt: skip
    assert not SPEC.launch(PROBLEM, PLAIN).workspaces


def test_nothing_comes_between_two_launches():
    square = gemm_problem(2048, 2048, 2048, "bfloat16", "bfloat16", "nn")
    assert SPEC.launch(square, PLAIN).overlaps
    assert SPEC.launch(square, SHARED).overlaps


def test_every_share_has_a_slice():
    few = gemm_problem(128, 256, 520, "bfloat16", "bfloat16", "nn")
    assert SPEC.launch(few, SHARED).grid == (9, 1, 1)
    assert SPEC.launch(few, PLAIN).grid == (1, 1, 1)


def test_what_cannot_be():
    with pytest.raises(ArgumentError, match="by stream_k or split_k, not by both"):
        HopperGemmConfig(cluster_m=1, cluster_k=2, stages=2, stream_k=1)
    with pytest.raises(ArgumentError, match="stream_k must be 0 or 1"):
        dataclasses.replace(PLAIN, stream_k=2)
    # More slices than 32-bit numbers count.
    long = dataclasses.replace(gemm_problem(8, 8, 64, "bfloat16", "bfloat16", "nt"), k=2**30)
    long = dataclasses.replace(
        long, a=dataclasses.replace(long.a, cols=2**30, row_stride=2**30),
        b=dataclasses.replace(long.b, rows=2**30, col_stride=2**30),
    )  # fmt: skip
    assert SPEC.why_not(long, HOPPER, PLAIN) is None
    assert "more k-tiles" in SPEC.why_not(long, HOPPER, SHARED)
    assert "numbers of split_k=1" in SPEC.why_not(long, HOPPER, dataclasses.replace(PLAIN, split_k=1))


def test_nobody_gets_it_unasked(monkeypatch):
    assert not any(config.stream_k for config in (*SPEC.configs, *SPEC.extra_configs()))
    for problem in (PROBLEM, gemm_problem(512, 576, 7168, "bfloat16", "bfloat16", "nn")):
        assert not choose(problem, HOPPER, multiprocessors=132).config.stream_k
    monkeypatch.setattr(configs, "SEARCH_STREAM_K", True)
    monkeypatch.setattr(configs, "_TILES_N", (64, 128))
    both = search_space()
    assert {config.stream_k for config in both} == {0, 1}
    assert len(set(both)) == len(both)
    assert not any(config.stream_k and config.cluster_k > 1 for config in both)


def test_a_measurement_names_it():
    word = "hopper_gemm[tile_n=192,pingpong=1,cluster_m=1,stream_k=1]"
    (choice,) = parse_kernels([word], PROBLEM, HOPPER)
    assert choice.config == HopperGemmConfig(tile_n=192, pingpong=1, cluster_m=1, stream_k=1)
    with pytest.raises(ArgumentError, match="tile_m must be a multiple of 128"):
        parse_kernels(["hopper_gemm[tile_m=96,stream_k=1]"], PROBLEM, HOPPER)
    with pytest.raises(ArgumentError, match="has no config"):
        parse_kernels(["hopper_gemm[stream=1]"], PROBLEM, HOPPER)


def test_the_predicted_gain():
    """Of a wave that is filled a little much is saved, of one that is full nothing."""

    def gain(m, n, k):
        plain, shared = SPEC.costs(gemm_problem(m, n, k, "bfloat16", "bfloat16", "nn"), [PLAIN, SHARED], H200_RATES)
        return plain - shared

    # 133 tiles on 132 multiprocessors, and 132.
    assert gain(128 * 19, 256 * 7, 16384) > 50
    assert gain(128 * 12, 256 * 11, 16384) == 0
    # So few slices that sums cost more than they save.
    assert gain(128 * 19, 256 * 7, 512) < 0


def test_older_records_do_not_name_it():
    fields = PLAIN.as_dict()
    assert PLAIN.is_recorded(fields)
    assert not SHARED.is_recorded(fields)
    del fields["stream_k"]
    assert PLAIN.is_recorded(fields)
    assert not SHARED.is_recorded(fields)
    assert not PLAIN.is_recorded(fields | {"tile_n": 128})


def test_gated_epilogues_are_refused():
    gated = Epilogue(Expression(("acc", "up", "mul 0 1")), second=PROBLEM.b)
    problem = dataclasses.replace(PROBLEM, c=None, beta=0, epilogue=gated)
    assert SPEC.why_not(problem, HOPPER, PLAIN) is None
    assert "no gated epilogue" in SPEC.why_not(problem, HOPPER, SHARED)


def test_tiles_that_are_shared_out_cannot_be_sampled():
    choice = Choice(SPEC, SHARED)
    with pytest.raises(UnsupportedError, match=r"explain .*stream_k=0.*which does not"):
        explain(PROBLEM, choice, chip_named("h100"), None)
