"""From a kernel, a problem and a chip to what limits it there."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable

from gemmule.core.arch import Arch
from gemmule.core.chip import Chip
from gemmule.core.errors import UnsupportedError
from gemmule.core.launch import Launch
from gemmule.core.occupancy import Occupancy, occupancy
from gemmule.core.problem import GemmProblem, Problem
from gemmule.core.roofline import attainable
from gemmule.core.spec import Choice
from gemmule.dispatch.select import choose
from gemmule.kernels.hopper.tile_config import K_BYTES

from .advice import Figures, advice
from .behind_l2 import behind_l2
from .explanation import Before, Explanation, Published
from .instrument import Compile, Counted, Run
from .limits import ARITHMETIC, Limit, Waiting, limits, missing, waiting
from .pipeline_sample import is_pipeline, sampled_timeline
from .sample import Sample, buffers, extents, samples, starts, tile_of, unfolded
from .steps import Rules
from .timeline import Timeline
from .totals import MATRIX, LineCounts, Totals, totals
from .traffic import levels

#: Code for chips older than this is not compiled; theirs is taken to be alike.
OLDEST = Arch(8, 0)
_SECTOR = 32
# Multiply-adds, or elements, that are counted at most: minutes.
_MOST = 1 << 30
_WARP = 32
# The kernels for problems that others refuse.
_REFERENCE = {"gemm": "gemm_reference", "transpose": "transpose_reference"}


def arch_for(chip: Chip) -> tuple[Arch, str]:
    """Return the architecture that a chip's kernels are compiled for, and a remark on it."""
    if chip.capability < OLDEST.capability:
        major, minor = chip.capability
        return OLDEST, (
            f"{chip.name} has compute capability {major}.{minor}, and kernels are compiled for {OLDEST} and newer: "
            f"registers and instructions are those of {OLDEST}, limits and rates those of the chip"
        )
    return Arch.for_device(*chip.capability), ""


def explain(
    problem: Problem,
    choice: Choice,
    chip: Chip,
    compile_kernel: Compile,
    *,
    bandwidth: float | None = None,
    l2_bandwidth: float | None = None,
    rules: Callable[[Rules], Rules] | None = None,
) -> Explanation:
    """Explain a kernel.

    Parameters
    ----------
    problem : GemmProblem or TransposeProblem
        Problem; of products without a batch.
    compile_kernel : callable
        Gives the compiled kernel to be counted: `gemmule.vgpu.instrument.CountedKernel`.
    bandwidth : float, optional
        Bytes a second of device memory, as measured; by default the vendor's.
    l2_bandwidth : float, optional
        Bytes a second of the L2 cache, as measured; without it, the L2 cache is no limit.
    rules : callable, optional
        Changes how long things take in the timeline of a pipeline.

    Raises
    ------
    UnsupportedError
        If the kernel cannot take the problem, or too much of it would have to be counted.
    """
    arch, note = arch_for(chip)
    if (reason := choice.spec.why_not(problem, arch, choice.config)) is not None:
        raise UnsupportedError(
            f"{choice.spec.name} cannot take this problem: {reason}; {_remedy(choice, problem, arch, chip)}"
        )
    if choice.spec.next_kernel is not None and isinstance(problem, GemmProblem):
        return _next_kernel(problem, choice, chip, compile_kernel, bandwidth, l2_bandwidth, rules)
    recipe = choice.spec.launch(problem, choice.config)
    if recipe.workspaces:
        raise UnsupportedError(_why_not_sampled(choice, recipe))
    chosen = samples(choice.spec, choice.config, problem)
    if None in tile_of(choice.spec, choice.config, problem)[: 2 + len(problem.batch)]:
        _check_effort(choice, chosen)
    kernel = compile_kernel(choice.spec, choice.config, choice.signature(problem), arch)
    ctas, warps = math.prod(recipe.grid), -(-recipe.threads // _WARP)
    tiles = (unfolded(choice.spec, choice.config, problem) or ctas) if is_pipeline(recipe) else ctas
    if tiles > ctas:
        cluster = math.prod(recipe.cluster)
        chosen += starts(choice.spec, choice.config, problem, (tiles - ctas) // cluster, cluster)
    shared = recipe.shared_bytes + kernel.static_shared_bytes
    full = occupancy(chip, recipe.threads, registers_per_thread=kernel.registers, shared_bytes=shared)
    runs = []
    for number, sample in enumerate(chosen):
        assert choice.signature(sample.problem) == choice.signature(problem)
        launch = choice.spec.launch(sample.problem, choice.config)
        if tiles > ctas:
            small = sample.ctas or unfolded(choice.spec, choice.config, sample.problem) or 1
            launch = dataclasses.replace(launch, grid=(small, 1, 1))
        runs.append(kernel.run(launch, buffers(sample.problem, number), _roomy(chip, launch, shared)))
    counted = totals(chosen, runs)
    tile = tile_of(choice.spec, choice.config, problem)
    memory = behind_l2(problem, choice, chip, kernel, tiles, full.blocks)
    bandwidth = bandwidth if bandwidth is not None else chip.memory_bandwidth
    least: tuple[Limit, ...] = ()
    waits: Waiting | None = None
    if full.blocks:
        least = limits(problem, counted, chip, (tiles, ctas), (memory.bytes, bandwidth), l2_bandwidth)
        rounds = [(sample.depth_weight, run.rounds) for sample, run in zip(chosen, runs, strict=True)]
        waits = waiting([item for item in rounds if item[0]], chip, ctas, full.blocks, warps)
    lacking = missing(problem, counted, chip) if full.blocks else ()
    line = sampled_timeline(problem, choice, chip, kernel, full.blocks, rules)
    peak = next((limit.rate for limit in least if limit.unit == ARITHMETIC), None)
    return Explanation(
        problem=problem,
        choice=choice,
        chip=chip,
        recipe=recipe,
        arch=arch.name,
        arch_note=note,
        toolchain=kernel.toolchain,
        samples=tuple((extents(sample.problem), sample.weight) for sample in chosen),
        tile=tuple(side and min(side, extent) for side, extent in zip(tile, extents(problem), strict=True)),
        registers=kernel.registers,
        spill_bytes=kernel.spill_bytes,
        shared_bytes=shared,
        occupancy=full,
        totals=counted,
        levels=levels(problem, choice.config, counted, tile, tiles, memory),
        behind_l2=memory,
        bandwidth=bandwidth,
        limits=least,
        missing=lacking,
        waiting=waits,
        published=_published(problem, counted, ctas * warps, shared, peak, bandwidth),
        next=_next(
            _Grounds(problem, counted, chip, full, least, lacking, waits, (tiles, ctas), memory.bytes, kernel, line)
        ),
        tiles=tiles,
        warp_registers=_warp_registers(runs[0]),
        timeline=line,
    )


def _why_not_sampled(choice: Choice, recipe: Launch) -> str:
    """Say why small problems cannot stand for a launch with workspaces, and what can be explained."""
    fields = choice.config.as_dict()
    if sharing := [name for name in ("stream_k", "split_k") if fields.get(name)]:
        # A grid of other CTAs would share other tiles.
        alone = ",".join(f"{name}={value}" for name, value in (fields | dict.fromkeys(sharing, 0)).items())
        return (
            f"{choice.spec.name} ({choice.config}) shares tiles out among CTAs, which small problems cannot stand for; "
            f"explain '{choice.spec.name}[{alone}]', which does not, or run it by gm.matmul.plan(..., executor='vgpu', "
            "kernel=...)"
        )
    memory = " and ".join(one.name for one in recipe.workspaces)
    return (
        f"{choice.spec.name} ({choice.config}) has workspaces ({memory}) for this problem, which small problems do "
        "not show; give a --shape of a smaller K"
    )


def _next_kernel(
    problem: GemmProblem,
    choice: Choice,
    chip: Chip,
    compile_kernel: Compile,
    bandwidth: float | None,
    l2_bandwidth: float | None,
    rules: Callable[[Rules], Rules] | None,
) -> Explanation:
    """Explain the product behind a launch that prepares operands, and say what that moves."""
    assert choice.spec.next_kernel is not None
    then = choice.spec.next_kernel(problem, choice.config, choice.gpu)
    assert isinstance(then.problem, GemmProblem)
    explained = explain(
        then.problem, Choice(then.spec, then.config), chip, compile_kernel, bandwidth=bandwidth,
        l2_bandwidth=l2_bandwidth, rules=rules,
    )  # fmt: skip
    packed = [name for name, source in then.operands.items() if source in then.workspaces]
    moved = sum(
        matrix.rows * matrix.cols * matrix.dtype.itemsize for name, matrix in problem.operands().items()
        if name in packed
    ) + sum(then.workspaces.values())  # fmt: skip
    before = Before(choice.spec.name, moved, moved / explained.bandwidth)
    return dataclasses.replace(explained, before=(before, *explained.before))


def _warp_registers(run: Run) -> tuple[int, ...]:
    """Return the registers that warps ask for, or are left with, by themselves."""
    found = [re.search(r"setmaxnreg\S*\s+(\d+)", row.text) for row in run.instructions]
    return tuple(sorted({int(match[1]) for match in found if match is not None}))


def _remedy(choice: Choice, problem: Problem, arch: Arch, chip: Chip) -> str:
    spec = choice.spec
    if not any(arch == one or (not one.specific and arch.capability >= one.capability) for one in spec.archs):
        return f"give a --chip of {' or '.join(one.name for one in spec.archs)} (this one is {arch.name})"
    for number, config in enumerate(spec.configs):
        if spec.why_not(problem, arch, config) is None:
            return f"explain '{spec.name}[{number}]', which takes it ({config})"
    if spec.name == _REFERENCE[spec.operation] or spec.in_place:
        return "give another --shape or --dtype"
    taken = choose(problem, arch, multiprocessors=chip.sms)
    other = "give another --shape, --dtype, --precision or --layout"
    if taken.form is not None:
        return f"{other}, or no --out-dtype: calls convert the accumulators of another product to it"
    return f"{other}, or explain {taken.spec.name}, which calls take for it"


def _check_effort(choice: Choice, chosen: tuple[Sample, ...]) -> None:
    work = sum(math.prod(extents(sample.problem)) for sample in chosen)
    if work > _MOST:
        raise UnsupportedError(
            f"the grid of {choice.spec.name} does not give the tile of a CTA, and the whole problem is too long to be "
            f"counted ({work:.2g} steps, {_MOST:.2g} at most); give a smaller --shape"
        )


def _roomy(chip: Chip, launch: Launch, shared: int) -> Chip:
    """Return the chip with an SM, and so an L1 cache, for each CTA: those of a sample meet nobody."""
    sm = dataclasses.replace(chip.sm, shared_bytes=max(chip.sm.shared_bytes, shared))
    return dataclasses.replace(
        chip, sm=sm, sms=max(chip.sms, math.prod(launch.grid)), l2_bytes=chip.l2_bytes or 64 << 20
    )


def _published(
    problem: Problem, counted: Totals, warps: int, shared: int, peak: float | None, bandwidth: float
) -> Published | None:
    """Return the simple roofline, counted as published."""
    sectors = sum(line.sectors for line in counted.by_line if line.reads_global)
    if not isinstance(problem, GemmProblem) or not sectors:
        return None
    size = _SECTOR if shared else problem.a.dtype.itemsize
    intensity = problem.flop / (sectors * size)
    # Without launch there are no limits, and so no peak.
    bound = attainable(intensity, peak, bandwidth) / 1e9 if peak is not None else None
    return Published(sectors / (warps * problem.k), size, intensity, bound)


@dataclasses.dataclass(frozen=True)
class _Grounds:
    """The findings of an explanation, which its advice rests on."""

    problem: Problem
    counted: Totals  #: Requests and instructions of the whole launch.
    chip: Chip
    full: Occupancy  #: Warps that an SM holds.
    least: tuple[Limit, ...]  #: The least times of the units.
    lacking: tuple[str, ...]  #: Units whose rates are not known.
    waits: Waiting | None  #: Latency that nothing hides.
    ctas: tuple[int, int]  #: Tiles, and CTAs of the grid.
    memory: int  #: Bytes between device memory and the L2 cache.
    kernel: Counted
    line: Timeline | None  #: The pipeline of a kernel with TMA loads.


def _next(found: _Grounds) -> str | None:
    """Return the next step, in a sentence; None where rates are not known."""
    counted, chip, full, waits, kernel = found.counted, found.chip, found.full, found.waits, found.kernel
    if full.reason is not None:
        return f"Make it fit: {chip.name} cannot launch it, since {full.reason}."
    if found.lacking:
        return None
    kinds = counted.by_class

    def issued(*names: str) -> int:
        return sum(kinds.get(name, (0, 0))[0] for name in names)

    return advice(
        Figures(
            seconds=tuple((limit.unit, limit.seconds) for limit in found.least),
            exposed_seconds=(waits.exposed_seconds or 0.0) if waits is not None else 0.0,
            distance=waits.distance if waits is not None else 0,
            ctas=found.ctas[0],
            stay=found.ctas[0] > found.ctas[1],
            multiprocessors=chip.sms,
            product=isinstance(found.problem, GemmProblem),
            memory_bytes=found.memory,
            least_bytes=found.problem.bytes_min,
            global_passes=sum(line.passes for line in counted.by_line if not line.wavefronts),
            needed_passes=sum(line.needed_passes for line in counted.by_line if not line.wavefronts),
            shared_passes=counted.total("wavefronts") + counted.engine_passes,
            conflicts=counted.total("conflicts"),
            multiply_adds=counted.multiply_adds,
            instructions=counted.warps,
            tensor_cores=MATRIX in kinds,
            registers_between=bool(issued("load global") and issued("store shared")),
            asynchronous=bool(issued("async copy")),
            registers=kernel.registers,
            most_registers=chip.sm.registers_per_thread,
            spill_bytes=kernel.spill_bytes,
            occupancy=f"{full.active_warps} of {full.max_warps} warps, limited by {' and '.join(full.limited_by)}",
            worst_access=_worst(counted, lambda line: 0 if line.wavefronts else line.passes - line.needed_passes),
            worst_conflict=_worst(counted, lambda line: line.conflicts),
            timeline=found.line,
            k_tiles=_k_tiles(found.problem, found.line),
        )
    )


def _k_tiles(problem: Problem, line: Timeline | None) -> int:
    """Return the k-tiles of a tile that a CTA takes one after the other."""
    if line is None or not isinstance(problem, GemmProblem):
        return 0
    return -(-problem.k * problem.a.dtype.itemsize // K_BYTES)


def _worst(counted: Totals, excess: Callable[[LineCounts], int]) -> str:
    """Return the place with the largest excess."""
    if not counted.by_line:
        return ""
    worst = max(counted.by_line, key=excess)
    return f"{worst.source} ({worst.code})" if worst.code else worst.source
