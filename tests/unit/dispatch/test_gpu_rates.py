"""Rates of GPUs: which a choice takes, of several GPUs in one process, and from which file."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import threading

import numpy as np
import pytest

from gemmule.core.arch import Arch
from gemmule.core.dtype import Precision
from gemmule.core.errors import ArgumentError, FileFormatError
from gemmule.core.gpu_rates import FARTHEST, H100_RATES, H200_RATES, RATES, GpuRates
from gemmule.dispatch import rates_table
from gemmule.dispatch.choices.choice_cache import clear_choices
from gemmule.dispatch.rates_file import MeasuredRates, RatesFileWarning, merge_rates, read_rates
from gemmule.dispatch.rates_table import clear_rates, known_rates, rates_file, rates_for
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose
from gemmule.files.user_folders import user_settings_file
from gemmule.kernels.hopper.gemm.spec import SPEC
from gemmule.kernels.hopper.gemm_repacked.spec import SPEC as REPACKED
from gemmule.lab.products import gemm_problem

HOPPER = Arch(9, 0, True)
H100, H200, PCIE = "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA H100 PCIe"
MEASURED = MeasuredRates(PCIE, GpuRates(114, 2.0e6, 1.2, 1.1, 1.3, 1.05, "H100"), 33, 0.03, (("date", "20261124"),))


@pytest.fixture(autouse=True)
def file(monkeypatch, tmp_path):
    path = tmp_path / "settings" / "rates.json"
    monkeypatch.setenv("GEMMULE_RATES", str(path))
    clear_rates()
    clear_choices()
    yield path
    clear_rates()
    clear_choices()


def chosen(problem, chip, multiprocessors=132):
    return choose(problem, HOPPER, multiprocessors=multiprocessors, chip=chip, tuned=False)


def test_each_gpu_of_a_process_has_its_own_predictions():
    # Memory is the limit, of which an H100 has less.
    problem = gemm_problem(16384, 16384, 64, "bfloat16", "bfloat16", "nn")
    us = {}
    for chip in (H100, H200, H100, H200):
        clear_choices()
        us.setdefault(chip, []).append(chosen(problem, chip).predicted_us)
    assert len(set(us[H100])) == len(set(us[H200])) == 1
    assert us[H100][0] > 1.2 * us[H200][0]


def test_what_follows_is_chosen_for_the_same_gpu():
    problems = [gemm_problem(511 + 200 * number, 4096, 777, "bfloat16", "bfloat16", "nn") for number in range(30)]
    found = {chip: [chosen(problem, chip) for problem in problems] for chip in (H200, H100)}
    assert {choice.spec.name for choices in found.values() for choice in choices} == {REPACKED.name}
    followers = {
        chip: [choice.next_kernel(problem).config for choice, problem in zip(choices, problems, strict=True)]
        for chip, choices in found.items()
    }
    assert followers[H100] != followers[H200]
    for chip, rates in ((H100, H100_RATES), (H200, H200_RATES)):
        for problem, config in zip(problems, followers[chip], strict=True):
            then = REPACKED.next_kernel(problem, REPACKED.default, rates)
            assert config == then.config == SPEC.cheapest(then.problem, HOPPER, rates)[0]


def test_the_launches_of_a_choice_are_those_of_its_gpu():
    problem = gemm_problem(2047, 2047, 2047, "bfloat16", "bfloat16", "nn")
    for choice in (chosen(problem, H100), chosen(problem, H200)):
        launches, workspaces = choice.launches(problem)
        assert launches[-1].config == choice.next_kernel(problem).config
        assert set(workspaces) <= {"packed a", "packed b"}


def test_configs_have_a_cta_for_each_multiprocessor():
    problem = gemm_problem(4096, 4096, 4096, "bfloat16", "bfloat16", "nn")
    assert chosen(problem, H200).config.ctas == 132
    part = chosen(problem, PCIE, 114)
    assert part.config.ctas == 114
    assert part.spec.launch(problem, part.config).grid[0] <= 114
    odd = gemm_problem(4095, 4095, 4095, "bfloat16", "bfloat16", "nn")
    assert chosen(odd, PCIE, 114).next_kernel(odd).config.ctas == 114
    # A cluster of 8 does not fit into 4 SMs.
    part = dataclasses.replace(H200_RATES, multiprocessors=4)
    few = SPEC.configs_on(part)
    assert {config.ctas for config in few} == {4}
    assert max(config.cluster_size for config in few) == 4
    assert all(config.cluster_size <= 4 for spec in REGISTRY for config in spec.configs_on(part))
    assert SPEC.configs_on(H200_RATES) is SPEC.configs is SPEC.configs_on(None)


def test_a_kernel_without_a_config_for_a_part_of_a_gpu_is_left_to_others():
    problem = gemm_problem(512, 512, 512, "bfloat16", "bfloat16", "nn")
    clusters = dataclasses.replace(SPEC, configs=tuple(one for one in SPEC.configs if one.cluster_size == 4))
    part, whole = dataclasses.replace(H200_RATES, multiprocessors=2), H200_RATES
    assert clusters.cheapest(problem, HOPPER, part) is None
    assert clusters.least_cost(problem, part) == math.inf > clusters.least_cost(problem, whole)
    choice = choose(problem, HOPPER, (clusters, SPEC), multiprocessors=2, tuned=False)
    assert choice.spec is SPEC


def test_shipped_rates_and_those_of_chips_like_them():
    assert rates_for(H100, 132) is H100_RATES
    assert rates_for(H200, 132) is H200_RATES
    assert known_rates(H200, 132).own
    assert known_rates(H200, 132).source == "shipped for H200 SXM 141 GB"
    like = known_rates(PCIE, 114)
    assert like.rates == dataclasses.replace(H100_RATES, multiprocessors=114)
    assert not like.own
    assert "gemmule calibrate" in like.source
    # A part of a GPU.
    assert not known_rates(H100, 66).own
    assert rates_for("NVIDIA of tomorrow", 144) == dataclasses.replace(H200_RATES, multiprocessors=144)
    assert rates_for(None, 132) == H200_RATES


def test_the_users_rates_come_first(file):
    merge_rates(file, MEASURED)
    clear_rates()
    found = known_rates(PCIE, 114)
    assert found.rates == MEASURED.rates
    assert found.own
    assert found.source == f"calibrated 20261124, {file}"
    assert rates_for(PCIE, 57) == dataclasses.replace(H100_RATES, multiprocessors=57)
    assert rates_for(H100, 132) is H100_RATES
    problem = gemm_problem(4096, 4096, 4096, "bfloat16", "bfloat16", "nn")
    assert chosen(problem, PCIE, 114).gpu == MEASURED.rates


def test_rates_that_are_read_while_the_file_is_replaced_are_not_cached(file, monkeypatch):
    merge_rates(file, MEASURED)
    clear_rates()
    read, is_read, may_end = rates_table.read_or_warn, threading.Event(), threading.Event()

    def slow(path):
        found = read(path)
        is_read.set()
        assert may_end.wait(60)
        return found

    monkeypatch.setattr(rates_table, "read_or_warn", slow)
    reader = threading.Thread(target=rates_for, args=(PCIE, 114))
    reader.start()
    assert is_read.wait(60)
    again = dataclasses.replace(MEASURED, rates=dataclasses.replace(MEASURED.rates, load=1.5))
    merge_rates(file, again)
    monkeypatch.undo()
    monkeypatch.setenv("GEMMULE_RATES", str(file))
    clearing = threading.Thread(target=clear_rates)
    clearing.start()
    clearing.join(0.2)
    may_end.set()
    reader.join()
    clearing.join()
    assert rates_for(PCIE, 114) == again.rates


def test_rates_of_one_gpu_replace_its_own_and_no_others(file):
    other = dataclasses.replace(MEASURED, gpu="NVIDIA GH200 480GB")
    again = dataclasses.replace(MEASURED, rates=dataclasses.replace(MEASURED.rates, load=1.5))
    part = dataclasses.replace(MEASURED, rates=dataclasses.replace(MEASURED.rates, multiprocessors=57))
    for one in (MEASURED, other, part, again):
        merge_rates(file, one)
    assert set(read_rates(file)) == {other, part, again}
    assert not list(file.parent.glob("*.partial"))
    assert file.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory": -1.0}, "memory is -1.0"),
        ({"load": float("inf")}, "load is inf"),
        ({"multiprocessors": "many"}, "whole numbers"),
        ({"multiprocessors": 0}, "whole numbers"),
        ({"learned": "B200"}, "learned one of H200, H100"),
        ({"error": -0.1}, "got -0.1"),
        ({"l2": None}, "must be numbers"),
        ({"l2": "1.0"}, "must be numbers"),
        ({"launch": True}, "must be numbers"),
        ({"error": "0.1"}, "must be numbers"),
        ({"memory": 1e-300}, "memory is 1e-300; it must be 4600 to 4.6e[+]09"),
        ({"multiply": 1e300}, "multiply is 1e[+]300; it must be 0.001 to 1000"),
        ({"run": 3}, "items"),
        ({"gpu": 1}, "gpu must be a name"),
    ],
)
def test_a_file_that_is_damaged_is_not_used(file, change, message):
    merge_rates(file, MEASURED)
    content = json.loads(file.read_text())
    content["gpus"][0] |= change
    file.write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match=message):
        read_rates(file)
    clear_rates()
    with pytest.warns(RatesFileWarning, match="it is not used, and left as it is"):
        assert rates_for(PCIE, 114) == dataclasses.replace(H100_RATES, multiprocessors=114)
    # To be replaced, it makes way.
    with pytest.warns(RatesFileWarning, match="set aside"):
        merge_rates(file, MEASURED)
    assert read_rates(file) == (MEASURED,)
    assert file.with_name("rates.json.damaged").exists()


def test_a_link_to_a_file_stays(file, tmp_path):
    """The folder of settings may be links to a folder that its user keeps under version control."""
    kept = tmp_path / "dotfiles" / "rates.json"
    file.parent.mkdir()
    file.symlink_to(kept)
    merge_rates(file, MEASURED)
    assert file.is_symlink()
    assert read_rates(file) == read_rates(kept) == (MEASURED,)
    kept.write_text(kept.read_text()[:99])
    with pytest.warns(RatesFileWarning, match="set aside"):
        merge_rates(file, MEASURED)
    assert file.is_symlink()
    assert sorted(one.name for one in kept.parent.iterdir()) == ["rates.json", "rates.json.damaged", "rates.json.lock"]


@pytest.mark.parametrize("text", ["", "[", "[]", '{"format": "another"}'])
def test_a_file_of_something_else_stays(file, text):
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(FileFormatError, match="not a file of GPU rates"):
        read_rates(file)
    if text:
        with pytest.raises(FileFormatError, match="it is left as it is: name another file"):
            merge_rates(file, MEASURED)
        assert file.read_text() == text


def test_a_file_of_a_later_version_stays(file):
    merge_rates(file, MEASURED)
    text = file.read_text().replace('"version": 1', '"version": 2')
    file.write_text(text)
    with pytest.raises(FileFormatError, match="install the gemmule that wrote it"):
        merge_rates(file, MEASURED)
    assert file.read_text() == text


def test_where_the_file_is(monkeypatch, tmp_path):
    monkeypatch.delenv("GEMMULE_RATES")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert rates_file() == user_settings_file("GEMMULE_RATES", "rates.json")
    assert user_settings_file("GEMMULE_RATES", "rates.json", "linux") == tmp_path / "gemmule" / "rates.json"


@pytest.mark.parametrize("seed", range(12))
def test_all_rates_of_a_file_give_finite_times(seed):
    """The farthest rates, too: times that overflow would compare as NaN, and any config would be chosen."""
    numbers = random.Random(seed)
    factors = {name: numbers.choice((1 / FARTHEST, 1.0, FARTHEST)) for name in RATES}
    rates = GpuRates(numbers.choice((1, 16, 132, 1000)), **{n: getattr(H200_RATES, n) * f for n, f in factors.items()})
    size = [numbers.choice((1, 64, 4096, 2**24)) for _ in range(3)]
    with np.errstate(all="raise"):
        for dtype in ("bfloat16", "float64"):
            for spec in REGISTRY:
                problem = gemm_problem(*size, dtype, dtype, "nt")
                able = spec.operation == "gemm" and spec.cost is not None and spec.refuses is not None
                if able and spec.refuses(problem, HOPPER) is None:
                    costs = [spec.cost(problem, config, rates) for config in spec.configs_on(rates)]
                    # Configs for other types cost infinitely much.
                    assert 0 < min(costs) < math.inf, spec.name
                    assert not any(map(math.isnan, costs)), spec.name


@pytest.mark.parametrize(
    ("kernel", "dtypes", "layout", "precision", "launches"),
    [
        ("hopper_gemm", ("bfloat16", "bfloat16"), "nn", Precision.IEEE, 1),
        ("hopper_gemm_k_major", ("int8", "int32"), "tn", Precision.IEEE, 3),
        ("hopper_gemm_repacked", ("bfloat16", "bfloat16"), "nn", Precision.IEEE, 2),
        ("hopper_gemm_upcast", ("float8_e4m3fn", "float32"), "nn", Precision.IEEE, 2),
        ("bf16x6_gemm", ("float32", "float32"), "nn", Precision.BF16X6, 2),
    ],
)
def test_every_launch_of_a_product_takes_as_long_as_the_gpus(kernel, dtypes, layout, precision, launches):
    spec = next(one for one in REGISTRY if one.name == kernel)
    k = 257 if kernel == "hopper_gemm_repacked" else 256
    problem = dataclasses.replace(gemm_problem(256, 256, k, *dtypes, layout), precision=precision)
    slow = dataclasses.replace(H200_RATES, launch=11.0)
    more = spec.cost(problem, spec.default, slow) - spec.cost(problem, spec.default, H200_RATES)
    assert more > 10 * 1.0 * launches


@pytest.mark.parametrize("name", ["multiprocessors", *RATES])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_rates_are_finite_and_above_0(name, value):
    with pytest.raises(ArgumentError, match=f"{name} is"):
        dataclasses.replace(H200_RATES, **{name: value})
