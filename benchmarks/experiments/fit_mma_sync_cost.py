"""Fit the rates of `mma_sync_gemm`'s predicted times of TF32 to records of `config_times.py --dtype tf32`.

Every fourth product is left out of the fit; of these, the kernel and config that are predicted to be fastest are
compared with the fastest ones and with cuBLASLt's top heuristic. `--choose` also says which configs together come
closest to the best of all: each is the one that reduces most what the best of those before it loses. `--words` fits
the rates of lines that begin at any word, and else those of other products. Needs SciPy, and no GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from gemmule.core.dtype import Precision
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.rates_table import rates_for
from gemmule.kernels.hopper.gemm.spec import SPEC as HOPPER_GEMM
from gemmule.kernels.hopper.gemm_k_major.spec import SPEC as K_MAJOR
from gemmule.kernels.hopper.gemm_repacked.spec import SPEC as REPACKED
from gemmule.kernels.hopper.gemm_unaligned.spec import SPEC as GEMM_UNALIGNED
from gemmule.kernels.mma_sync import tf32_cost
from gemmule.kernels.mma_sync.cost import tf32_us
from gemmule.kernels.mma_sync.launch_geometry import WORD, copied_bytes, launch_problem
from gemmule.kernels.mma_sync.small.spec import SPEC as SMALL
from gemmule.kernels.mma_sync.spec import SPEC
from gemmule.kernels.mma_sync.tf32_cost import Tf32Rates
from gemmule.lab.products import gemm_problem
from gemmule.lab.records import read_records

#: Every so many-th product is left out.
HELD_OUT = 4
_SMS = 132
#: Errors count linearly from here on, as a logarithm; how fast a config's weight falls with its distance from the best;
#: and how much the change of a rate counts as an error.
_LINEAR, _NEAR, _PRIOR = 0.1, 1.5, 0.1


@dataclasses.dataclass
class Measured:
    """A product with times of choices.

    Attributes
    ----------
    problem : GemmProblem
        The product.
    gpu : GpuRates
        The GPU's.
    choices : sequence of Choice
        Kernels and configs.
    times : array
        Their microseconds.
    cublaslt : float
        Microseconds of cuBLASLt's top heuristic.
    own : array
        Numbers of the choices that are of `mma_sync_gemm`.
    """

    problem: GemmProblem
    gpu: GpuRates
    choices: Sequence[Choice]
    times: Any
    cublaslt: float
    own: Any = None

    def __post_init__(self) -> None:
        self.own = np.array([number for number, one in enumerate(self.choices) if one.spec is SPEC], np.intp)
        self.configs = tuple(self.choices[number].config for number in self.own)

    @property
    def begins_anywhere(self) -> bool:
        """Return whether lines of A or B begin at any word."""
        return min(copied_bytes(launch_problem(self.problem))) == WORD

    def predicted(self, rates: Tf32Rates) -> Any:
        """Return the predicted microseconds of the choices of `mma_sync_gemm`."""
        return tf32_us(self.problem, self.configs, self.gpu, rates)


def read(paths: Sequence[Path]) -> list[Measured]:
    """Return the products of records."""
    found, specs = [], {one.name: one for one in (SPEC, SMALL, K_MAJOR, REPACKED, GEMM_UNALIGNED, HOPPER_GEMM)}
    for path in paths:
        records = read_records(path)
        gpu = rates_for(records[0]["gpu"], _SMS)
        choices: list[Choice] = []
        for one in records:
            if one["record"] == "configs":
                choices = [
                    Choice(specs[name], type(specs[name].default)(**config), gpu=gpu)
                    for name, config in zip(one["kernels"], one["configs"], strict=True)
                ]
            # Products of packed operands and of other types are in some records, too.
            elif one["record"] != "config_times" or one.get("prepared") or one["precision"] != "tf32":
                continue
            elif one["cublaslt_us"] and one["cublaslt_us"][0] is not None:
                plain = gemm_problem(one["m"], one["n"], one["k"], "float32", "float32", one["layout"])
                problem = dataclasses.replace(plain, precision=Precision.TF32)
                timed = [choices[int(number)] for number in one["times_us"]]
                times = np.array(list(one["times_us"].values()))
                if any(x.config in x.spec.configs for x in timed):
                    found.append(Measured(problem, gpu, timed, times, one["cublaslt_us"][0]))
    return found


def fit(products: Sequence[Measured], present: Tf32Rates) -> Tf32Rates:
    """Return the rates that predict times near those that were measured; those that are 0 stay."""
    names = [name for name, value in present._asdict().items() if value > 0]
    start = np.log([getattr(present, name) for name in names])
    logs = [np.log(one.times[one.own]) for one in products]
    weights = [(one.times[one.own] / one.times.min()) ** (-_NEAR / 2) for one in products]

    def errors(values: Any) -> Any:
        rates = present._replace(**dict(zip(names, np.exp(values), strict=True)))
        parts = [
            (np.log(one.predicted(rates)) - log) * weight
            for one, log, weight in zip(products, logs, weights, strict=True)
        ]
        return np.concatenate([*parts, _PRIOR * (values - start)])

    values = least_squares(errors, start, loss="soft_l1", f_scale=_LINEAR).x
    return present._replace(**{name: float(f"{math.exp(x):.4g}") for name, x in zip(names, values, strict=True)})


def judge(products: Sequence[Measured], rates: Tf32Rates, *, verbose: bool) -> str:
    """Say how good the choices among registered configs are."""
    shares, ratios, errors, able = [], [], [], []
    for one in products:
        predicted = np.array(
            [
                math.inf if x.spec is SPEC else x.spec.costs(one.problem, [x.config], one.gpu)[0]  # type: ignore[misc]
                for x in one.choices
            ]
        )
        predicted[one.own] = one.predicted(rates)
        registered = np.array([x.config in x.spec.configs for x in one.choices])
        taken = int(np.where(registered, predicted, math.inf).argmin())
        errors.append(math.log(predicted[taken] / one.times[taken]))
        shares.append(one.times.min() / one.times[taken])
        ratios.append(one.cublaslt / one.times[taken])
        able.append(one.cublaslt / one.times[registered].min())
        if verbose and (ratios[-1] < 0.95 or shares[-1] < 0.9):
            p, best = one.problem, int(one.times.argmin())
            print(f"{p.m}x{p.n}x{p.k} {p.layout}: {ratios[-1]:.2f} of cuBLASLt; {one.choices[taken].spec.name} "
                  f"[{one.choices[taken].config}] {one.times[taken]} us, predicted {predicted[taken]:.1f}; best "
                  f"{one.choices[best].spec.name} [{one.choices[best].config}] {one.times[best]} us, predicted "
                  f"{predicted[best]:.1f}")  # fmt: skip
    below = sum(x < 0.95 for x in ratios) / len(ratios)
    return (
        f"{len(ratios)} products: {_mean(shares):.3f} of the best, {_mean(ratios):.3f} of cuBLASLt's top heuristic "
        f"(best registered {_mean(able):.3f}), least {min(ratios):.2f}, {below:.2f} below 0.95 (best registered "
        f"{sum(x < 0.95 for x in able) / len(able):.2f}); error {np.std(errors):.3f}, bias {np.mean(errors):.3f}"
    )


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def cover(products: Sequence[Measured], count: int) -> None:
    """Print the configs of which the best comes closest to the best of all, each chosen after those before it."""
    every: dict[tuple[str, Any], int] = {}
    for one in products:
        for choice in one.choices:
            every.setdefault((choice.spec.name, choice.config), len(every))
    names = list(every)
    slower = np.full((len(products), len(every)), math.log(2.0))
    for row, one in enumerate(products):
        for choice, time in zip(one.choices, one.times, strict=True):
            lost = min(math.log(time / one.times.min()), math.log(2.0))
            # Counted three times as far as it is slower than cuBLASLt.
            lost += 2 * max(math.log(0.95 * time / one.cublaslt), 0.0)
            slower[row, every[choice.spec.name, choice.config]] = lost
    best = np.full(len(products), np.inf)
    for number, (name, _) in enumerate(names):
        if name != SPEC.name:
            best = np.minimum(best, slower[:, number])
    for _ in range(count):
        place = int(np.minimum(slower, np.minimum(best, 9.0)[:, None]).sum(axis=0).argmin())
        best = np.minimum(best, slower[:, place])
        print(f"{best.mean():.4f} {names[place][0]} {names[place][1]}", flush=True)


def main() -> None:
    """Fit, and print rates and how good the choices are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+", help="record files")
    parser.add_argument("--choose", type=int, default=0, help="print so many configs that cover the products")
    parser.add_argument("--present", action="store_true", help="judge the present rates, and fit none")
    parser.add_argument("--words", action="store_true", help="products of TF32 whose lines begin at any word")
    given = parser.parse_args()
    products = [one for one in read(given.records) if one.begins_anywhere == given.words]
    present = tf32_cost.UNALIGNED_RATES if given.words else tf32_cost.RATES
    if given.choose:
        cover(products, given.choose)
    if given.present:
        print(judge(products, present, verbose=True))
        return
    fitted = [one for number, one in enumerate(products) if number % HELD_OUT]
    rates = fit(fitted, present)
    print("RATES =", rates)
    print("fitted:", judge(fitted, rates, verbose=False))
    print(
        "held out:", judge([one for number, one in enumerate(products) if not number % HELD_OUT], rates, verbose=True)
    )


if __name__ == "__main__":
    main()
