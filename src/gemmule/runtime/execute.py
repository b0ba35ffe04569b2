"""Running a chosen kernel on device memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gemmule.compiler.cache import artifact_for
from gemmule.core.problem import GemmProblem, TransposeProblem, outer_offsets, split_batch
from gemmule.core.spec import Choice

from .device import get_device
from .launch import PreparedLaunch, loaded_kernel
from .workspaces import Workspaces


def run_kernel(
    problem: GemmProblem | TransposeProblem, choice: Choice, pointers: Mapping[str, int], ordinal: int, stream: int
) -> None:
    """Queue a problem on a stream; nothing waits for it.

    Parameters
    ----------
    problem : GemmProblem or TransposeProblem
        The problem; its batch may have any number of dimensions.
    choice : Choice
        Kernel and config.
    pointers : mapping of str to int
        Addresses of the operands: ``a``, ``b``, ``c``, ``d`` of a product, ``a`` and ``d`` of a transpose.
    ordinal : int
        The GPU.
    stream : int
        The driver's handle of the stream.
    """
    with Workspaces(ordinal, stream) as workspaces:
        for launch in prepared_launches(problem, choice, pointers, ordinal, stream, workspaces):
            launch()


def prepared_launches(
    problem: GemmProblem | TransposeProblem,
    choice: Choice,
    pointers: Mapping[str, int],
    ordinal: int,
    stream: int,
    workspaces: Workspaces,
) -> Iterator[PreparedLaunch]:
    """Yield the launches that make a problem, their parameters packed.

    Parameters
    ----------
    problem, choice, pointers, ordinal, stream
        As of `run_kernel`.
    workspaces : Workspaces
        Where launches find memory beyond their operands; it must be there until they are done.
    """
    spec, config = choice.spec, choice.config
    inner, outer, strides = split_batch(problem, spec.batch_dims)
    steps = [(spec, config, inner, dict(zip(pointers, pointers, strict=True)))]
    additional: dict[str, int] = {}
    if spec.following is not None:
        then = spec.following(inner, config)
        steps.append((then.spec, then.config, then.problem, dict(then.operands)))
        additional = workspaces.take(then.workspaces)
    kernels = []
    for step_spec, step_config, step_problem, operands in steps:
        launch = step_spec.launch(step_problem, step_config)
        if 0 in launch.grid:
            return
        signature = step_spec.signature(step_problem, step_config)
        artifact = artifact_for(step_spec, step_config, signature, get_device(ordinal).arch)
        artifact.check_launch(launch)
        kernels.append((loaded_kernel(artifact, ordinal), launch, operands))
    itemsizes = {name: matrix.dtype.itemsize for name, matrix in problem.operands().items()}
    for offsets in outer_offsets(outer, list(strides.values())):
        moved = {name: offset * itemsizes[name] for name, offset in zip(strides, offsets, strict=True)}
        addresses = {name: address + moved.get(name, 0) for name, address in pointers.items()} | additional
        for kernel, launch, operands in kernels:
            named = addresses | {name: addresses[given] for name, given in operands.items()}
            yield kernel.prepare(launch, named, stream)
