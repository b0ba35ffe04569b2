"""Clusters that a GPU runs at once, by the driver's occupancy calculator: of float32 and float64 configs.

Prints, for each config with clusters, CTAs that an SM may hold and clusters that the GPU runs at once, beside the
cost models' figures. Needs an NVIDIA GPU and the compiler.
"""

from __future__ import annotations

import argparse
from typing import Any

from config_candidates.float64 import float64_candidates
from untuned_choices import jobs_of

from gemmule.compiler.cache import artifact_for
from gemmule.compiler.pool import compile_all
from gemmule.core.errors import CompileError
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.kernels.float64.gemm.spec import SPEC as FLOAT64_GEMM
from gemmule.kernels.simt.batched.spec import SPEC as SIMT_BATCHED
from gemmule.kernels.simt.gemm.spec import SPEC as SIMT_GEMM
from gemmule.lab.products import gemm_problem
from gemmule.runtime.device import current, get_device
from gemmule.runtime.driver import call
from gemmule.runtime.launch import LoadedKernel

#: A product whose tiles no config lacks.
_SIZE = (4096, 4096, 4096)


def product(dtype: str, layout: str) -> GemmProblem:
    """Return the product of a type."""
    return gemm_problem(*_SIZE, dtype, dtype, layout)


def occupancy(choice: Choice, problem: GemmProblem, device: Any) -> tuple[int, int]:
    """Return the CTAs that an SM holds, and the clusters that run at once."""
    artifact = artifact_for(choice.spec, choice.config, choice.spec.signature(problem, choice.config), device.arch)
    kernel, launch = LoadedKernel(artifact, 0), choice.spec.launch(problem, choice.config)
    with current(0):
        kernel.allow(launch)
        threads = launch.block[0]
        ctas = call("cuOccupancyMaxActiveBlocksPerMultiprocessor", kernel.function, threads, launch.shared_bytes)
        clusters = call("cuOccupancyMaxActiveClusters", kernel.function, kernel.config(launch, 0))
    return int(ctas), int(clusters)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", default="nt", help="of the products")
    given = parser.parse_args()
    device = get_device()
    choices = [(Choice(SIMT_GEMM, one), "float32") for one in SIMT_GEMM.configs]
    choices += [(Choice(SIMT_BATCHED, one), "float32") for one in SIMT_BATCHED.configs]
    choices += [(Choice(FLOAT64_GEMM, one), "float64") for one in float64_candidates()]
    choices = [(one, dtype) for one, dtype in choices if vars(one.config)["cluster_k"] > 1]
    jobs = [job for one, dtype in choices for job in jobs_of(product(dtype, given.layout), one, device.arch)]
    for job, result in compile_all(jobs):
        if isinstance(result, CompileError):
            print(f"left out: {job}")
    for choice, dtype in choices:
        ctas, clusters = occupancy(choice, product(dtype, given.layout), device)
        filled = clusters * vars(choice.config)["cluster_k"] / device.multiprocessors
        print(f"{choice.spec.name} {choice.config}: {ctas} CTAs an SM, {clusters} clusters, {filled:.2f} CTAs an SM")


if __name__ == "__main__":
    main()
