"""Fit the cost model's learned correction to records, and choose which configs to register.

Reads the records of `config_times.py`, and those of `untuned_choices.py` for sizes beyond them. Every eighth product is
left out of the fit, and what the fitted model would choose of it is printed beside cuBLASLt's first choice and beside
the best config of the record. Needs PyTorch, and no GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from untuned_choices import product

from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.dispatch.rates_table import rates_for
from gemmule.kernels.hopper.cost import correction as hopper_correction
from gemmule.kernels.hopper.cost.correction import NUMBERS, problem_features
from gemmule.kernels.hopper.cost.operation import operation_of
from gemmule.kernels.hopper.cost.pauses import crowded, promote_us
from gemmule.kernels.hopper.cost.times import limits, rates_of
from gemmule.kernels.hopper.gemm.config import CONFIGS, FOR_FLOAT8, HopperGemmConfig
from gemmule.lab.records import read_records

#: Of each record every so many-th product is left out of the fit, the first one too.
HELD_OUT = 8
_SMS = 132
_TYPES = ("bfloat16", "float16", "int8", "float32-tf32")
#: Weight of records of registered configs alone, and how fast that of a config falls with its distance from the best.
_WEIGHT_UNTUNED, _NEAR, _LEAST_WEIGHT = 0.5, 2.5, 0.05
#: Weight of records of 8-bit floats, which are few.
_WEIGHT_FLOAT8 = 3.0
#: Networks, and where errors count linearly, as a logarithm to base 2.
_NETWORKS, _HUBER = 4, 0.1
#: What products of those weights are.
_GROUPS = {
    1.0: "random products of 64 to 8192",
    _WEIGHT_UNTUNED: "of registered configs alone",
    _WEIGHT_FLOAT8: "8-bit floats",
}
#: Parts of the features.
_PARTS = ("config", "operands", "mixed", "problem")


class Training(NamedTuple):
    """Units of a layer, rounds, times of a step, learning rate, and decay of weights."""

    units: int
    epochs: int
    batch: int
    rate: float
    decay: float


_TRAINING = Training(24, 60, 2048, 1.5e-2, 0.02)


@dataclasses.dataclass
class Measured:
    """A product with times of configs.

    Attributes
    ----------
    chip : str
        As its driver calls it.
    configs : sequence of HopperGemmConfig
        The configs.
    times, expected : array
        Microseconds that were measured, and those of the limits alone.
    features : array
        A row for each config.
    weight : float
        In the fit.
    cublaslt : float or None
        Microseconds of cuBLASLt's first choice.
    held_out : bool
        Whether it is left out of the fit.
    promoted, factor : array
        Of floats of 8 bits: what promotions add, and what all is multiplied by.
    """

    chip: str
    configs: Sequence[HopperGemmConfig]
    times: Any
    expected: Any
    features: Any
    weight: float
    cublaslt: float | None = None
    held_out: bool = False
    promoted: Any = None
    factor: Any = 1.0

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
    total, read = limits(one, of)
    parts = [of.features(), of.of_layout(one).features, read.T[:, :-NUMBERS]]
    parts.append(np.array(problem_features(one), float)[of.side])
    return [part.shape[1] for part in parts], total, np.concatenate(parts, axis=1).astype(np.float32)


def read(paths: Sequence[Path]) -> Iterator[Measured]:
    """Yield the products of record files."""
    for path in paths:
        number = -1
        configs: tuple[HopperGemmConfig, ...] = ()
        chip, gpu = "", H200_RATES
        for record in read_records(path):
            if record["record"] == "experiment":
                chip = record["gpu"]
                gpu = rates_for(chip, _SMS)
            elif record["record"] == "configs":
                configs = tuple(HopperGemmConfig(**one) for one in record["configs"])
            elif record["record"] == "config_times":
                number += 1
                one = _operation(record)
                _, expected, features = widths(one, configs, gpu)
                # A call offers no 8-bit floats tall tiles.
                places = [
                    place for place in map(int, record["times_us"]) if not one.float8 or configs[place].mma_tiles_m == 1
                ]
                times = np.array([record["times_us"][str(place)] for place in places])
                every = [configs[place] for place in places]
                found = Measured(chip, every, times, expected[places], features[places], 1.0, record["cublaslt_us"][0],
                                 number % HELD_OUT == 0)  # fmt: skip
                if one.float8:
                    of = rates_of(tuple(every), gpu)
                    found.weight, found.promoted, found.factor = _WEIGHT_FLOAT8, promote_us(one, of), crowded(one, of)
                yield found
            elif record["record"] == "untuned" and record["kernel"] == "hopper_gemm" and _type(record) in _TYPES:
                number += 1
                looked = [one for one in record["looked"] if one["kernel"] == "hopper_gemm"]
                some = tuple(HopperGemmConfig(**one["config"]) for one in looked)
                _, expected, features = widths(_operation(record), some, gpu)
                times = np.array([one["median_us"] for one in looked])
                yield Measured(chip, some, times, expected, features, _WEIGHT_UNTUNED, None, number % HELD_OUT == 0)


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
    parts : mapping
        Names of the parts of features, and their widths.
    chips : sequence of str
        Chips with biases of their own.
    differences : array
        What features are multiplied by first.
    training : Training
        How they are fitted.
    """

    def __init__(
        self,
        products: Sequence[Measured],
        parts: Mapping[str, int],
        chips: Sequence[str],
        differences: Any,
        training: Training,
    ) -> None:
        self._parts, self._chips, self._differences, self._training = parts, chips, differences, training
        features = np.concatenate([one.features for one in products]) @ self._differences
        self._mean, self._deviation = features.mean(axis=0), features.std(axis=0) + 1e-3
        inputs = torch.cat([self._inputs(one) for one in products])
        wanted = torch.tensor(np.concatenate([one.wanted for one in products]), dtype=torch.float32)
        near = [np.exp(-_NEAR * (one.times / one.times.min() - 1)) for one in products]
        weights = [one.weight * np.maximum(some, _LEAST_WEIGHT) for one, some in zip(products, near, strict=True)]
        self._train(inputs, wanted, torch.tensor(np.concatenate(weights), dtype=torch.float32))

    def _inputs(self, one: Measured) -> torch.Tensor:
        scaled = (one.features @ self._differences - self._mean) / self._deviation
        chip = np.zeros((len(scaled), len(self._chips) + 1))
        chip[:, [name in one.chip for name in self._chips].index(True)] = 1
        chip[:, -1] = one.float8
        return torch.tensor(np.concatenate([scaled, chip], axis=1), dtype=torch.float32)

    def _train(self, inputs: torch.Tensor, wanted: torch.Tensor, weights: torch.Tensor) -> None:
        torch.manual_seed(0)
        count, width = inputs.shape
        units, epochs, batch, rate, decay = self._training
        shapes = ((width, units, 1.4), (units, units, 1.4), (units, 1, 0.3))
        layers = [torch.randn(_NETWORKS, rows, cols) * (gain / rows**0.5) for rows, cols, gain in shapes]
        biases = [torch.zeros(_NETWORKS, 1, units), torch.zeros(_NETWORKS, 1, 1)]
        self._first, self._second, self._out, self._biases, self._bias = parameters = [
            one.requires_grad_() for one in (*layers, *biases)
        ]
        weights = weights / weights.mean()
        optimizer = torch.optim.AdamW(parameters, rate, betas=(0.9, 0.99), weight_decay=decay)
        steps = epochs * -(-count // batch)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps, pct_start=0.15)
        for _ in range(epochs):
            order = torch.stack([torch.randperm(count) for _ in range(_NETWORKS)])
            for chosen in order.split(batch, dim=1):
                error = (self._outputs(inputs[chosen]) - wanted[chosen]).abs()
                loss = torch.where(error < _HUBER, error * error / 2, _HUBER * (error - _HUBER / 2))
                optimizer.zero_grad()
                (loss * weights[chosen]).mean().backward()
                optimizer.step()
                schedule.step()

    def _outputs(self, inputs: torch.Tensor) -> torch.Tensor:
        layer = torch.relu(inputs @ self._first)
        layer = torch.relu(layer @ self._second + self._biases)
        return (layer @ self._out + self._bias)[..., 0]

    def expected(self, one: Measured) -> Any:
        """Return the microseconds of a product's configs."""
        with torch.no_grad():
            found = one.expected * np.exp2(self._outputs(self._inputs(one)).mean(dim=0).numpy())
        return (found + one.promoted) * one.factor if one.float8 else found

    def networks(self) -> list[dict[str, Any]]:
        """Return the weights as the cost model reads them: of features as they are."""
        first, second, out, biases, bias = (
            one.detach().numpy() for one in (self._first, self._second, self._out, self._biases, self._bias)
        )
        scale = self._differences / self._deviation
        found = []
        for number in range(_NETWORKS):
            places = np.cumsum([0, *self._parts.values(), len(self._chips)])[-2:]
            own, chips, (float8,) = np.split(first[number], places)
            of_parts = np.split(scale @ own, np.cumsum(list(self._parts.values()))[:-1])
            weights = dict(zip(self._parts, of_parts, strict=True))
            weights |= {"chips": chips - self._mean / self._deviation @ own, "float8": float8}
            weights |= {"hidden": second[number]}
            weights |= {"biases": biases[number, 0], "out": out[number, :, 0], "out_bias": bias[number, 0, 0]}
            found.append({name: _digits(value.tolist()) for name, value in weights.items()})
        return found


def _differences(parts: Sequence[int]) -> Any:
    """Return the matrix that makes differences of logarithms of those that differ little from another."""
    found = np.eye(sum(parts))
    mixed, problem = sum(parts[:2]), sum(parts[:3])
    # Computed and carried less the total; a tile's products less its k-tiles; the total less the bytes.
    for less, more in ((mixed, mixed + 1), (mixed, mixed + 2), (mixed + 4, mixed + 5)):
        found[less, more] -= 1
    found[problem + 4, mixed] -= 1
    return found


def _digits(value: Any) -> Any:
    return [_digits(one) for one in value] if isinstance(value, list) else float(f"{value:.3g}")


def judged(fit: Fit, products: Sequence[Measured], registered: Sequence[HopperGemmConfig]) -> str:
    """Say how good the choices among registered configs are, with any number of stages."""
    able = {dataclasses.replace(one, stages=2) for one in registered}
    others = able - {dataclasses.replace(one, stages=2) for one in FOR_FLOAT8}
    shares, ratios = [], []
    for one in products:
        offered = able if one.float8 else others
        known = np.array([dataclasses.replace(config, stages=2) in offered for config in one.configs])
        if known.any():
            taken = np.where(known, fit.expected(one), np.inf).argmin()
            shares.append(one.times[known].min() / one.times[taken])
            ratios += [one.cublaslt / one.times[taken]] if one.cublaslt is not None else []
    text = f"{len(shares)} products: {statistics.geometric_mean(shares):.4f} of the best, least {min(shares):.3f}"
    if ratios:
        below = sum(ratio < 0.95 for ratio in ratios) / len(ratios)
        text += f"; {statistics.geometric_mean(ratios):.4f} of cuBLASLt's first choice, least {min(ratios):.3f}, "
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
    content = json.loads(path.read_text())
    parts = widths(operation_of(product(64, 64, 64, "bfloat16", "nn")), CONFIGS, H200_RATES)[0]
    named = dict(zip(_PARTS, parts, strict=True))
    fitted = [one for one in products if not one.held_out]
    fit = Fit(fitted, named, content["chips"], _differences(parts), _TRAINING)
    for chip in content["chips"]:
        for weight, name in _GROUPS.items():
            some = [one for one in products if one.held_out and chip in one.chip and one.weight == weight]
            if some:
                print(f"{chip}, {name}, held out: {judged(fit, some, CONFIGS)}", flush=True)
    content["networks"] = fit.networks()
    path.write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
