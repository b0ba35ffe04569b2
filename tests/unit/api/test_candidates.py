"""What takes the place of a kernel that does not compile."""

from __future__ import annotations

import types

import pytest

from gemmule.api.planning import choice
from gemmule.api.planning.choice import CompileWarning, choose_compiling, run_first_that_compiles
from gemmule.core.arch import Arch
from gemmule.core.errors import CompileError, CompilerMissingError, KernelFailedError
from gemmule.core.problem import contiguous_gemm
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose

DEVICE = types.SimpleNamespace(arch=Arch.parse("sm_80"), multiprocessors=108, name="NVIDIA A100-SXM4-80GB")
PROBLEM = contiguous_gemm(256, 256, 256, ("float32",) * 3)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(choice, "_COMPILING", choice._Compiling())


def refusing(kernels, ran):
    def run(choice):
        ran.append((choice.spec.name, choice.config))
        if choice.spec.name in kernels or choice.config in kernels:
            raise KernelFailedError(f"kernel {choice.spec.name} ({choice.config}) for sm_80: no")

    return run


def test_the_first_runs_where_it_compiles():
    choice, ran = choose_compiling(PROBLEM, DEVICE), []
    assert choice == choose(PROBLEM, DEVICE.arch, multiprocessors=108, chip="NVIDIA A100-SXM4-80GB")
    assert run_first_that_compiles(PROBLEM, choice, DEVICE, refusing((), ran)) is choice
    assert len(ran) == 1


def test_the_next_config_and_then_the_next_kernel():
    choice, ran = choose_compiling(PROBLEM, DEVICE), []
    message = rf"kernel {choice.spec.name} \({choice.config}\) for sm_80: no; simt_gemm \(tile_m.*\) is used instead"
    with pytest.warns(CompileWarning, match=message):
        second = run_first_that_compiles(PROBLEM, choice, DEVICE, refusing((choice.config,), ran))
    assert second.spec.name == choice.spec.name
    assert second.config != choice.config
    # It is remembered, here and for other problems.
    assert choose_compiling(PROBLEM, DEVICE).config == second.config
    refused = ("simt_batched", "simt_gemm", "g07_cp_async", "g06_double_buffer")
    with pytest.warns(CompileWarning) as told:
        third = run_first_that_compiles(PROBLEM, second, DEVICE, refusing(refused, ran))
    assert third.spec.name == "g05_conflict_free"
    # One warning for each that was refused, and each was tried once.
    tried = ran[2:-1]
    assert len(told) == len(tried) == len(set(tried))
    other = types.SimpleNamespace(arch=Arch.parse("sm_90a"), multiprocessors=132, name="NVIDIA H100 80GB HBM3")
    assert choose_compiling(PROBLEM, other) == choose(PROBLEM, other.arch, multiprocessors=132, chip=other.name)


def test_configs_of_a_gpu_with_fewer_multiprocessors_are_refused_once():
    """Persistent configs have a CTA for each of its SMs, and are not those of the registry."""
    part = types.SimpleNamespace(arch=Arch.parse("sm_90a"), multiprocessors=114, name="NVIDIA H100 PCIe")
    problem = contiguous_gemm(512, 512, 512, ("bfloat16",) * 3)
    choice, ran = choose_compiling(problem, part), []
    assert choice.config.ctas == 114

    def run(tried):
        ran.append(tried.config)
        assert len(ran) < 5
        if len(ran) < 4:
            raise KernelFailedError("no")

    with pytest.warns(CompileWarning):
        last = run_first_that_compiles(problem, choice, part, run)
    assert len(set(ran)) == 4
    assert last.config.ctas == 114


def test_where_none_compiles_the_error_is_the_last_ones():
    ran = []
    every = tuple(spec.name for spec in REGISTRY)
    with pytest.warns(CompileWarning), pytest.raises(KernelFailedError, match=r"simt_dot .* for sm_80: no$"):
        run_first_that_compiles(PROBLEM, choose_compiling(PROBLEM, DEVICE), DEVICE, refusing(every, ran))
    # The kernel of dot products is not taken in the order of kernels, but where no other is left.
    names = list(dict.fromkeys(name for name, _ in ran))
    assert names[-2:] == ["gemm_reference", "simt_dot"]


@pytest.mark.parametrize("error", [CompilerMissingError, CompileError])
def test_other_failures_are_not_a_reason_for_another_kernel(error):
    def run(choice):
        raise error("not here")

    with pytest.raises(error, match="not here"):
        run_first_that_compiles(PROBLEM, choose_compiling(PROBLEM, DEVICE), DEVICE, run)
