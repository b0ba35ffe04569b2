"""Tuned configurations: the order of look-up, what is lent to others, and what is passed over."""

from __future__ import annotations

import dataclasses
import math

import pytest

from gemmule.api.calls.call_cache import CALLS
from gemmule.core.config import Config
from gemmule.core.gpu_rates import H200_RATES
from gemmule.dispatch import select, tuned_table
from gemmule.dispatch.choices import choice_cache
from gemmule.dispatch.problem_key import key_of, problem_of
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose, tuned_choice
from gemmule.dispatch.tuned_file import write_tuned
from gemmule.dispatch.tuned_table import table_for
from gemmule.lab.products import gemm_problem
from support.tuned_entries import CHIP, GPU, HOPPER, LIBRARY, PROBLEM, SPEC, chosen, entry, forget, table

__all__ = ["table"]


def test_this_process_then_the_users_file_then_the_shipped_one_then_the_cost_model(table):
    by_cost = chosen()
    assert by_cost.chosen_by == "cost"
    assert by_cost.config == choose(PROBLEM, HOPPER, multiprocessors=132).config
    assert by_cost.predicted_us == pytest.approx(SPEC.cost(PROBLEM, by_cost.config, H200_RATES), rel=1e-6)
    write_tuned(tuned_table.shipped_file(CHIP), [entry(SPEC.configs[5], us=5.0)])
    forget()
    assert (chosen().config, chosen().predicted_us, chosen().chosen_by) == (SPEC.configs[5], 5.0, "tuned")
    assert chosen().source == f"the table shipped for {CHIP}: {CHIP}, 20260101T000000"
    write_tuned(table, [entry(SPEC.configs[7], us=7.0)])
    forget()
    assert (chosen().config, chosen().predicted_us) == (SPEC.configs[7], 7.0)
    assert str(table) in chosen().source
    select.use_tuned(GPU, [entry(SPEC.configs[9], us=9.0)])
    assert (chosen().config, chosen().source.split(":")[0]) == (SPEC.configs[9], "this process")
    # Without the GPU's name nothing is looked up.
    assert choose(PROBLEM, HOPPER, multiprocessors=132).chosen_by == "cost"


def test_a_file_that_changed_is_read_when_choices_are_cleared(table, monkeypatch):
    other = gemm_problem(512, 512, 64, "float32", "float32", "nn")
    select.use_tuned(CHIP, [entry(SPEC.configs[4], problem=other)])
    assert chosen().chosen_by == "cost"
    write_tuned(table, [entry(SPEC.configs[7])])
    choice_cache.clear_choices()
    assert (chosen().config, chosen().source.partition(":")[0]) == (SPEC.configs[7], str(table))
    moved = table.with_name("moved.json")
    write_tuned(moved, [entry(SPEC.configs[5])])
    monkeypatch.setenv("GEMMULE_TUNED", str(moved))
    choice_cache.clear_choices()
    assert chosen().config == SPEC.configs[5]
    assert table_for(CHIP).find(key_of(other)).source == "this process"


def test_caches_that_keep_choices_are_cleared_with_them(monkeypatch):
    CALLS.add(LIBRARY, "what was decided", None, (0, 16), 32, choice_cache.generation())
    monkeypatch.setattr(choice_cache, "_clear_functions", [*choice_cache._clear_functions])
    others = ["what another room made of a choice"]
    choice_cache.register_clear(others.clear)
    select.use_tuned(GPU, [entry(SPEC.configs[9])])
    assert not others
    assert CALLS.by_description.get("what was decided") is None


def test_entries_are_of_one_chip(table):
    write_tuned(table, [entry(chip="A100 SXM 80 GB")])
    forget()
    assert chosen().chosen_by == "cost"


def test_the_same_processor_lends_its_configs_but_not_its_times():
    write_tuned(tuned_table.shipped_file(CHIP), [entry(SPEC.configs[5])])
    forget()
    found = chosen(gpu="NVIDIA H100 80GB HBM3")
    assert (found.config, found.chosen_by, found.predicted_us) == (SPEC.configs[5], "tuned", None)
    assert chosen(gpu="NVIDIA A100-SXM4-80GB").chosen_by == "cost"


def test_a_chip_with_a_table_borrows_what_it_lacks():
    other = gemm_problem(528, 584, 1032, "bfloat16", "bfloat16", "nn")
    write_tuned(tuned_table.shipped_file(CHIP), [entry(SPEC.configs[5]), entry(SPEC.configs[6], problem=other)])
    write_tuned(tuned_table.shipped_file("H100 SXM 80 GB"), [entry(SPEC.configs[7], us=7.0, chip="H100 SXM 80 GB")])
    forget()
    h100 = "NVIDIA H100 80GB HBM3"
    assert (chosen(gpu=h100).config, chosen(gpu=h100).predicted_us) == (SPEC.configs[7], 7.0)
    lent = chosen(other, gpu=h100)
    assert (lent.config, lent.predicted_us) == (SPEC.configs[6], None)
    # The other way nothing is lent.
    assert chosen().config == SPEC.configs[5]


def test_an_entry_for_the_other_type_of_16_bits_lends_its_config_but_not_its_time(table):
    half = gemm_problem(520, 584, 1032, "float16", "float16", "nn")
    assert chosen(half).chosen_by == "cost"
    write_tuned(table, [entry()])
    forget()
    lent = chosen(half)
    assert (lent.config, lent.chosen_by, lent.predicted_us) == (SPEC.configs[5], "tuned", None)
    assert "for bfloat16" in lent.source
    write_tuned(table, [entry(), entry(SPEC.configs[6], problem=half)])
    forget()
    assert (chosen(half).config, chosen().config) == (SPEC.configs[6], SPEC.configs[5])


@pytest.mark.parametrize(
    ("dtype", "out", "twin"),
    [
        ("float16", "float16", ("bfloat16", "bfloat16")),
        ("bfloat16", "float32", ("float16", "float32")),
        ("float32", "float32", None),
        ("int8", "int32", None),
    ],
)
def test_twins(dtype, out, twin):
    found = key_of(gemm_problem(64, 64, 64, dtype, out, "tn")).twin()
    assert (found and (found.a_dtype, found.d_dtype)) == twin
    mixed = key_of(PROBLEM)._replace(d_dtype="float16")
    assert mixed.twin() is None


def test_a_chip_that_no_table_knows_has_its_own_name(table):
    write_tuned(table, [entry(chip="NVIDIA New 3000")])
    forget()
    assert chosen(gpu="NVIDIA New 3000").chosen_by == "tuned"


SPLIT = next(config for config in SPEC.configs if config.cluster_k > 1)


@pytest.mark.parametrize(
    "wrong",
    [
        entry(kernel="h99_of_tomorrow"),
        dataclasses.replace(entry(), config=(("tile_m", 128), ("tile_of_tomorrow", 1))),
        dataclasses.replace(entry(), config=(("tile_m", 100),)),
        dataclasses.replace(entry(), config=(("group", 0),)),
        # K has 17 slices of 128 bytes: the kernel refuses to share fewer than its CTAs, here it is asked to.
        entry(SPLIT, problem=gemm_problem(520, 584, 64, "bfloat16", "bfloat16", "nn")),
    ],
)
def test_an_entry_that_this_version_cannot_follow_is_passed_over(table, wrong):
    write_tuned(table, [wrong])
    forget()
    problem = problem_of(wrong.key)
    assert chosen(problem).chosen_by == "cost"


@dataclasses.dataclass(frozen=True)
class _Unchecked(Config):
    """A config that divides by what it is given, and checks nothing."""

    tile: int = 64
    warps: int = 2

    def __post_init__(self):
        self.tile // self.warps


@pytest.mark.parametrize(
    "config",
    [(("warps", 0),), (("warps", 10**400),), (("tile", 0),), (("tile", 1),), (("tile", 2),)],
    ids=["not made", "too large", "divides by 0", "of a wrong type", "too long to tell"],
)
def test_an_entry_that_fails_wherever_it_is_used_is_passed_over(table, config):
    def why_not(problem, arch, config):
        if config == _Unchecked():
            return None
        if config.tile == 1:
            raise TypeError("not a number")
        if config.tile == 2:
            return str(10**5000)
        return None if problem.m // config.tile + math.sqrt(config.warps) else "too small"

    spec = dataclasses.replace(SPEC, configs=(_Unchecked(),), why_not=why_not, refuses=None, cost=None, costs=None)
    write_tuned(table, [dataclasses.replace(entry(), config=config)])
    assert tuned_choice(PROBLEM, HOPPER, (spec,), table_for(GPU)) is None


def test_a_tuned_kernel_that_stands_later_names_those_before_it(table):
    mma_sync = next(spec for spec in REGISTRY if spec.name == "mma_sync_gemm")
    write_tuned(table, [entry(mma_sync.default, kernel=mma_sync.name)])
    forget()
    found = chosen()
    assert found.spec is mma_sync
    assert dict(found.refused)["hopper_gemm"] == "supported, but mma_sync_gemm was measured to be faster"
    # Of kernels for a matrix and its own transpose other products say nothing.
    before = [spec.name for spec in REGISTRY[: REGISTRY.index(mma_sync)] if not spec.is_syrk]
    assert [name for name, _ in found.refused] == before


def test_what_is_chosen_is_remembered():
    first = chosen()
    assert chosen() is first
    assert chosen(dataclasses.replace(PROBLEM)) is first
