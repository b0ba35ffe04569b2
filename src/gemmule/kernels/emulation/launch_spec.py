"""What the specs of an emulation's launches share."""

from __future__ import annotations

import functools

from gemmule.core.config import Config
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import KernelSpec
from gemmule.kernels.emulation.ozaki_config import LAUNCH_US
from gemmule.kernels.hopper.refusals import HOPPER, refuse_no_config, refuse_nothing

#: A KernelSpec for Hopper, of which every config takes what `refuses`, if given, does not refuse.
emulation_spec = functools.partial(
    KernelSpec, operation="gemm", archs=(HOPPER,), why_not=refuse_no_config, refuses=refuse_nothing, cost_in_us=True
)


def launch_us(problem: GemmProblem, config: Config, gpu: GpuRates) -> float:
    """Return the microseconds of a launch that computes next to nothing: `KernelSpec.cost`."""
    del problem, config
    return gpu.launch * LAUNCH_US
