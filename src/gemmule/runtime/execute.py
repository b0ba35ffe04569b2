"""Running a chosen kernel on device memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gemmule.compiler.cache import artifact_for
from gemmule.core.problem import GemmProblem, TransposeProblem, outer_offsets, split_batch
from gemmule.core.spec import Choice

from .device import get_device
from .launch import PreparedLaunch, loaded_kernel


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
    for launch in prepared_launches(problem, choice, pointers, ordinal, stream):
        launch()


def prepared_launches(
    problem: GemmProblem | TransposeProblem, choice: Choice, pointers: Mapping[str, int], ordinal: int, stream: int
) -> Iterator[PreparedLaunch]:
    """Yield the launches that make a problem, their parameters packed; arguments as of `run_kernel`."""
    spec, config = choice.spec, choice.config
    inner, outer, strides = split_batch(problem, spec.batch_dims)
    launch = spec.launch(inner, config)
    if 0 in launch.grid:
        return
    artifact = artifact_for(spec, config, spec.signature(inner, config), get_device(ordinal).arch)
    artifact.check_launch(launch)
    kernel = loaded_kernel(artifact, ordinal)
    itemsizes = {name: matrix.dtype.itemsize for name, matrix in problem.operands().items()}
    for offsets in outer_offsets(outer, list(strides.values())):
        moved = {name: offset * itemsizes[name] for name, offset in zip(strides, offsets, strict=True)}
        addresses = {name: address + moved.get(name, 0) for name, address in pointers.items()}
        yield kernel.prepare(launch, addresses, stream)
