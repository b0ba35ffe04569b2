"""A kernel and config by name, on the virtual GPU, by `gemmule.matmul.plan`."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

import gemmule as gm
from gemmule.lab.explain.named import choice_named
from support.vgpu.explanations import explained


def numbers(rng, shape, dtype=np.float32):
    return rng.integers(-4, 5, shape).astype(dtype)


@pytest.mark.parametrize(
    ("word", "name", "fields"),
    [
        ("g01_naive_uncoalesced", "g01_naive_uncoalesced", {}),
        ("g05_conflict_free[tile_k=16]", "g05_conflict_free", {"tile_k": 16}),
        ("g05_conflict_free[1]", "g05_conflict_free", {}),
        ("g05_conflict_free[*]", "g05_conflict_free", {}),
        ("simt_gemm[tile_m=128]", "simt_gemm", {"tile_m": 128}),
        ("gemm_reference", "gemm_reference", {}),
    ],
)
def test_the_kernel_that_is_named_computes(word, name, fields, rng):
    a, b = numbers(rng, (2, 37, 24)), numbers(rng, (24, 20))
    c = numbers(rng, (2, 37, 20))
    plan = gm.gemm.plan(a, b, c, beta=2, executor="vgpu", kernel=word)
    assert (plan.kernel, plan.executor) == (name, "vgpu")
    assert fields.items() <= plan.config.items()
    np.testing.assert_array_equal(plan.execute(), a @ b + 2 * c)


def test_a_plan_says_why_the_config_of_a_named_kernel_runs(rng):
    a, b = numbers(rng, (64, 64)), numbers(rng, (64, 64))
    plan = gm.matmul.plan(a, b, executor="vgpu", kernel="simt_gemm")
    # That of the least time on an H200, as with chip="h200".
    assert plan.config == gm.matmul.plan(a, b, chip="h200", kernel="simt_gemm").config
    assert "chosen by: cost (by the rates of an H200; chip='h100' chooses as on an H100)" in str(plan).splitlines()
    printed = f"simt_gemm [{' '.join(f'{name}={value}' for name, value in plan.config.items())}]"
    for options in ({"executor": "vgpu"}, {"chip": "h200"}):
        again = gm.matmul.plan(a, b, kernel=printed, **options)
        assert again.config == plan.config
        assert "chosen by: single (the kernel that kernel= names)" in str(again).splitlines()


def test_a_transpose_by_name(rng):
    x = numbers(rng, (37, 24))
    plan = gm.matrix_transpose.plan(x, executor="vgpu", kernel="t03_naive_row")
    assert plan.kernel == "t03_naive_row"
    np.testing.assert_array_equal(plan.execute(), x.T)


def test_what_is_refused(rng, monkeypatch):
    monkeypatch.delenv("GEMMULE_EXECUTOR", raising=False)
    x = numbers(rng, (8, 8))
    for executor in (None, "cpu", "gpu"):
        with pytest.raises(
            gm.ArgumentError,
            match=r"kernel='g03_shared_tile' is for plans of the virtual GPU .*; give executor='vgpu' or",
        ):
            gm.matmul.plan(x, x, executor=executor, kernel="g03_shared_tile")
    with pytest.raises(gm.ArgumentError, match=r"'g03_shard_tile' is not known; did you mean g03_shared_tile"):
        gm.matmul.plan(x, x, executor="vgpu", kernel="g03_shard_tile")
    with pytest.raises(gm.ArgumentError, match=r"has no config \[tile_k=5\]; tile_k is one of 8, 16; "):
        gm.matmul.plan(x, x, executor="vgpu", kernel="g05_conflict_free[tile_k=5]")
    # Words that name several kernels elsewhere mean nothing here.
    for word in ("nosuch", "ladder", "all"):
        with pytest.raises(gm.ArgumentError, match=f"'{word}' is not known; `gemmule info --kernels` lists all"):
            gm.matmul.plan(x, x, executor="vgpu", kernel=word)
    with pytest.raises(gm.ArgumentError, match="names 2 kernels; give one of them: simt_gemm or gemm_reference"):
        gm.matmul.plan(x, x, executor="vgpu", kernel="simt_gemm,gemm_reference")
    with pytest.raises(gm.ArgumentError, match="'t03_naive_row' computes a transpose; give one of the call's own"):
        gm.matmul.plan(x, x, executor="vgpu", kernel="t03_naive_row")
    with pytest.raises(gm.UnsupportedError, match=r"^float64_gemm: A is float32; .*, leave kernel out, or give"):
        gm.matmul.plan(x, x, executor="vgpu", kernel="float64_gemm")
    with pytest.raises(gm.UnsupportedError, match=r"^t11_swizzled_vectorised: .*, leave kernel out, or give op"):
        gm.transpose.plan(x.astype(np.int8), executor="vgpu", kernel="t11_swizzled_vectorised")


def test_what_shares_tiles_is_not_explained_and_runs_by_name(rng):
    word = "hopper_gemm[tile_m=128,tile_n=32,stages=4,cluster_m=1,split_k=1]"
    with pytest.raises(gm.UnsupportedError, match=r"small problems cannot stand for; explain '[^']*'") as told:
        explained(word, "1024,1024,1024")
    alone = choice_named(re.search(r"explain '([^']*)'", str(told.value))[1])
    assert alone.config == dataclasses.replace(choice_named(word).config, split_k=0)
    a, b = numbers(rng, (150, 200), np.float16), numbers(rng, (200, 264), np.float16)
    plan = gm.matmul.plan(a, b, executor="vgpu", kernel=word)
    assert (plan.kernel, plan.config["split_k"]) == ("hopper_gemm", 1)
    np.testing.assert_array_equal(plan.execute(), a.astype(np.float32) @ b.astype(np.float32))
