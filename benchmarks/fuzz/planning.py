"""What dispatch makes of random problems on a chip that need not be there, and the templates that problems come of."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from arguments import arguments_of
from drawing import detailed, sketch
from operands import stand_in
from problems import FuzzProblem, Sketch
from random_groups import DIVIDERS
from recipes import SCHEDULE, kernels_for

import gemmule as gm
from gemmule.compiler.pool import Job, jobs_of
from gemmule.core.arch import Arch
from gemmule.core.block_triangle import BlockTriangle
from gemmule.core.chips import H100_SXM
from gemmule.core.dtype import Precision
from gemmule.core.errors import GemmuleError
from gemmule.core.grouped_problem import GroupedProblem
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, contiguous_gemm, split_batch
from gemmule.core.quantize_problem import QuantizeProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.grouped import choose_grouped
from gemmule.dispatch.quantize import choose_quantize
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose

#: Sketches drawn for a template before the last one is taken, and details drawn for a problem.
_SKETCHES, _DETAILS = 300, 10
#: Rows and columns of the steps of a block triangle.
STEP = 256


@dataclasses.dataclass(frozen=True)
class Target:
    """What problems are planned for.

    Attributes
    ----------
    executor : str or None
        None for the GPU, ``vgpu`` or ``cpu``.
    chip : str
        The GPU's name as its driver gives it.
    multiprocessors : int
        The GPU's.
    """

    executor: str | None = None
    chip: str = "NVIDIA H100 80GB HBM3"
    multiprocessors: int = H100_SXM.sms

    @classmethod
    def here(cls, executor: str | None) -> Target:
        """Return what this machine has; an H100 where there is no GPU and none is needed."""
        if executor is not None:
            return cls(executor)
        from gemmule.runtime.device import get_device

        device = get_device()
        return cls(None, device.name, device.multiprocessors)

    @property
    def arch(self) -> Arch:
        """The architecture to compile for."""
        return Arch.parse("sm_90a")

    def choose(self, problem: Any) -> Choice:
        """Return what dispatch chooses for a problem of any operation."""
        chip: dict[str, Any] = {"multiprocessors": self.multiprocessors, "chip": self.chip}
        chip = chip if self.executor != "vgpu" else {}
        if isinstance(problem, GroupedProblem):
            return choose_grouped(problem, self.arch, **chip)
        if isinstance(problem, QuantizeProblem):
            return choose_quantize(problem, self.arch, **chip)
        return choose(problem, self.arch, REGISTRY if chip else None, **chip)


@dataclasses.dataclass(frozen=True)
class Setting:
    """What all problems of a run have in common.

    Attributes
    ----------
    seed : int
        Where everything comes from.
    templates : int
        Sketches that problems are made of.
    most : int
        Greatest extent.
    libraries : tuple of str
        Libraries whose arrays are given.
    target : Target
        What problems are planned for.
    """

    seed: int
    templates: int = 10 * len(SCHEDULE)
    most: int = 4000
    libraries: tuple[str, ...] = ("torch", "cupy", "jax", "numpy")
    target: Target = Target()

    @property
    def device(self) -> str:
        """PyTorch's name of the device."""
        return "cuda" if self.target.executor is None else "cpu"


def block_triangle_problem(problem: FuzzProblem, matrices: Mapping[str, StridedMatrix]) -> GemmProblem:
    """Return the product of a block lower triangle, as streams compute it."""
    return GemmProblem(
        problem.m, problem.n, problem.k, (), matrices["a"], matrices["b"], matrices.get("c") if problem.beta else None,
        matrices["out"], problem.alpha, problem.beta, needed=BlockTriangle(problem.first, STEP),
    )  # fmt: skip


def strided(array: Any, dtype: str, address: int, strides: tuple[int, ...]) -> StridedMatrix:
    """Describe a matrix in memory."""
    from gemmule.core.dtype import dtype_named

    rows, cols = array.shape
    return StridedMatrix(dtype_named(dtype), rows, cols, *strides, (), min((address & -address) or 256, 256))


def problem_of(problem: FuzzProblem, target: Target) -> Any:
    """Return a problem as dispatch sees it, by stand-ins for its arrays; None where no kernel takes part.

    Raises
    ------
    GemmuleError
        If the public function refuses it.
    """
    arrays = {
        name: stand_in(shape, problem.dtypes[name], problem.layouts[name]) for name, shape in problem.shapes.items()
    }
    if problem.operation == "staircase":
        matrices = {
            name: strided(
                x, problem.dtypes[name], x.ctypes.data, tuple(one // x.dtype.itemsize for one in x.strides)
            )
            for name, x in arrays.items()
        }  # fmt: skip
        return block_triangle_problem(problem, matrices)
    if problem.library == "numpy" and target.executor is None:
        # What is copied to a GPU is contiguous there.
        names = ("a", "b", "out", "c") if problem.beta != 0 and "c" in problem.dtypes else ("a", "b", "out")
        return contiguous_gemm(
            problem.m, problem.n, problem.k, tuple(problem.dtypes[name] for name in names), alpha=problem.alpha,
            beta=problem.beta, precision=Precision.parse(problem.precision),
        )  # fmt: skip
    for name in DIVIDERS:
        if name in arrays:
            # What groups there are is no part of a plan, but it is read on the host.
            arrays[name][...] = 0
    operation, positional, options = arguments_of(with_flags(problem), arrays, np.zeros(1, np.float32))
    return getattr(gm, operation).plan(*positional, **options | {"executor": "vgpu"}).problem


def with_flags(problem: FuzzProblem) -> FuzzProblem:
    """Return a problem that conjugates by flags of the call alone, as other arrays than PyTorch's need them."""
    flags = {f"conj_{name}": True for name in problem.conjugated}
    if not problem.lazy:
        return problem
    others = {name: value for name, value in problem.options.items() if not name.startswith("conj_")}
    return dataclasses.replace(problem, operation="gemm", lazy="", options=others | flags)


@dataclasses.dataclass(frozen=True)
class Planned:
    """The kernel of a problem, and what must be compiled for it, by name."""

    kernel: str
    jobs: Mapping[str, Job]


def planned(problem: FuzzProblem, target: Target) -> Planned:
    """Return what a problem would run.

    Raises
    ------
    GemmuleError
        If the public function refuses it.
    """
    described = problem_of(problem, target)
    if described is None:
        return Planned("memset", {})
    choice = target.choose(described)
    inner, _, _ = split_batch(described, choice.batch_dims)
    return Planned(choice.spec.name, {str(job): job for job in jobs_of(choice, inner, target.arch)})


@dataclasses.dataclass(frozen=True)
class Template:
    """A sketch whose problems take one kernel, or none, and a problem of it."""

    sketch: Sketch
    planned: Planned
    first: FuzzProblem


@functools.lru_cache(maxsize=1024)
def template(setting: Setting, number: int) -> Template:
    """Return a template: sketches are drawn until dispatch chooses the kernel that is wanted.

    What the public function refuses is drawn anew.
    """
    kind = SCHEDULE[number % len(SCHEDULE)]
    found = None
    for attempt in range(_SKETCHES):
        rng = np.random.default_rng((setting.seed, 0, number, attempt))
        drawn = sketch(kind, rng, most=setting.most, libraries=setting.libraries)
        first = detailed(drawn, rng, setting.seed, 0)
        try:
            result = planned(first, setting.target)
        except GemmuleError:
            continue
        wanted = result.kernel in kernels_for(kind)
        if found is None or wanted:
            found = Template(drawn, result, first)
        if wanted or setting.target.executor == "cpu":
            # The host has no kernels.
            break
    assert found is not None
    return found


def problem_numbered(setting: Setting, index: int) -> FuzzProblem:
    """Return a problem of a run, which needs nothing compiled but what its template needs, and is not refused."""
    number = index % setting.templates
    of = template(setting, number)
    for attempt in range(_DETAILS):
        rng = np.random.default_rng((setting.seed, 1, index, attempt))
        found = detailed(of.sketch, rng, setting.seed, index)
        try:
            result = planned(found, setting.target)
        except GemmuleError:
            continue
        if setting.target.executor == "cpu":
            return found
        if result.kernel in (of.planned.kernel, "memset") and result.jobs.keys() <= of.planned.jobs.keys():
            return found
    return dataclasses.replace(of.first, index=index)
