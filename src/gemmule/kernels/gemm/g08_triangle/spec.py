"""What lies on and below a staircase alone: what the kernel takes, how it is launched."""

from __future__ import annotations

import dataclasses

from gemmule.core.arch import Arch
from gemmule.core.dtype import INT32
from gemmule.core.launch import Launch, ScalarParam
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Buildable, KernelSpec, Signature
from gemmule.kernels.gemm.g07_cp_async.spec import SPEC as WHOLE
from gemmule.kernels.gemm.g07_cp_async.spec import CpAsyncConfig, cost_of

#: Rows and columns of a step, a multiple of the sides of every config's tile; a group of tiles is whole steps.
STEP = 256


@dataclasses.dataclass(frozen=True)
class TriangleConfig(CpAsyncConfig):
    """As of the rung before; `tile_m` and `tile_n` divide a step, and a step is whole in a group of tiles."""

    @property
    def step_tiles(self) -> tuple[int, int]:
        """Tiles of a step along M, and along N."""
        return STEP // self.tile_m, STEP // self.tile_n

    def tiles(self, problem: GemmProblem) -> int:
        """Return how many tiles lie on and below the staircase."""
        assert problem.needed is not None
        up, over = self.step_tiles
        first = problem.needed.first // self.tile_n
        steps, left = divmod(-(-problem.m // self.tile_m), up)
        return up * (steps * first + over * (steps * (steps + 1) // 2)) + left * (first + over * (steps + 1))


def why_not(problem: GemmProblem, arch: Arch, config: TriangleConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    if problem.needed is None:
        return "all of the result is needed; this kernel computes what lies on and below a staircase"
    first, step = problem.needed.first, problem.needed.step
    if step != STEP or first % STEP or first < 0:
        return (
            f"the staircase has steps of {step} and begins behind column {first}; this kernel takes steps of {STEP}, "
            f"and a multiple of them before"
        )
    if problem.n < first + problem.m:
        return f"the staircase leads to column {first + problem.m}, beyond the {problem.n} of the result"
    if problem.batch:
        return f"the batch is {problem.batch}; this kernel takes single matrices"
    if not problem.d.is_row_major:
        return "the result lies in columns; this kernel takes one in rows"
    return WHOLE.why_not(problem, arch, config)


def launch(problem: GemmProblem, config: TriangleConfig) -> Launch:
    """Return the launch recipe: one CTA for each tile that is needed."""
    assert problem.needed is not None
    whole = WHOLE.launch(problem, config)
    first = ScalarParam("first", INT32, problem.needed.first // config.tile_n)
    return dataclasses.replace(whole, grid=(config.tiles(problem), 1, 1), params=(*whole.params, first))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return those of a matrix times its own transpose, whose factors lie in the same direction."""
    return tuple(one for one in WHOLE.signatures(arch) if (dict(one)["a"] == "k") == (dict(one)["b"] == "k"))


def cost(problem: GemmProblem, config: TriangleConfig, multiprocessors: int) -> float:
    """Return roughly the time in nanoseconds."""
    return cost_of(config.tiles(problem), problem.k, config, multiprocessors)


def build(config: TriangleConfig, signature: Signature) -> Buildable:
    """Return the kernel and its stand-in arguments."""
    from .kernel import buildable

    return buildable(config, dict(signature))


SPEC = KernelSpec(
    name="g08_triangle",
    operation="gemm",
    summary="float32 where only what is on and below the diagonal is needed: a CTA for each of its tiles, none above",
    package="gemmule.kernels.gemm.g08_triangle",
    archs=WHOLE.archs,
    configs=tuple(TriangleConfig(**config.as_dict()) for config in WHOLE.configs),
    signatures=signatures,
    why_not=why_not,
    signature=WHOLE.signature,
    launch=launch,
    build=build,
    cost=cost,
)
