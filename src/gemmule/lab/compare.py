"""One product by arithmetic and by the clock: what a chip could do at best, and what the CPU takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gemmule.core.chip import Chip
from gemmule.core.problem import GemmProblem
from gemmule.core.roofline import fastest_unit, problem_bound, ridge

from .accuracy import accuracy, reference, sampled_rows
from .products import Array, as_matrix, random_inputs

#: Rows of a result that are compared.
COMPARED_ROWS = 256
#: The CPU's product is repeated up to that often within that many seconds.
_REPEATS, _SECONDS = 5, 3.0


def theory(problem: GemmProblem, chip: Chip) -> dict[str, Any]:
    """Return the least times of a product on a chip, and what limits it.

    Returns
    -------
    dict
        Bytes to the GPU and back. Nominal times in ms over the host link, one way and the other, over device memory
        (each input read once, the output written once) and in the arithmetic units. The product's operations a byte,
        and how many it takes for arithmetic to limit. The verdict with the operands in device memory, and what limits
        with them in the host's.
    """
    unit, peak = fastest_unit(chip, problem.a.dtype, problem.b.dtype, problem.precision)
    back = problem.m * problem.n * problem.d.dtype.itemsize
    there = problem.bytes_min - back
    bound = problem_bound(problem, chip)
    return {
        "chip": chip.name,
        "operations": problem.flop,
        "bytes_to_gpu": there,
        "bytes_back": back,
        "host_link": chip.host_link,
        "host_link_gbps": chip.host_bandwidth / 1e9,
        "to_gpu_ms": 1e3 * there / chip.host_bandwidth,
        "back_ms": 1e3 * back / chip.host_bandwidth,
        "memory_gbps": chip.memory_bandwidth / 1e9,
        "memory_ms": 1e3 * problem.bytes_min / chip.memory_bandwidth,
        "unit": unit,
        "unit_tflops": peak / 1e12,
        "compute_ms": 1e3 * bound.compute_seconds,
        "operations_per_byte": problem.flop / problem.bytes_min,
        "ridge_operations_per_byte": ridge(peak, chip.memory_bandwidth),
        "verdict": bound.verdict,
        "limited_from_host_by": problem_bound(problem, chip, from_host=True).limited_by,
    }


def on_the_host(
    problem: GemmProblem,
    multiply: Callable[[Array, Array], Array],
    seed: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Time a product on the CPU, and hold it against the reference.

    Parameters
    ----------
    multiply : callable
        Returns A @ B in the type of the problem's output.
    seed : int
        Seed of the random inputs, the same as the kernels'.
    clock : callable
        Gives seconds.

    Returns
    -------
    dict
        ``median_ms``, ``samples_ms``, ``gflops``, ``error_u``, ``mean_squared_error`` and ``rows`` compared.
    """
    inputs = random_inputs(problem, seed)
    a, b = as_matrix(inputs["a"], problem.a), as_matrix(inputs["b"], problem.b)
    samples: list[float] = []
    result = np.empty(0)
    while not samples or (len(samples) < _REPEATS and sum(samples) < _SECONDS):
        start = clock()
        result = multiply(a, b)
        samples.append(clock() - start)
    rows = sampled_rows(problem.m, seed, COMPARED_ROWS)
    right = accuracy(reference(problem, inputs, rows), result)
    median = statistics.median(samples)
    figures: dict[str, Any] = {
        "median_ms": round(1e3 * median, 4),
        "samples_ms": [round(1e3 * sample, 4) for sample in samples],
        "gflops": round(problem.flop / median / 1e9, 2),
        "rows": len(rows),
    }
    if right.failure is not None:
        return figures | {"failure": right.failure}
    return figures | {
        "error_u": round(right.error_u, 4),
        "mean_squared_error": float(f"{right.mean_squared:.4g}"),
    }
