"""Fit rates of predicted times of `float64_gemm`, or `complex128_gemm`, to records of `config_times.py`, tuning, draws.

Every fourth product is left out of a first fit; of these, the config that is predicted to be fastest is compared with
the fastest one and with cuBLASLt's top heuristic. Then all are fitted, and the rates printed. Of a draw, the time of
the choice is fitted. `--choose` first says which configs together come closest to the best of all: each is the one that
reduces most what the best of those before it loses. Of float64 a learned correction takes the place of the factors:
`fit_float64_correction.py`. Needs SciPy, and no GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from gemmule.core.gpu_rates import GpuRates
from gemmule.core.problem import GemmProblem
from gemmule.dispatch.former_names import current_record
from gemmule.dispatch.rates_table import rates_for
from gemmule.kernels.complex import cost as complex_cost
from gemmule.kernels.complex.complex128.spec import SPEC as COMPLEX128_GEMM
from gemmule.kernels.complex.config import Complex128Config
from gemmule.kernels.float64 import limits
from gemmule.kernels.float64.config import Float64Config
from gemmule.kernels.float64.gemm.kernel import needs_registers
from gemmule.kernels.float64.gemm.spec import SPEC as FLOAT64_GEMM
from gemmule.kernels.float64.gemm.stream_k import registers_are_scarce
from gemmule.kernels.float64.limits import Float64Rates
from gemmule.lab.products import gemm_problem
from gemmule.lab.records import read_records

HELD_OUT = 4
#: By the type: kernel, class of its configs, and what its predicted times were fitted to.
KINDS = {
    "float64": (FLOAT64_GEMM, Float64Config, limits.RATES, {}),
    "complex128": (COMPLEX128_GEMM, Complex128Config, complex_cost.RATES, complex_cost.FACTORS),
}
_SMS = 132
#: Until this day, a memset of so many microseconds preceded float64_gemm with stream-K, as measured beside it
#: without; and kernels that copy many pieces spilled, so that their times say nothing of those of today.
_MEMSET_UNTIL, _MEMSET = "20261129", 2.1
#: Until this time more clusters shared a tile, by k-tiles and SMs of a GPC; times of as many as today are kept.
_CLUSTERS_UNTIL, _LEAST_K_TILES, _GPC_SMS = "20261129T0500", 4, 18
#: At this time kernels that need registers had fewer.
_FEW_REGISTERS = "20261129T0549"
#: As logarithms: how near two predictions are that are chosen alike, and how much slower configs are whose errors count
#: a third; and how much what choices lose counts beside errors of predicted times, and changes of rates and factors.
_NEAR, _FASTER, _CHOICE, _PRIOR = 0.02, 0.15, 1.5, 0.02


class Product(NamedTuple):
    """A measured product: times by config, and cuBLASLt's top heuristic."""

    problem: GemmProblem
    gpu: GpuRates
    times: dict[Float64Config, float]
    first: float | None


def products(path: Path, dtype: str) -> list[Product]:
    """Return the products of a record, of `config_times.py` or of a search, with the times of today's kernels."""
    found = list(_recorded(path, dtype))
    if dtype == "float64" and path.name < _MEMSET_UNTIL:
        found = [one._replace(times=dict(_without_memset(one))) for one in found]
    if dtype == "float64" and path.name < _CLUSTERS_UNTIL:
        found = [one._replace(times=dict(_as_many_clusters(one))) for one in found]
    if dtype == "float64" and path.name.startswith(_FEW_REGISTERS):
        found = [one._replace(times=dict(_with_registers(one))) for one in found]
    return [one for one in found if one.times]


def _with_registers(one: Product) -> Iterator[tuple[Float64Config, float]]:
    for config, us in one.times.items():
        if not needs_registers(config, dict(FLOAT64_GEMM.signature(one.problem, config))):
            yield config, us


def _as_many_clusters(one: Product) -> Iterator[tuple[Float64Config, float]]:
    for config, us in one.times.items():
        today = config.on(_SMS)
        if config.split_k:
            tiles = -(-one.problem.m // config.tile_m) * -(-one.problem.n // config.tile_n)
            k_tiles, shared = -(-one.problem.k // config.tile_k), config.cluster_k
            running = config.ctas * (config.resident * _GPC_SMS // shared * shared) // _GPC_SMS
            splits = max(min(running // (tiles * shared), k_tiles // (shared * _LEAST_K_TILES)), 1)
            if splits != today.splits(tiles, k_tiles) or (today != config and today in one.times):
                continue
        yield today, us


def _without_memset(one: Product) -> Iterator[tuple[Float64Config, float]]:
    for config, us in one.times.items():
        if not config.stream_k:
            yield config, us
        elif not registers_are_scarce(config, dict(FLOAT64_GEMM.signature(one.problem, config))):
            yield config, us - _MEMSET


def _recorded(path: Path, dtype: str) -> Iterator[Product]:
    """Yield the products of a record."""
    found = [current_record(one) for one in read_records(path)]
    gpu = rates_for(found[0]["gpu"], _SMS)
    spec, config_class, _, _ = KINDS[dtype]
    # Some records are of several kernels.
    configs = [
        config_class(**one) if name == spec.name else None
        for x in found
        if x["record"] == "configs"
        for name, one in zip(x.get("kernels") or [spec.name] * len(x["configs"]), x["configs"], strict=True)
    ]
    for one in found:
        if one["record"] == "config_times" and one["dtype"] == dtype:
            times = {configs[int(x)]: us for x, us in one["times_us"].items()}
            first = next(iter(one["cublaslt_us"]), None)
        elif one.get("kernel") == spec.name and "looked" in one:
            times = {config_class(**x["config"]): x["median_us"] for x in one["looked"]}
            first = one.get("yardstick_first_us")
        elif one.get("kernel") == spec.name and one.get("chosen_by") == "dispatch":
            times, first = {config_class(**one["config"]): one["median_us"]}, None
        else:
            continue
        problem = gemm_problem(one["m"], one["n"], one["k"], dtype, dtype, one["layout"])
        yield Product(problem, gpu, times, first)


def chosen(found: Sequence[Product], count: int) -> list[Float64Config]:
    """Return configs that together come closest to the best of all, and print what each adds."""
    every = sorted({config for one in found for config in one.times}, key=str)
    best = np.array([min(one.times.values()) for one in found])
    times = np.array([[one.times.get(config, np.inf) for config in every] for one in found])
    picked, reached = list[int](), np.full(len(found), np.inf)
    for _ in range(min(count, len(every))):
        losses = [
            np.log(np.minimum(np.minimum(reached, times[:, x]), 10 * best) / best).sum() for x in range(len(every))
        ]
        x = int(np.argmin(losses))
        picked.append(x)
        reached = np.minimum(reached, times[:, x])
        print(f"{np.exp(-losses[x] / len(found)):.4f}, least {(best / reached).min():.3f}: {every[x]}")
    return [every[x] for x in picked]


def judged(found: Sequence[Product], configs: Sequence[Float64Config], logs: Any) -> str:
    """Return what the choices by those predictions reach."""
    shares, ratios = [], []
    for number, one in enumerate(found):
        if len(one.times) == 1:
            # A draw's: nothing to choose among.
            continue
        able = [config for config in configs if config in one.times]
        took = one.times[able[int(np.argmin(logs(number, able)))]]
        shares.append(min(one.times.values()) / took)
        if one.first is not None:
            ratios.append(one.first / took)
    ratio = np.array(ratios)
    return (
        f"{np.exp(np.mean(np.log(shares))):.4f} of the best config; of cuBLASLt's top heuristic "
        f"{np.exp(np.mean(np.log(ratio))):.4f}, below 0.95 {np.mean(ratio < 0.95):.2f}, least {ratio.min():.3f}"
    )


def main() -> None:
    """Fit, and print rates, factors and how good the choices are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--choose", type=int, default=0, help="how many configs to choose; 0 are the registered ones")
    parser.add_argument("--steps", type=int, default=40, help="steps of the fit")
    parser.add_argument("--dtype", choices=KINDS, default="float64")
    given = parser.parse_args()
    spec, _, first_rates, first_factors = KINDS[given.dtype]
    found = [one for path in given.records for one in products(path, given.dtype)]
    configs = chosen(found, given.choose) if given.choose else list(spec.configs)
    found = [one for one in found if not one.times.keys().isdisjoint(configs)]
    keys = list(dict.fromkeys(map(limits.key_of, configs)))
    count = len(dataclasses.fields(Float64Rates))

    def predicted(values: Any, number: int, able: Sequence[Float64Config]) -> Any:
        rates = Float64Rates(*np.exp(values[:count]))
        one, factors = found[number], np.array([keys.index(limits.key_of(config)) for config in able])
        times = limits.limits(one.problem, able, one.gpu, rates).times
        return np.log(times) + values[count:][factors]

    every = list(range(len(found)))
    fitted = [number for number in every if number % HELD_OUT]

    def loss(values: Any, numbers: Sequence[int]) -> float:
        """Return how far predicted times are off in the mean, and what choices lose, and how far values moved."""
        lost = 0.0
        for number in numbers:
            able = [config for config in configs if config in found[number].times]
            times = np.log([found[number].times[config] for config in able])
            logs = predicted(values, number, able)
            weights, chances = np.exp((times.min() - times) / _FASTER), np.exp((logs.min() - logs) / _NEAR)
            errors = np.sqrt(np.square(logs - times) + 1e-4)
            lost += float(weights @ errors / weights.sum())
            lost += _CHOICE * float(chances @ (times - times.min()) / chances.sum())
        return lost / len(numbers) + _PRIOR * float(np.square(values - start).sum())

    start = np.concatenate([np.log(dataclasses.astuple(first_rates)), np.zeros(len(keys))])
    before = np.concatenate([start[:count], np.log([first_factors.get(key, 1.0) for key in keys])])
    # The least is sought with steps that are larger than those of ceilings in the predicted times.
    options = {"maxiter": given.steps, "eps": 1e-5}
    values = minimize(loss, before, (fitted,), method="L-BFGS-B", options=options).x
    after = minimize(loss, values, (every,), method="L-BFGS-B", options=options).x
    print("RATES =", Float64Rates(*(float(f"{x:.4g}") for x in np.exp(after[:count]))))
    for key, factor in zip(keys, np.exp(after[count:]), strict=True):
        print(f"    {key}: {factor:.3f},")
    for name, numbers in (("fitted", fitted), ("held out", sorted(set(every) - set(fitted)))):
        some = [found[number] for number in numbers]
        for when, given_values in (("before", before), ("now", values)):
            text = judged(some, configs, lambda x, able, v=given_values, n=numbers: predicted(v, n[x], able))
            print(f"{len(some)} {name} products, {when}: {text}")


if __name__ == "__main__":
    main()
