"""Running a chosen kernel on NumPy arrays: the virtual twin of the GPU runtime's `run_kernel`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gemmule.compiler.cache import artifact_for
from gemmule.core.errors import UnsupportedError
from gemmule.core.problem import GemmProblem, TransposeProblem, outer_offsets, split_batch
from gemmule.core.spec import Choice

from .arch import virtual_arch
from .arrays import DeviceArrays
from .checks import Collected, all_checks
from .engine.program import program_of
from .launcher import Options, finish, run
from .workspaces import workspaces_of


def run_kernel(
    problem: GemmProblem | TransposeProblem,
    choice: Choice,
    arrays: Mapping[str, np.ndarray[Any, np.dtype[Any]]],
    options: Options | None = None,
) -> None:
    """Run a problem; what the kernel writes is in the arrays afterwards.

    Parameters
    ----------
    problem : GemmProblem or TransposeProblem
        The problem; its batch may have any number of dimensions, its strides are those of the arrays.
    choice : Choice
        Kernel and config.
    arrays : mapping of str to ndarray
        The operands: ``a``, ``b``, ``c``, ``d`` of a product, ``a`` and ``d`` of a transpose.
    options : Options, optional
        How to run; by default as the environment says.
    """
    options = options or Options.from_environment()
    spec, config = choice.spec, choice.config
    if spec.following is not None:
        raise UnsupportedError(f"{spec.name} takes several launches; the virtual GPU runs kernels of one")
    inner, outer, strides = split_batch(problem, spec.batch_dims)
    launch = spec.launch(inner, config)
    if 0 in launch.grid:
        return
    artifact = artifact_for(spec, config, spec.signature(inner, config), virtual_arch())
    artifact.check_launch(launch)
    program = program_of(artifact.ptx)
    itemsizes = {name: matrix.dtype.itemsize for name, matrix in problem.operands().items()}
    workspaces = workspaces_of(launch)
    device, collected = DeviceArrays({**arrays, **workspaces}), Collected()
    for offsets in outer_offsets(outer, list(strides.values())):
        moved = {name: offset * itemsizes[name] for name, offset in zip(strides, offsets, strict=True)}
        addresses = {name: address + moved.get(name, 0) for name, address in device.addresses.items()}
        observers = all_checks(collected, device) if options.checks else ()
        for name in workspaces:
            device.refill(name)
        run(program, launch, device.memory, addresses, options, observers)
    finish(device, collected)
