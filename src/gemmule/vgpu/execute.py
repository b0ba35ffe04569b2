"""Running a chosen kernel on NumPy arrays: the virtual twin of the GPU runtime's `run_kernel`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gemmule.compiler.cache import artifact_for
from gemmule.core.problem import GemmProblem, TransposeProblem, outer_offsets, split_batch
from gemmule.core.spec import Choice

from .arch import virtual_arch
from .arrays import DeviceArrays
from .checks import Collected, Predecessors, all_checks
from .engine.program import program_of
from .launcher import Options, finish, run
from .memory import POISON


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
    arrays : mapping of str to ndarray
        The operands: ``a``, ``b``, ``c``, ``d`` of a product, ``a`` and ``d`` of a transpose.
    options : Options, optional
        Options of the run; by default those of the environment.
    """
    options = options or Options.from_environment()
    inner, outer, strides = split_batch(problem, choice.batch_dims)
    chain, sizes = choice.launches(inner)
    if not chain:
        return
    arch, programs = virtual_arch(), []
    for one in chain:
        artifact = artifact_for(one.spec, one.config, one.spec.signature(one.problem, one.config), arch, with_ptx=True)
        artifact.check_launch(one.launch)
        programs.append((program_of(artifact.ptx), one))
    itemsizes = {name: matrix.dtype.itemsize for name, matrix in problem.operands().items()}
    workspaces = {name: np.full(nbytes, POISON, np.uint8) for name, nbytes in sizes.items()}
    device, collected = DeviceArrays({**arrays, **workspaces}), Collected()
    every = list(outer_offsets(outer, list(strides.values())))
    dependent = (
        arch.has_dependent_launches and len(every) * len(chain) > 1 and any(one.launch.overlaps for one in chain)
    )
    before = Predecessors(device.memory) if dependent and options.checks else None
    for number, offsets in enumerate(every):
        moved = {name: offset * itemsizes[name] for name, offset in zip(strides, offsets, strict=True)}
        own = {name: address + moved.get(name, 0) for name, address in device.addresses.items()}
        for name in workspaces:
            device.fill(name, POISON)
        for program, one in programs:
            overlaps = one.launch.overlaps and dependent and (number > 0 or one is not chain[0])
            named = {name: own[given] + one.beyond.get(name, 0) for name, given in one.operands.items()}
            for space in one.launch.workspaces:
                if space.zeroed:
                    device.fill(space.name, 0)
            observers = all_checks(collected, device, before, overlaps) if options.checks else ()
            with collected.before_faults():
                run(program, one.launch, device.memory, {**own, **named}, options, observers)
    finish(device, collected)
