"""Calibration: the products that are timed, and the rates that are fitted to their times."""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import random
from pathlib import Path

import pytest

from gemmule.core.arch import Arch
from gemmule.core.gpu_rates import FARTHEST, H100_RATES, H200_RATES, RATES, GpuRates
from gemmule.dispatch.former_names import current_fields
from gemmule.kernels.hopper.gemm.config_lists import CONFIGS
from gemmule.kernels.hopper.gemm.spec import SPEC, HopperGemmConfig
from gemmule.lab.calibration.fit import Timed, error, fit
from gemmule.lab.calibration.products import ANY, TIMED_CONFIGS, products
from gemmule.lab.products import gemm_problem

HOPPER = Arch(9, 0, True)
RECORD = "20261123T035727-nvidia-h100-80gb-hbm3-bee0d839d3.jsonl"
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
MEMORY = 80 << 30


def timed_by(rates, found, noise=0.0):
    """Times as those rates predict them."""
    numbers = random.Random(3)
    return [
        Timed(
            one.problem,
            {
                choice.config: SPEC.cost(one.problem, choice.config, rates) * math.exp(numbers.gauss(0, noise))
                for choice in one.choices
            },
        )
        for one in found
    ]


def test_some_products_for_each_rate():
    found = products(HOPPER, H200_RATES, MEMORY)
    count = collections.Counter(one.rate for one in found)
    assert set(count) == {ANY, *RATES}
    assert min(count.values()) >= 7
    for one in found:
        assert one.choices
        for choice in one.choices:
            assert SPEC.why_not(one.problem, HOPPER, choice.config) is None
            assert choice.config in TIMED_CONFIGS
    for name in ("launch", "memory", "multiply"):
        slower = 1 / 2 if name == "memory" else 2
        rates = dataclasses.replace(H200_RATES, **{name: getattr(H200_RATES, name) * slower})
        least = [
            [min(SPEC.costs(one.problem, CONFIGS, gpu)) for one in found if one.rate == name]
            for gpu in (H200_RATES, rates)
        ]
        assert sum(after > 1.3 * before for before, after in zip(*least, strict=True)) >= 5, name


def test_configs_are_few_and_registered():
    assert 8 <= len(TIMED_CONFIGS) <= 12
    assert set(TIMED_CONFIGS) <= set(CONFIGS)


def test_products_fit_into_the_memory_and_configs_to_the_gpu():
    small = products(HOPPER, dataclasses.replace(H200_RATES, multiprocessors=78), 1 << 30)
    assert max(one.problem.bytes_min for one in small) <= 64 << 20
    assert {choice.config.ctas for one in small for choice in one.choices} == {78}


def test_nothing_is_timed_where_the_kernel_does_not_run():
    assert products(Arch(8, 0), H200_RATES, MEMORY) == ()


@pytest.mark.parametrize(
    "rates", [GpuRates(114, 2.0e6, 1.3, 1.15, 1.3, 1.2, "H100"), GpuRates(132, 4.0e6, 0.9, 1.3, 1.0, 1.5, "H200")]
)
def test_rates_are_found_again(rates):
    before = dataclasses.replace(H200_RATES, multiprocessors=rates.multiprocessors)
    found = fit(timed_by(rates, products(HOPPER, before, MEMORY), noise=0.02), before)
    assert found.rates.learned == rates.learned
    assert found.rates.multiprocessors == rates.multiprocessors
    for name in RATES:
        assert getattr(found.rates, name) == pytest.approx(getattr(rates, name), rel=0.2), name
    assert found.error < 0.03 < 0.1 < found.error_before


def test_rates_that_predict_as_well_are_kept():
    found = fit(timed_by(H200_RATES, products(HOPPER, H200_RATES, MEMORY)), H200_RATES)
    assert found.rates == H200_RATES
    assert found.error == found.error_before < 1e-6


def test_rates_stay_within_those_that_a_file_may_have():
    """However absurd the times of a GPU are, its rates can be read again."""
    found = products(HOPPER, H200_RATES, MEMORY)[:8]
    absurd = [Timed(one.problem, dict.fromkeys((choice.config for choice in one.choices), 1e9)) for one in found]
    rates = fit(absurd, GpuRates(132, 1e4, 800.0, 800.0, 800.0, 800.0)).rates
    assert 900 < max(rates.multiply, rates.load, rates.l2, rates.launch) < FARTHEST


def test_times_that_are_wrong_by_far_count_little():
    timed = timed_by(H200_RATES, products(HOPPER, H200_RATES, MEMORY), noise=0.02)
    timed[4] = Timed(timed[4].problem, {config: 20 * us for config, us in timed[4].us.items()})
    found = fit(timed, H100_RATES)
    for name in RATES:
        assert getattr(found.rates, name) == pytest.approx(getattr(H200_RATES, name), rel=0.25), name


def test_fit_to_times_of_an_h100():
    """Times that were measured: those of 48 products give rates that predict others as well as what is shipped."""
    lines = [json.loads(line) for line in (RESULTS / RECORD).read_text().splitlines()]
    fields = next(line for line in lines if line["record"] == "configs")["configs"]
    configs = [HopperGemmConfig.of_record(current_fields(SPEC.name, one)) for one in fields]
    timed = []
    for one in [line for line in lines if line["record"] == "config_times"][:300]:
        problem = gemm_problem(one["m"], one["n"], one["k"], one["dtype"], one["out_dtype"], one["layout"])
        us = {configs[int(number)]: time for number, time in one["times_us"].items() if configs[int(number)] in CONFIGS}
        fastest = sorted(us, key=us.__getitem__)[:2]
        timed.append(Timed(problem, {config: us[config] for config in fastest}))
    # Far from any chip's.
    before = GpuRates(132, 2.0e6, 1.5, 1.5, 1.5, 1.5)
    found = fit(timed[::6][:48], before)
    others = [one for number, one in enumerate(timed) if number % 6]
    assert found.error < 0.05 < 0.3 < found.error_before
    assert error(others, found.rates) < 1.15 * error(others, H100_RATES) < 0.04
    assert found.rates.memory == pytest.approx(H100_RATES.memory, rel=0.25)
    assert found.rates.learned == "H100"
