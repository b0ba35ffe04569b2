"""The choice of a config for quantisation."""

from __future__ import annotations

from typing import Any

from gemmule.core.arch import Arch
from gemmule.core.errors import UnsupportedError
from gemmule.core.gpu_rates import H200_RATES
from gemmule.core.spec import Choice
from gemmule.kernels.quantize.spec import BY_TENSOR, SPEC

from .choices.choice_cache import cached_choice
from .rates_table import rates_for


@cached_choice
def choose_quantize(problem: Any, arch: Arch, multiprocessors: int | None, chip: str | None) -> Choice:
    """Return the kernel and config.

    Parameters
    ----------
    problem : QuantizeProblem
        The problem.
    arch, multiprocessors, chip
        As of `select.choose`.

    Raises
    ------
    UnsupportedError
        If the kernel cannot take the problem, or the GPU has no 8-bit floats.
    """
    spec = BY_TENSOR if problem.by == "tensor" else SPEC
    if not arch.has_float8:
        raise UnsupportedError(
            "no quantisation: 8-bit floats need compute capability 8.9 or newer, not "
            f"{arch}; quantise a copy of x on the host"
        )
    gpu = H200_RATES if multiprocessors is None else rates_for(chip, multiprocessors)
    assert spec.refuses is not None
    reason = spec.refuses(problem, arch)
    found = None if reason else spec.cheapest(problem, arch, gpu)
    if found is None:
        raise UnsupportedError(f"no quantisation: {reason or spec.why_not(problem, arch, spec.default)}")
    config, us = found
    return Choice(spec, config, (), "cost", None if multiprocessors is None else us, gpu=gpu)
