"""Fit the cost model's learned correction to records, and choose which configs to register.

Reads the records of `config_times.py`, and those of `untuned_choices.py` for sizes beyond them. Every eighth product,
and of listed ones every third, is left out of the fit, and what the fitted model would choose of it is printed beside
cuBLASLt's top heuristic and beside the best config of the record. Needs PyTorch, and no GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import random
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from correction_networks import Networks, Training, rounded
from untuned_choices import product

from gemmule.core.dtype import DType, dtype_named
from gemmule.core.errors import ArgumentError
from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.dispatch.rates_table import rates_for
from gemmule.kernels.hopper.cost import correction as hopper_correction
from gemmule.kernels.hopper.cost.correction import NUMBERS, is_layer, problem_features, read_of
from gemmule.kernels.hopper.cost.operation import operation_of
from gemmule.kernels.hopper.cost.pauses import fp8_contention, promote_us
from gemmule.kernels.hopper.cost.times import leading_count, limits, rates_of
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.config_lists import CONFIGS
from gemmule.kernels.hopper.gemm.offers import offered_to
from gemmule.lab.records import read_records

#: Of each record every so many-th product is left out of the fit, the first one too.
HELD_OUT = 8
#: Of products that were listed by kind, fewer, every so many-th.
_HELD_OUT_OF_KINDS = 3
#: Fewer configs of a product do not say which is faster.
_LEAST_CONFIGS = 2
_SMS = 132
_TYPES = ("bfloat16", "float16", "int8", "float32-tf32")
#: Weight of records of registered configs alone.
_WEIGHT_UNTUNED = 0.5
#: How fast a config's weight falls with its distance from the best registered one, and the least, of wide networks and
#: of the shipped one; and what others' are multiplied by.
_NEAR, _LEAST_WEIGHT, _OTHERS = (4.0, 6.0), (0.05, 0.03), (0.5, 0.1)
#: Weight of records of 8-bit floats, which are few.
_WEIGHT_FLOAT8 = 3.0
#: What products of those weights are.
_GROUPS = {
    1.0: "random products of 64 to 8192",
    _WEIGHT_UNTUNED: "of registered configs alone",
    _WEIGHT_FLOAT8: "8-bit floats",
}
#: Parts of the features.
_PARTS = ("config", "operands", "mixed", "problem")

#: Wide networks are fitted to measured times, and the shipped one to the mean of theirs: on these products, and on more
#: that nobody measured.
_WIDE = Training((64, 64), 8, 50, 2048, 1e-2, 0.02)
_SHIPPED = Training((128, 48), 1, 32, 2048, 1e-2, 0.002)
_MORE, _SEED = 12000, 1
#: Share of those with few rows.
_FEW_ROWS = 0.15


@dataclasses.dataclass
class Measured:
    """A product with times of configs.

    Attributes
    ----------
    chip : str
        As its driver calls it.
    dtype : DType
        The elements'.
    configs : sequence of HopperGemmConfig
        The configs.
    times, expected : array
        Microseconds that were measured, and those of the limits alone.
    features : array
        A row for each config.
    weight : float
        In the fit.
    cublaslt : float or None
        Microseconds of cuBLASLt's top heuristic.
    held_out : bool
        Whether it is left out of the fit.
    leading : array
        Whether the cost model evaluates the correction for a config among the registered ones.
    promoted, factor : array
        Of floats of 8 bits: what promotions add, and what all is multiplied by.
    is_layer : bool
        Whether the network of layers predicts it.
    """

    chip: str
    dtype: DType
    configs: Sequence[HopperGemmConfig]
    times: Any
    expected: Any
    features: Any
    weight: float
    cublaslt: float | None = None
    held_out: bool = False
    leading: Any = None
    promoted: Any = None
    factor: Any = 1.0
    is_layer: bool = False

    @property
    def float8(self) -> bool:
        """Whether elements are floats of 8 bits."""
        return self.promoted is not None

    @property
    def wanted(self) -> Any:
        """The logarithm of what the networks are to give."""
        own = self.times / self.factor - (self.promoted if self.float8 else 0.0)
        return np.log2(np.maximum(own, self.times / 4) / self.expected)


def widths(one: Any, configs: tuple[HopperGemmConfig, ...], gpu: GpuRates) -> tuple[list[int], Any, Any]:
    """Return the widths of the parts of features, what the limits expect, and the features of configs."""
    of = rates_of(configs, gpu)
    total, quantities = limits(one, of)
    parts = [of.features(), of.of_layout(one).features, read_of(quantities, of.places).T[:, :-NUMBERS]]
    parts.append(np.array(problem_features(one), float)[of.side])
    return [part.shape[1] for part in parts], total, np.concatenate(parts, axis=1).astype(np.float32)


@functools.cache
def offered(dtype: DType) -> tuple[HopperGemmConfig, ...]:
    """Return the registered configs that the cost model offers to a type."""
    return tuple(config for config in CONFIGS if offered_to(dtype, config))


def leads(one: Any, dtype: DType, gpu: GpuRates, expected: Any) -> Any:
    """Return which configs, by what the limits expect, are among the first of the registered ones of a product."""
    registered = offered(dtype)
    count = leading_count(len(registered), one.float8)
    return expected <= np.sort(limits(one, rates_of(registered, gpu))[0])[count - 1]


def read(paths: Sequence[Path]) -> Iterator[Measured]:
    """Yield the products of record files."""
    for path in paths:
        number = -1
        configs: list[HopperGemmConfig | None] = []
        chip, gpu = "", H200_RATES
        for record in read_records(path):
            if record["record"] == "experiment":
                chip, gpu = record["gpu"], rates_for(record["gpu"], _SMS)
            elif record["record"] == "configs":
                configs = _configs(record)
            elif record["record"] == "config_times":
                number += 1
                one, dtype = _operation(record), dtype_named(record["dtype"])
                timed = [(configs[int(place)], us) for place, us in record["times_us"].items()]
                # A call offers no 8-bit floats tall tiles.
                able = [(x, us) for x, us in timed if x is not None and (not one.float8 or x.mma_tiles_m == 1)]
                # Of TF32 predicted times have a factor for operands in registers besides.
                if len(able) < _LEAST_CONFIGS or (dtype.itemsize == 4 and (one.a.mn_major or one.b.mn_major)):
                    continue
                every, times = tuple(x for x, _ in able), np.array([us for _, us in able])
                _, expected, features = widths(one, every, gpu)
                leading = leads(one, dtype, gpu, expected)
                held_out = number % (_HELD_OUT_OF_KINDS if "kind" in record else HELD_OUT) == 0
                found = Measured(chip, dtype, every, times, expected, features, 1.0,
                                 record["cublaslt_us"][0], held_out, leading,
                                 is_layer=is_layer(one, gpu.learned))  # fmt: skip
                if one.float8:
                    of = rates_of(every, gpu)
                    found.weight = _WEIGHT_FLOAT8
                    found.promoted, found.factor = promote_us(one, of), fp8_contention(one, of)
                yield found
            elif record["record"] == "untuned" and record["kernel"] == "hopper_gemm" and _type(record) in _TYPES:
                number += 1
                looked = [one for one in record["looked"] if one["kernel"] == "hopper_gemm"]
                some = tuple(HopperGemmConfig.of_record(one["config"]) for one in looked)
                one, dtype = _operation(record), dtype_named(record["dtype"])
                _, expected, features = widths(one, some, gpu)
                times = np.array([one["median_us"] for one in looked])
                yield Measured(chip, dtype, some, times, expected, features, _WEIGHT_UNTUNED, None,
                               number % HELD_OUT == 0, leads(one, dtype, gpu, expected))  # fmt: skip


def invented(count: int, chips: Sequence[str]) -> Iterator[Measured]:
    """Yield random products of the registered configs that lead, without times."""
    numbers = random.Random(_SEED)  # noqa: S311  # sizes, no secrets
    for _ in range(count):
        dtype = numbers.choices(("bfloat16", "int8", "float32-tf32"), (26, 1, 1))[0]
        least, most = numbers.choices(((64, 8192), (8, 20000)), (6, 1))[0]
        unit = numbers.choices(({"bfloat16": 8, "int8": 16}.get(dtype, 4), 16, 64, 128), (6, 1, 1, 1))[0]
        logs = (numbers.uniform(math.log(least), math.log(most)) for _ in range(3))
        m, n, k = (max(round(math.exp(log) / unit), 1) * unit for log in logs)
        if numbers.random() < _FEW_ROWS:
            m = 2 ** numbers.randrange(11)
        layout = numbers.choice(("nn", "nt", "tn", "tt")) if dtype == "bfloat16" else "nt"
        one = operation_of(product(m, n, k, dtype, layout))
        chip = numbers.choice(chips)
        kind = dtype_named(dtype.partition("-")[0])
        gpu, registered = rates_for(chip, _SMS), offered(kind)
        _, expected, features = widths(one, registered, gpu)
        some = np.flatnonzero(leads(one, kind, gpu, expected))
        yield Measured(chip, kind, [registered[x] for x in some], expected[some], expected[some], features[some], 1.0,
                       leading=np.ones(some.size, bool))  # fmt: skip


def _configs(record: dict[str, Any]) -> list[HopperGemmConfig | None]:
    """Return a record's configs, and None in the place of those of other kernels, or that are none any more."""
    kernels = record.get("kernels") or [record["kernel"]] * len(record["configs"])
    return [
        _config(one) if kernel == "hopper_gemm" else None
        for kernel, one in zip(kernels, record["configs"], strict=True)
    ]


def _config(fields: dict[str, Any]) -> HopperGemmConfig | None:
    try:
        return HopperGemmConfig.of_record(fields)
    except (ArgumentError, TypeError):  # A field that configs no longer have is not 0.
        return None


def _type(record: dict[str, Any]) -> str:
    return record["dtype"] + ("" if record["precision"] == "ieee" else "-" + record["precision"])


def _operation(record: dict[str, Any]) -> Any:
    return operation_of(product(record["m"], record["n"], record["k"], _type(record), record["layout"]))


class Fit:
    """Networks that are fitted together, on features that are scaled to a mean of 0 and a deviation of 1.

    Parameters
    ----------
    products : sequence of Measured
        What they are fitted to.
    chips : sequence of str
        Chips with biases of their own.
    training : Training
        How they are fitted.
    targets : sequence of tuple
        For each product the logarithms that the networks are to give for its configs, and what these count.
    start : dict, optional
        The network to start from, as the cost model reads it.
    """

    def __init__(
        self,
        products: Sequence[Measured],
        chips: Sequence[str],
        training: Training,
        targets: Sequence[tuple[Any, Any]],
        start: dict[str, Any] | None = None,
    ) -> None:
        widths_of_parts = widths(operation_of(product(64, 64, 64, "bfloat16", "nn")), CONFIGS, H200_RATES)[0]
        self._parts = dict(zip(_PARTS, widths_of_parts, strict=True))
        self._chips, self._differences = chips, _differences(widths_of_parts)
        features = np.concatenate([one.features for one in products]) @ self._differences
        self._mean, self._deviation = features.mean(axis=0), features.std(axis=0) + 1e-3
        inputs = torch.cat([self._inputs(one) for one in products])
        wanted, weights = (torch.tensor(np.concatenate(x), dtype=torch.float32) for x in zip(*targets, strict=True))
        first = None if start is None else self._scaled(start)
        self._networks = Networks(inputs, wanted, weights / weights.mean(), training, first)

    def _inputs(self, one: Measured) -> torch.Tensor:
        scaled = (one.features @ self._differences - self._mean) / self._deviation
        chip = np.zeros((len(scaled), len(self._chips) + 1))
        chip[:, [name in one.chip for name in self._chips].index(True)] = 1
        chip[:, -1] = one.float8
        return torch.tensor(np.concatenate([scaled, chip], axis=1), dtype=torch.float32)

    def logs(self, one: Measured) -> Any:
        """Return the logarithms of the factors of a product's configs."""
        return self._networks.logs(self._inputs(one))

    def expected(self, one: Measured) -> Any:
        """Return the microseconds of a product's configs, if the cost model evaluates the correction for each."""
        found = one.expected * np.exp2(self.logs(one))
        return (found + one.promoted) * one.factor if one.float8 else found

    def _scaled(self, start: dict[str, Any]) -> dict[str, Any]:
        """Return a network of features as they are as one of scaled features: the inverse of `network`."""
        found = {name: np.array(value) for name, value in start.items()}
        own = np.linalg.solve(self._differences, np.concatenate([found[part] for part in self._parts]))
        own *= self._deviation[:, None]
        chips = found["chips"] + self._mean / self._deviation @ own
        return found | {"first": np.concatenate([own, chips, found["float8"][None]])}

    def network(self) -> dict[str, Any]:
        """Return the weights of the only network as the cost model reads them: of features as they are."""
        (found,) = self._networks.weights()
        places = np.cumsum([0, *self._parts.values(), len(self._chips)])[-2:]
        own, chips, (float8,) = np.split(found.pop("first"), places)
        of_parts = np.split(self._differences / self._deviation @ own, np.cumsum(list(self._parts.values()))[:-1])
        given = dict(zip(self._parts, of_parts, strict=True))
        given |= {"chips": chips - self._mean / self._deviation @ own, "float8": float8}
        return rounded(given | found)


def registered(one: Measured) -> Any:
    """Return which configs of a product are registered, with any number of stages."""
    able = {dataclasses.replace(config, stages=2) for config in offered(one.dtype)}
    return np.array([dataclasses.replace(config, stages=2) in able for config in one.configs])


def weights_of(one: Measured, times: Any, *, shipped: bool = True) -> Any:
    """Return what a product's configs count, by their times: of the shipped network those that lead count most."""
    known = registered(one)
    known &= one.leading | (not shipped)
    slower = np.maximum(times / times[known if known.any() else slice(None)].min() - 1, 0)
    found = np.maximum(np.exp(-_NEAR[shipped] * slower), _LEAST_WEIGHT[shipped]) * np.where(known, 1, _OTHERS[shipped])
    return one.weight * found


def _differences(parts: Sequence[int]) -> Any:
    """Return the matrix that makes differences of logarithms of those that differ little from another."""
    found = np.eye(sum(parts))
    mixed, problem = sum(parts[:2]), sum(parts[:3])
    # Computed and carried less the total; a tile's products less its k-tiles; the total less the bytes.
    for less, more in ((mixed, mixed + 1), (mixed, mixed + 2), (mixed + 4, mixed + 5)):
        found[less, more] -= 1
    found[problem + 4, mixed] -= 1
    return found


def judged(fit: Fit, products: Sequence[Measured]) -> str:
    """Say how good the choices among registered configs are, with any number of stages."""
    shares, ratios = [], []
    for one in products:
        known = registered(one)
        if known.any():
            known_leading = known & one.leading if (known & one.leading).any() else known
            taken = np.where(known_leading, fit.expected(one), np.inf).argmin()
            shares.append(one.times[known].min() / one.times[taken])
            ratios += [one.cublaslt / one.times[taken]] if one.cublaslt is not None else []
    text = f"{len(shares)} products: {statistics.geometric_mean(shares):.4f} of the best, least {min(shares):.3f}"
    if ratios:
        below = sum(ratio < 0.95 for ratio in ratios) / len(ratios)
        text += f"; {statistics.geometric_mean(ratios):.4f} of cuBLASLt's top heuristic, least {min(ratios):.3f}, "
        text += f"{below:.3f} below 0.95"
    return text


def cover(products: Sequence[Measured], count: int) -> list[HopperGemmConfig]:
    """Return the configs of which the best comes closest to the best of all, each chosen after those before it."""
    every = list(dict.fromkeys(config for one in products for config in one.configs))
    numbers = {config: number for number, config in enumerate(every)}
    slower = np.full((len(products), len(every)), np.log(2.5))
    for row, one in enumerate(products):
        places = [numbers[config] for config in one.configs]
        slower[row, places] = np.minimum(np.log(one.times / one.times.min()), np.log(2.5))
    slower *= np.array([[one.weight] for one in products])
    best, found = np.full(len(products), np.inf), []
    for _ in range(count):
        place = int(np.minimum(slower, best[:, None]).sum(axis=0).argmin())
        best = np.minimum(best, slower[:, place])
        found.append(every[place])
        print(f"{np.exp(-best.mean()):.4f} {every[place]}", flush=True)
    return found


def main() -> None:
    """Fit, say how good the choices are, and write the data that the cost model reads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+", help="record files")
    parser.add_argument("--choose", type=int, help="only say which so many configs to register")
    given = parser.parse_args()
    products = list(read(given.records))
    if given.choose:
        cover(products, given.choose)
        return
    path = Path(hopper_correction.__file__).with_name("correction.json")
    chips = json.loads(path.read_text())["chips"]
    fitted = [one for one in products if not one.held_out]
    wide = Fit(fitted, chips, _WIDE, [(one.wanted, weights_of(one, one.times, shipped=False)) for one in fitted])
    print("wide networks are fitted", flush=True)
    every = [*fitted, *invented(_MORE, chips)]
    shipped = Fit(every, chips, _SHIPPED, [(wide.logs(one), weights_of(one, wide.expected(one))) for one in every])
    for chip in chips:
        for weight, name in _GROUPS.items():
            some = [one for one in products if one.held_out and chip in one.chip and one.weight == weight]
            for fit, which in ((wide, "wide networks"), (shipped, "shipped")) if some else ():
                print(f"{chip}, {name}, held out, {which}: {judged(fit, some)}", flush=True)
    network = shipped.network()
    content = {"chips": chips, "network": network, "large": network, "layers": network}
    path.write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
