"""Products that determine a GPU's rates: for each rate those whose predicted times depend on it most."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Iterator, Sequence

from gemmule.core.arch import Arch
from gemmule.core.config import Config, configs_on
from gemmule.core.gpu_rates import RATES, GpuRates
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.config_lists import CONFIGS
from gemmule.kernels.hopper.gemm.spec import SPEC

from ..products import gemm_problem

#: Configs that are timed: a few of each kind, since each is compiled for both layouts.
TIMED_CONFIGS: tuple[HopperGemmConfig, ...] = tuple(
    one
    for one in CONFIGS
    if (one.tile_m, one.tile_n, one.cluster_m, one.cluster_n, one.cluster_k, one.swap_ab, one.pingpong)
    in {
        (256, 192, 2, 1, 1, 0, 0),
        (128, 256, 1, 1, 1, 0, 0),
        (128, 192, 1, 1, 1, 0, 1),
        (128, 192, 4, 1, 1, 0, 1),
        (128, 128, 1, 1, 1, 0, 1),
        (128, 128, 1, 4, 1, 0, 1),
        (64, 192, 4, 1, 1, 0, 1),
        (64, 128, 1, 1, 1, 0, 1),
        (64, 64, 1, 1, 1, 0, 1),
        (64, 32, 1, 1, 1, 1, 1),
        (64, 64, 1, 1, 4, 0, 1),
    }
)
#: Products that are drawn; of them those timed for each rate, and those timed whatever they depend on;
#: configs for each product, predicted to take at most so many times the least.
_DRAWN, _EACH, _OTHERS, _CONFIGS, _SLOWER = 300, 7, 9, 2, 1.3
#: Extents, elements that they are multiples of, and most bytes of a product; the share of a GPU's memory.
_LEAST, _MOST, _UNIT, _MOST_BYTES, _SHARE = 64, 16384, 8, 400e6, 1 / 16
_SEED, _DTYPE, _LAYOUTS = 20261124, "bfloat16", ("nn", "nt")
#: By how much a rate is changed to see which times depend on it, and what products that were not taken for one are for.
_CHANGE, ANY = 1.1, "any"


@dataclasses.dataclass(frozen=True)
class Product:
    """A product that is timed."""

    problem: GemmProblem  #: The product.
    rate: str  #: The rate that its time depends on more than others' times, or `ANY`.
    choices: tuple[Choice, ...]  #: The kernel in the configs that are timed.


def products(arch: Arch, gpu: GpuRates, memory: int) -> tuple[Product, ...]:
    """Return the products to be timed; none where the kernel does not run.

    Parameters
    ----------
    gpu : GpuRates
        Rates that predict roughly what the products depend on.
    memory : int
        Bytes of device memory that are free.
    """
    drawn = _drawn(min(_MOST_BYTES, memory * _SHARE))
    taken = [_Drawn(one, arch, gpu) for one in drawn if SPEC.refuses is None or SPEC.refuses(one, arch) is None]
    found = dict.fromkeys(range(min(_OTHERS, len(taken))), ANY)
    for name in RATES:
        rates = dataclasses.replace(gpu, **{name: getattr(gpu, name) * _factor(name)})
        depends = [one.depends(rates) for one in taken]
        able = (number for number in sorted(range(len(taken)), key=depends.__getitem__, reverse=True))
        for number in itertools.islice((one for one in able if one not in found), _EACH):
            found[number] = name
    return tuple(
        Product(taken[number].problem, found[number], taken[number].choices(_CONFIGS)) for number in sorted(found)
    )


class _Drawn:
    """A product that was drawn, and the configs that it may be timed in, the fastest first."""

    def __init__(self, problem: GemmProblem, arch: Arch, gpu: GpuRates) -> None:
        self.problem, self._gpu, self._configs = problem, gpu, configs_on(TIMED_CONFIGS, gpu.multiprocessors)
        self._us = _costs(problem, self._configs, gpu)
        able = [x for x, one in enumerate(self._configs) if SPEC.why_not(problem, arch, one) is None]
        least = min(self._us[x] for x in able)
        self._able = sorted((x for x in able if self._us[x] <= _SLOWER * least), key=self._us.__getitem__)

    def depends(self, rates: GpuRates) -> float:
        """Return how much longer its fastest config takes with other rates, as a logarithm."""
        fastest = self._able[0]
        return math.log(_costs(self.problem, self._configs, rates)[fastest] / self._us[fastest])

    def choices(self, count: int) -> tuple[Choice, ...]:
        """Return the kernel in the fastest configs."""
        return tuple(Choice(SPEC, self._configs[x], gpu=self._gpu) for x in self._able[:count])


def _factor(name: str) -> float:
    """Return the change of a rate that makes products take longer."""
    return 1 / _CHANGE if name == "memory" else _CHANGE


def _costs(problem: GemmProblem, configs: Sequence[Config], gpu: GpuRates) -> list[float]:
    assert SPEC.costs is not None
    return list(SPEC.costs(problem, configs, gpu))


def _drawn(most_bytes: float) -> Iterator[GemmProblem]:
    """Yield random products, the same ones on every GPU with so much memory."""
    numbers = random.Random(_SEED)  # noqa: S311  # sizes, no secrets
    for _ in range(_DRAWN):
        logs = (numbers.uniform(math.log(_LEAST), math.log(_MOST)) for _ in range(3))
        m, n, k = (round(math.exp(log) / _UNIT) * _UNIT for log in logs)
        found = gemm_problem(m, n, k, _DTYPE, _DTYPE, numbers.choice(_LAYOUTS))
        if found.bytes_min <= most_bytes:
            yield found
