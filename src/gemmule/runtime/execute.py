"""Running a chosen kernel on device memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from gemmule.compiler.cache import artifact_for
from gemmule.core.dataclass import dataclass
from gemmule.core.launch import Launch
from gemmule.core.problem import GemmProblem, TransposeProblem, outer_offsets, split_batch
from gemmule.core.spec import Choice

from .device import get_device
from .launch import LoadedKernel, loaded_kernel
from .workspaces import Workspaces, needs_zeros, zeroing


def run_kernel(
    problem: GemmProblem | TransposeProblem, choice: Choice, pointers: Mapping[str, int], ordinal: int, stream: int
) -> None:
    """Queue a problem on a stream; nothing waits for it.

    Parameters
    ----------
    problem : GemmProblem or TransposeProblem
        The problem; its batch may have any number of dimensions.
    pointers : mapping of str to int
        Addresses of the operands: ``a``, ``b``, ``c``, ``d`` of a product, ``a`` and ``d`` of a transpose.
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
) -> Iterator[Callable[[], None]]:
    """Yield what queues the launches that make a problem, their parameters packed.

    Parameters
    ----------
    problem, choice, pointers, ordinal, stream
        As of `run_kernel`.
    workspaces : Workspaces
        Memory of launches beyond their operands; valid until they complete.
    """
    yield from bound_launches(
        launches_of(problem, choice, ordinal, tuple(pointers)), pointers, ordinal, stream, workspaces
    )


def bound_launches(
    work: Launches, pointers: Mapping[str, int], ordinal: int, stream: int, workspaces: Workspaces
) -> Iterator[Callable[[], None]]:
    """Yield what queues launches on operands at those addresses; else as `prepared_launches`."""
    addresses = {**pointers, **workspaces.take(work.workspaces)}
    for step in work.steps():
        named = {name: addresses[given] + beyond for name, (given, beyond) in step.places.items()}
        launch = step.kernel.prepare(step.launch, named, stream)
        yield zeroing(launch, step.launch, named, ordinal, stream) if needs_zeros(step.launch) else launch


@dataclass(frozen=True)
class Step:
    """One launch of a problem, without its addresses."""

    kernel: LoadedKernel  #: The kernel.
    launch: Launch  #: The recipe.
    #: For each operand of the recipe the problem's own, or the workspace, and how many bytes behind its beginning it
    #: lies.
    places: Mapping[str, tuple[str, int]]


@dataclass(frozen=True)
class Launches:
    """The launches that make a problem."""

    number: int  #: Number of launches.
    steps: Callable[[], Iterator[Step]]  #: Gives them in order.
    workspaces: Mapping[str, int]  #: Bytes of device memory that they need beyond the operands, by name.


def launches_of(
    problem: GemmProblem | TransposeProblem, choice: Choice, ordinal: int, operands: Sequence[str]
) -> Launches:
    """Return the launches that make a problem, their kernels loaded.

    Parameters
    ----------
    problem, choice, ordinal
        As of `run_kernel`.
    operands : sequence of str
        Names of the operands whose addresses will be given.
    """
    inner, outer, strides = split_batch(problem, choice.batch_dims)
    chain, workspaces = choice.launches(inner)
    # Names that the recipe does not rename stay, workspaces' too.
    own = {name: name for name in (*operands, *workspaces)}
    kernels = []
    for one in chain:
        signature = one.spec.signature(one.problem, one.config)
        artifact = artifact_for(one.spec, one.config, signature, get_device(ordinal).arch)
        artifact.check_launch(one.launch)
        kernels.append((loaded_kernel(artifact, ordinal), one.launch, {**own, **one.operands}, one.beyond))
    itemsizes = {name: matrix.dtype.itemsize for name, matrix in problem.operands().items()}

    def steps() -> Iterator[Step]:
        for offsets in outer_offsets(outer, list(strides.values())):
            moved = {name: offset * itemsizes[name] for name, offset in zip(strides, offsets, strict=True)}
            for kernel, launch, names, beyond in kernels:
                places = {name: (given, moved.get(given, 0) + beyond.get(name, 0)) for name, given in names.items()}
                yield Step(kernel, launch, places)

    return Launches(math.prod(outer) * len(kernels), steps, workspaces)
