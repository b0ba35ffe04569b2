"""Launches on the memory of XLA's arrays, for which only addresses and the stream change from call to call."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Sequence

from gemmule.api.planning.choice import choose_compiling, run_first_that_compiles
from gemmule.core.errors import UnsupportedError
from gemmule.core.layout import StridedMatrix, element_alignment
from gemmule.core.permutation import transpose_problem
from gemmule.core.problem import GemmProblem, TransposeProblem, mark_own_transpose
from gemmule.core.spec import Choice
from gemmule.dispatch.choices.choice_cache import register_clear
from gemmule.runtime.device import get_device
from gemmule.runtime.execute import run_kernel
from gemmule.runtime.repeated import repeated
from gemmule.runtime.replay import Queue

#: Name of XLA's custom call for planned launches.
KEPT = "gemmule_kept"
#: Alignment up to which kernels may differ; XLA's own memory has it.
MOST_ALIGNED = 256


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A product or transpose as it was planned."""

    problem: GemmProblem | TransposeProblem  #: The problem, for arrays that are aligned to `MOST_ALIGNED`.
    operands: tuple[str, ...]  #: Names of its operands, the output's last.
    #: For each operand the array, by its number among those of the call, and how many bytes behind its first element
    #: the operand begins. The output is the last array.
    begins: tuple[tuple[int, int], ...]

    @functools.cached_property
    def name(self) -> str:
        """Its key: the same in every process, since XLA may keep compiled programs on disk."""
        return hashlib.sha256(repr((self.problem, self.operands, self.begins)).encode()).hexdigest()

    def aligned(self, alignments: tuple[int, ...]) -> GemmProblem | TransposeProblem:
        """Return the problem for arrays of those alignments.

        Raises
        ------
        UnsupportedError
            If elements are not aligned to their own size.
        """
        matrices = self.problem.operands()
        for name, (place, _) in zip(self.operands, self.begins, strict=True):
            matrix, alignment = matrices[name], alignments[place]
            if alignment % element_alignment(matrix.dtype.itemsize):
                raise UnsupportedError(
                    f"an array is aligned to {alignment} bytes, which its elements of {matrix.dtype.itemsize} "
                    "do not; pass a copy"
                )
            matrices[name] = dataclasses.replace(matrix, alignment=min(matrix.alignment, alignment))
        if isinstance(self.problem, TransposeProblem):
            return _moved_as_aligned(self.problem, matrices["a"], matrices["d"])
        return self.problem.with_operands(self.problem.batch, matrices)


def _moved_as_aligned(problem: TransposeProblem, source: StridedMatrix, target: StridedMatrix) -> TransposeProblem:
    """Return a transpose of arrays that are less aligned: large elements are moved in halves then."""
    read, written = ((*x.batch_strides, x.row_stride, x.col_stride) for x in (source, target))
    shape, alignments = (*problem.batch, problem.rows, problem.cols), (source.alignment, target.alignment)
    return transpose_problem(shape, read, written, source.dtype.itemsize, alignments)


def most_aligned(
    problem: GemmProblem | TransposeProblem, operands: tuple[str, ...], begins: tuple[tuple[int, int], ...]
) -> GemmProblem | TransposeProblem:
    """Return a problem for any arrays that are as aligned as XLA's own; its output's alignment is left as it is."""
    matrices = problem.operands()
    most = MOST_ALIGNED if isinstance(problem, GemmProblem) else problem.target.alignment
    for name, (_, beyond) in zip(operands[:-1], begins, strict=False):
        alignment = min((beyond & -beyond) or most, most)
        matrices[name] = dataclasses.replace(matrices[name], alignment=alignment)
    found = problem.with_operands(problem.batch, matrices)
    # Those to come need not be one array twice.
    return mark_own_transpose(found, same=False) if isinstance(found, GemmProblem) else found


# One for each program that XLA has compiled, which is far larger.
_recipes: dict[bytes, Recipe] = {}


def keep(recipe: Recipe) -> str:
    """Let XLA's programs find a recipe from now on; return the name that they find it by."""
    _recipes[recipe.name.encode()] = recipe
    return recipe.name


def alignments_of(addresses: tuple[int, ...]) -> tuple[int, ...]:
    """Return the alignment of each address; nothing where all have the most that counts."""
    low = 0
    for address in addresses:
        low |= address
    if not low % MOST_ALIGNED:
        return ()
    return tuple([min((address & -address) or MOST_ALIGNED, MOST_ALIGNED) for address in addresses])


@functools.lru_cache(maxsize=2048)
def kept_queue(name: bytes, alignments: tuple[int, ...], ordinal: int, began: int) -> Queue:
    """Return the queue of a recipe on a GPU, given the addresses of the arrays, which are of those alignments."""
    # Cached under its generation of choices, as decisions are.
    del began
    recipe = _recipes[name]
    problem = recipe.aligned(alignments) if alignments else recipe.problem
    queue = queue_of(problem, recipe.operands, ordinal)
    begins = recipe.begins
    if all(own == (place, 0) for place, own in enumerate(begins)):
        return queue

    def queue_parts(addresses: tuple[int, ...], stream: int) -> None:
        queue(tuple([addresses[place] + beyond for place, beyond in begins]), stream)

    return queue_parts


register_clear(kept_queue.cache_clear)


def queue_of(problem: GemmProblem | TransposeProblem, operands: Sequence[str], ordinal: int) -> Queue:
    """Choose a kernel for a problem; return what queues it, given the operands' addresses."""
    device, matrices = get_device(ordinal), problem.operands()
    # Addresses that are as aligned as those to come stand in for them.
    aligned = [(1 << 20) + matrices[name].alignment for name in operands]
    found: list[Queue] = []

    def decide(choice: Choice) -> None:
        queue = repeated(problem, choice, operands, aligned, ordinal)
        found.append(queue or (lambda addresses, stream: run_kernel(
            problem, choice, dict(zip(operands, addresses, strict=True)), ordinal, stream
        )))  # fmt: skip

    run_first_that_compiles(problem, choose_compiling(problem, device), device, decide)
    return found[-1]
