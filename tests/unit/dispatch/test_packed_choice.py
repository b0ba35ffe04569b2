"""The choice where the compiler is not installed: the best kernel of a pack. Nothing is compiled here."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest

import gemmule as gm
from gemmule.compiler import cache
from gemmule.compiler.key import artifact_key
from gemmule.compiler.pack import PACKS, write_pack
from gemmule.core.activations import silu
from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, Precision, dtype_named
from gemmule.core.epilogue import Epilogue
from gemmule.core.errors import CompilerMissingError
from gemmule.core.grouped_problem import GroupedProblem
from gemmule.core.layout import contiguous
from gemmule.core.problem import GemmProblem, contiguous_gemm, inner_problem
from gemmule.core.product_forms import SUMS, Form
from gemmule.core.spec import Choice
from gemmule.core.tracing import accumulated, accumulated_second, lowered
from gemmule.dispatch import select
from gemmule.dispatch.choices import packed_choice
from gemmule.dispatch.choices.choice_cache import clear_choices
from gemmule.dispatch.choices.packed_choice import PackedKernelWarning
from gemmule.dispatch.grouped import choose_grouped
from gemmule.dispatch.rates_table import rates_for
from gemmule.dispatch.registry import REGISTRY, kernels_of
from gemmule.dispatch.select import choose
from gemmule.kernels.hopper import next_kernel
from gemmule.kernels.hopper.gemm_upcast import spec as upcast
from gemmule.lab.transposes import transpose_of
from support.artifacts import compile_by, compiler_is_installed, made

ARCH = Arch.parse("sm_90a")
CHIP, SMS = "NVIDIA H100 80GB HBM3", 132
GPU = rates_for(CHIP, SMS)
BF16 = contiguous_gemm(1040, 1200, 1360, ("bfloat16",) * 3)
ODD = contiguous_gemm(1023, 1021, 1019, ("bfloat16",) * 3)
FLOAT32 = contiguous_gemm(1024, 1024, 1024, ("float32",) * 3)
BATCH = contiguous_gemm(64, 64, 64, ("float32",) * 3, batch=(3, 100, 2))


def missing(*what):
    raise CompilerMissingError("the kernel compiler is not installed")


@pytest.fixture(autouse=True)
def packed(tmp_path, monkeypatch):
    """Pack choices, in a process without a compiler and with an empty cache."""
    monkeypatch.setenv("GEMMULE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GEMMULE_PACK", raising=False)
    monkeypatch.setenv("GEMMULE_TUNED", str(tmp_path / "tuned.json"))
    PACKS.unload()
    monkeypatch.setattr(PACKS, "installed", list)
    compile_by(monkeypatch, missing)
    compiler_is_installed(monkeypatch, False)
    monkeypatch.setattr(packed_choice, "_warned", set())
    clear_choices()

    def pack(*choices):
        kernels = {}
        for problem, choice in choices:
            for one in choice.launches(inner_problem(problem, choice.batch_dims))[0]:
                what = (one.spec, one.config, one.spec.signature(one.problem, one.config), ARCH)
                kernels[artifact_key(*what)] = made(*what).as_bytes()
        PACKS.load(write_pack(tmp_path / "x.pack", kernels.items()))
        cache.KERNELS.unload()
        clear_choices()

    yield pack
    PACKS.unload()
    clear_choices()


def best(problem, registry=REGISTRY):
    """Return the choice as with a compiler."""
    return select._choose(problem, ARCH, registry, SMS, CHIP, True)


def chosen(problem, registry=REGISTRY):
    return choose(problem, ARCH, registry, multiprocessors=SMS, chip=CHIP)


def others(problem, name):
    """Return the supported configs of a kernel for a problem, the fastest by prediction first."""
    spec = next(spec for spec in REGISTRY if spec.name == name)
    configs = spec.configs_on(GPU)
    costs = spec.costs(problem, configs, GPU)
    able = [
        (cost, config) for cost, config in zip(costs, configs, strict=True) if not spec.why_not(problem, ARCH, config)
    ]
    return [Choice(spec, config, (), "cost", cost, gpu=GPU) for cost, config in sorted(able, key=lambda one: one[0])]


@pytest.mark.parametrize("problem", [BF16, ODD, FLOAT32, BATCH, transpose_of(1000, 500, 4)])
def test_a_packed_choice_stays(packed, problem):
    packed((problem, best(problem)))
    assert chosen(problem) == best(problem)


@pytest.mark.parametrize("types", [("float32", "bfloat16", "float32"), ("int8", "float16", "float16")])
def test_the_product_of_copies_is_chosen_among_packed_kernels(packed, types):
    problem = contiguous_gemm(1040, 1200, 1360, types)
    choice = best(problem)
    assert choice.spec.name == "hopper_gemm_upcast"
    copies = Choice(dataclasses.replace(choice.spec, next_kernel=None), choice.config)
    then = choice.next_kernel(problem)
    # Without a kernel that multiplies them copies are of no use.
    packed((problem, copies))
    assert chosen(problem) == choice
    other = others(then.problem, then.spec.name)[5]
    packed((problem, copies), (then.problem, other))
    with pytest.warns(PackedKernelWarning):
        found = chosen(problem)
    assert (found.spec.name, found.chosen_by) == ("hopper_gemm_upcast", "packed")
    assert found.next_kernel(problem).config == other.config != then.config
    assert found.predicted_us > choice.predicted_us
    launches, _ = found.launches(problem)
    assert all(
        cache.is_compiled(one.spec, one.config, one.spec.signature(one.problem, one.config), ARCH) for one in launches
    )


def test_a_gated_product_of_copies_runs_in_a_form_that_is_packed(packed):
    a, b, d = (
        contiguous(dtype_named(name), *shape)
        for name, shape in (("float16", (512, 640)), ("float32", (640, 768)), ("float16", (512, 768)))
    )
    expression, _, _ = lowered(silu(accumulated()) * accumulated_second(), "swiglu")
    problem = GemmProblem(512, 768, 640, (), a, b, None, d, epilogue=Epilogue(expression, second=b))
    choice = best(problem)
    assert choice.spec.name == "hopper_gemm_upcast"
    product = upcast._OPERANDS._product(problem)
    launches = next_kernel._launches_of(Form(SUMS), product.prepare(problem).problem, product.specs, GPU)
    chain = [one.spec.name for one in choice.next_kernel(problem).chain()]
    assert [one.spec.name for one in launches] != chain
    copies = Choice(dataclasses.replace(choice.spec, next_kernel=None), choice.config)
    packed((problem, copies), *((one.problem, Choice(one.spec, one.config)) for one in launches))
    with pytest.warns(PackedKernelWarning):
        found = chosen(problem)
    assert [one.spec.name for one in found.next_kernel(problem).chain()] == [one.spec.name for one in launches]


@pytest.mark.parametrize("problem", [BF16, ODD])
def test_without_any_kernel_the_choice_stays_and_fails_when_it_runs(problem):
    assert chosen(problem) == best(problem)
    one = best(problem)
    with pytest.raises(CompilerMissingError):
        cache.artifact_for(one.spec, one.config, one.signature(problem), ARCH)


def test_the_packed_config_of_least_predicted_time_runs_and_one_notice_says_so(packed):
    first, *later = others(BF16, "hopper_gemm")
    assert first.config == best(BF16).config
    packed(*((BF16, one) for one in (later[9], later[3], later[20])))
    with pytest.warns(PackedKernelWarning) as told:
        found = chosen(BF16)
    assert (found.config, found.chosen_by) == (later[3].config, "packed")
    assert found.predicted_us == pytest.approx(later[3].predicted_us)
    assert found.refused[0] == ("hopper_gemm", f"supported, but its compiled kernel ({first.config}) is in no pack")
    assert str(first.config) in found.source
    (line,) = [str(warning.message) for warning in told]
    assert line.startswith(f"hopper_gemm ({first.config}) is in no pack, and the kernel compiler is not installed")
    assert f"hopper_gemm ({later[3].config}) runs" in line
    assert 'pip install "gemmule[compiler]"' in line
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # A similar product lacks the same kernel.
        clear_choices()
        assert chosen(BF16).config == found.config


def test_the_fastest_of_several_kernels_runs(packed):
    slow, fast = others(FLOAT32, "simt_gemm")[-1], others(FLOAT32, "simt_gemm")[1]
    reference = next(spec for spec in REGISTRY if spec.name == "gemm_reference")
    general = Choice(reference, reference.default)
    packed((FLOAT32, general))
    with pytest.warns(PackedKernelWarning):
        assert chosen(FLOAT32).spec is reference
    packed((FLOAT32, general), (FLOAT32, slow))
    assert chosen(FLOAT32).config == slow.config
    packed((FLOAT32, general), (FLOAT32, slow), (FLOAT32, fast))
    assert chosen(FLOAT32).config == fast.config


def test_a_later_kernel_of_less_predicted_time_runs(packed):
    """The registry's order decides only where nothing is predicted."""
    finite = [one for one in others(BF16, "hopper_gemm") if one.predicted_us < float("inf")]
    slower = [one for one in others(BF16, "hopper_gemm_unaligned") if one.predicted_us > finite[1].predicted_us]
    unaligned = slower[0]
    assert unaligned.predicted_us < finite[-1].predicted_us
    packed((BF16, finite[-1]), (BF16, unaligned))
    with pytest.warns(PackedKernelWarning):
        assert chosen(BF16).config == unaligned.config
    packed((BF16, finite[1]), (BF16, unaligned))
    assert chosen(BF16).config == finite[1].config


def test_a_kernel_that_prepares_operands_needs_its_next_kernels(packed):
    problem = contiguous_gemm(4095, 4095, 4095, ("bfloat16",) * 3)
    whole = best(problem)
    assert whole.next_kernel(problem) is not None
    reference = next(spec for spec in REGISTRY if spec.name == "gemm_reference")
    packed((problem, whole), (problem, Choice(reference, reference.default)))
    assert chosen(problem) == whole
    (first, *_), _ = whole.launches(problem)
    what = (first.spec, first.config, first.spec.signature(first.problem, first.config), ARCH)
    only_first = {artifact_key(*what): made(*what).as_bytes()}
    general = (reference, reference.default, reference.signature(problem, reference.default), ARCH)
    only_first[artifact_key(*general)] = made(*general).as_bytes()
    PACKS.load(write_pack(PACKS.all()[0].path, only_first.items()))
    cache.KERNELS.unload()
    clear_choices()
    with pytest.warns(PackedKernelWarning):
        assert chosen(problem).spec is reference


def test_limits_and_precision_hold(packed):
    """A packed TF32 kernel does not run what must be exact, nor one of other layouts what it cannot."""
    rounded = contiguous_gemm(1024, 1024, 1024, ("float32",) * 3, precision=Precision.TF32)
    packed((rounded, best(rounded)), (BF16, best(BF16)))
    assert chosen(FLOAT32) == best(FLOAT32)
    assert chosen(ODD) == best(ODD)


def test_a_named_kernel_falls_back_to_its_own_configs(packed):
    first, second, *_ = others(BF16, "hopper_gemm")
    packed((BF16, second), (FLOAT32, best(FLOAT32)))
    with pytest.warns(PackedKernelWarning):
        assert chosen(BF16, (first.spec,)).config == second.config


def test_a_damaged_kernel_is_missing(packed, tmp_path):
    first, second, *_ = others(BF16, "hopper_gemm")
    packed((BF16, first), (BF16, second))
    assert chosen(BF16).config == first.config
    path = cache.cache_folder() / (artifact_key(first.spec, first.config, first.signature(BF16), ARCH) + ".kernel")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"damaged")
    packed((BF16, second))
    with pytest.warns(PackedKernelWarning), pytest.warns(cache.CacheWarning, match="is damaged"):
        assert chosen(BF16).config == second.config


def test_kernels_in_the_cache_count(tmp_path):
    first, second, *_ = others(BF16, "hopper_gemm")
    what = (second.spec, second.config, second.signature(BF16), ARCH)
    made(*what).save(cache.cache_folder() / (artifact_key(*what) + ".kernel"))
    with pytest.warns(PackedKernelWarning):
        assert chosen(BF16).config == second.config != first.config


def test_a_loaded_pack_changes_choices(packed, tmp_path, monkeypatch):
    _, second, third, *_ = others(BF16, "hopper_gemm")
    packed((BF16, third))
    with pytest.warns(PackedKernelWarning):
        assert chosen(BF16).config == third.config
    what = (second.spec, second.config, second.signature(BF16), ARCH)
    gm.load_pack(write_pack(tmp_path / "y.pack", [(artifact_key(*what), made(*what).as_bytes())]).path)
    assert chosen(BF16).config == second.config


def test_a_loaded_pack_changes_the_product_of_copies(packed, tmp_path):
    problem = contiguous_gemm(1040, 1200, 1360, ("int8", "float16", "float16"))
    choice = best(problem)
    then = choice.next_kernel(problem)
    copies = Choice(dataclasses.replace(choice.spec, next_kernel=None), choice.config)
    _, second, third, *_ = others(then.problem, then.spec.name)
    packed((problem, copies), (then.problem, third))
    with pytest.warns(PackedKernelWarning):
        assert chosen(problem).next_kernel(problem).config == third.config
    what = (second.spec, second.config, second.signature(then.problem), ARCH)
    gm.load_pack(write_pack(tmp_path / "y.pack", [(artifact_key(*what), made(*what).as_bytes())]).path)
    assert chosen(problem).next_kernel(problem).config == second.config


def test_the_predicted_time_is_that_of_the_packed_product_of_copies(packed):
    """Also where it is predicted together with the product of operands as they are."""
    problem = contiguous_gemm(2048, 2048, 2048, ("float32",) * 3)
    registry = tuple(spec for spec in REGISTRY if spec.name == "simt_gemm_mn_major")
    choice = best(problem, registry)
    then = choice.next_kernel(problem)
    copies = Choice(dataclasses.replace(choice.spec, next_kernel=None), choice.config)
    slow = others(then.problem, then.spec.name)[40]
    packed((problem, copies), (then.problem, slow))
    with pytest.warns(PackedKernelWarning):
        found = chosen(problem, registry)
    assert found.next_kernel(problem).config == slow.config
    assert found.predicted_us > slow.predicted_us > choice.predicted_us


def test_with_a_compiler_nothing_is_looked_up(monkeypatch):
    compiler_is_installed(monkeypatch, True)
    monkeypatch.setattr(packed_choice, "is_compiled", lambda *what: pytest.fail("looked up"))
    for problem in (BF16, ODD, FLOAT32):
        assert chosen(problem) == best(problem)


def test_an_empty_product_needs_no_kernel(monkeypatch):
    monkeypatch.setattr(packed_choice, "has_any", lambda *what: pytest.fail("searched"))
    empty = contiguous_gemm(0, 16, 16, ("float32",) * 3)
    assert chosen(empty) == best(empty)


def test_the_plan_says_so(packed, monkeypatch):
    import numpy as np

    a = np.ones((64, 64), np.float32)
    reference = next(spec for spec in REGISTRY if spec.name == "gemm_reference")
    packed((contiguous_gemm(64, 64, 64, ("float32",) * 3), Choice(reference, reference.default)))
    with pytest.warns(PackedKernelWarning):
        plan = gm.matmul.plan(a, a, executor="vgpu")
    assert (plan.kernel, plan.chosen_by) == ("gemm_reference", "packed")
    assert "chosen by: packed (" in plan.describe()
    assert "is in no pack" in plan.describe()


@pytest.mark.parametrize("dtype", [BFLOAT16, dtype_named("float32")], ids=str)
def test_a_grouped_product_runs_by_the_best_packed_config(packed, dtype):
    weights = contiguous(dtype, 512, 256, (4,)).transposed()
    tokens, d = contiguous(dtype, 1024, 256), contiguous(dtype, 1024, 512)
    problem = GroupedProblem("m", 1024, 512, 256, 4, tokens, weights, d)

    def choice():
        return choose_grouped(problem, ARCH, multiprocessors=SMS, chip=CHIP)

    first = choice()
    assert first.chosen_by == "cost"
    spec = first.spec
    assert spec in kernels_of("grouped")
    others = [one for one in spec.configs_on(GPU) if one != first.config]
    packed(*((problem, Choice(spec, one)) for one in others))
    assert choice().chosen_by == "packed"
    assert choice().config in others
    packed((problem, first))
    assert choice() == first


def test_the_virtual_gpu_needs_the_ptx_of_a_packed_kernel(packed, tmp_path):
    """No other packed kernel runs, and no warning says so: the call is one error with the remedy."""
    a, b = np.ones((40, 24), np.float32), np.ones((24, 40), np.float32)
    problem = contiguous_gemm(40, 40, 24, ("float32",) * 3)
    choice, kernels = choose(problem, ARCH), {}
    for spec in (choice.spec, *(one for one in REGISTRY if one.name == "gemm_reference")):
        what = (spec, spec.default, spec.signature(problem, spec.default), ARCH)
        kernels[artifact_key(*what)] = made(*what).as_bytes()
    PACKS.load(write_pack(tmp_path / "x.pack", kernels.items(), origin="gemmule-kernels-sm90 0.1"))
    clear_choices()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(CompilerMissingError, match=r'x\.pack has its machine code only, .*"gemmule\[compiler\]"'):
            gm.matmul(a, b, executor="vgpu")
    assert packed_choice.is_choice_compiled(choice, problem, ARCH)
    assert not packed_choice.is_choice_compiled(choice, problem, ARCH, with_ptx=True)
    # A pack with PTX of another kernel: that runs, with a warning.
    other = next(what for what in kernels if what.startswith("gemm_reference"))
    PACKS.load(write_pack(tmp_path / "y.pack", [(other, kernels[other])]))
    cache.KERNELS.unload()
    clear_choices()
    with pytest.warns(PackedKernelWarning, match=f"{choice.spec.name} .*gemm_reference"):
        assert choose(problem, ARCH).spec.name == "gemm_reference"
