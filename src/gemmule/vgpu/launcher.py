"""Launching a compiled kernel on the virtual GPU, from its PTX and its launch recipe."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, cast

import numpy as np

from gemmule.compiler.artifact import Artifact
from gemmule.compiler.compile import compile_ptx
from gemmule.compiler.host_functions.shared_tiles import SharedTile
from gemmule.core.cpus import usable_cpus
from gemmule.core.errors import ArgumentError
from gemmule.core.launch import Launch, TensorMapParam
from gemmule.core.spec import Buildable

from .arch import virtual_arch
from .arrays import DeviceArrays, workspaces_of
from .checks import Collected, all_checks
from .engine.batch import Geometry, LaunchState
from .engine.binder import SHARED_START
from .engine.observer import Observer
from .engine.program import Program, program_of
from .map_bytes import encoded
from .memory import GlobalMemory
from .report import kernel_name
from .tensor_map import TensorMap
from .workers import WORTH_SECONDS, can_be_spread, pool

#: Lanes that run at once: enough that NumPy's calls cost little, few enough that registers fit into the cache.
BATCH_LANES = 16384
#: Fewer are not worth a batch of their own.
_LEAST_LANES = 4096
_MAX_THREADS = 1024
#: CTAs of the largest cluster of any GPU.
_MAX_CLUSTER = 16
#: Largest extents of a grid and of a block, on every GPU.
_GRID_LIMITS, _BLOCK_LIMITS = (2**31 - 1, 65535, 65535), (1024, 1024, 64)
#: Dynamic and static shared memory that a CTA of any GPU can have.
_MAX_SHARED = 227 * 1024
#: Default number of schedules.
SCHEDULES_VARIABLE = "GEMMULE_VGPU_SCHEDULES"
SCHEDULES = ("late", "eager", "random")
_MMA = ("exact", "hopper")


class Launches:
    """Launches of this process.

    Attributes
    ----------
    number : int
        Number so far.
    """

    number: ClassVar[int] = 0


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the virtual GPU.

    Attributes
    ----------
    schedule : str
        When asynchronous operations complete: ``late``, ``eager``, or ``random``, which also runs warps in any order.
    seed : int
        Seed of the random schedule.
    mma : str
        Rounding of the tensor core's sums: ``exact`` rounds once, ``hopper`` truncates as an H100 does.
    checks : bool
        Whether to look for races, uninitialised values, misused barriers and copies without a wait.
    workers : int
        Processes that long launches are spread over; 1 runs them in this one. Observers see one process only.
    batch_lanes : int
        Threads that run at once, in whole CTAs.
    """

    schedule: str = "late"
    seed: int = 0
    mma: Literal["exact", "hopper"] = "exact"
    checks: bool = False
    workers: int = 1
    batch_lanes: int = BATCH_LANES

    @classmethod
    def from_environment(cls) -> Options:
        """Return the options that ``GEMMULE_VGPU_CHECKS``, ``_SCHEDULE``, ``_SEED``, ``_MMA`` and ``_WORKERS`` set.

        Without the last, there may be as many processes as CPUs.

        Raises
        ------
        ArgumentError
            If one of them has an unknown value.
        """
        checks = _from_environment("CHECKS", "0")
        if checks not in ("0", "1"):
            raise ArgumentError(f"GEMMULE_VGPU_CHECKS={checks!r} is not known; it is 1 or 0")
        seed, workers = _from_environment("SEED", "0"), _from_environment("WORKERS", str(usable_cpus()))
        for name, value in (("SEED", seed), ("WORKERS", workers)):
            if not value.isdecimal() or len(value) > 18:
                raise ArgumentError(f"GEMMULE_VGPU_{name}={value!r} must be a whole number, 0 or larger")
        return cls(
            schedule=_one_of("SCHEDULE", SCHEDULES),
            seed=int(seed),
            mma=cast(Literal["exact", "hopper"], _one_of("MMA", _MMA)),
            checks=checks == "1",
            workers=max(int(workers), 1),
        )

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ArgumentError(f"schedule={self.schedule!r} is not known; choose one of {', '.join(SCHEDULES)}")
        if self.mma not in _MMA:
            raise ArgumentError(f"mma={self.mma!r} is not known; choose {' or '.join(_MMA)}")


def schedule_names(given: int | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of schedules given by name or number; without either, the environment's.

    Raises
    ------
    ArgumentError
        If there are none, or no such.
    """
    origin = "schedules" if given is not None else SCHEDULES_VARIABLE
    if given is None:
        number = os.environ.get(SCHEDULES_VARIABLE) or "1"
        given = int(number) if number in map(str, range(10)) else number
    value = given
    if isinstance(given, str):
        given = (given,)
    if isinstance(given, int):
        if not 1 <= given <= len(SCHEDULES):
            raise ArgumentError(f"{origin}={given} must be 1 to {len(SCHEDULES)}, or names of {', '.join(SCHEDULES)}")
        return SCHEDULES[:given]
    listed: list[Any] = list(given) if hasattr(given, "__iter__") else [given]
    if not listed or any(name not in SCHEDULES for name in listed):
        raise ArgumentError(f"{origin}={value!r} must be names of {', '.join(SCHEDULES)}, or how many of them")
    return tuple(listed)


def _from_environment(name: str, default: str) -> str:
    return os.environ.get(f"GEMMULE_VGPU_{name}") or default


def _one_of(name: str, known: Sequence[str]) -> str:
    """Return a variable's value, by default the first of those that are known."""
    value = _from_environment(name, known[0])
    if value not in known:
        raise ArgumentError(f"GEMMULE_VGPU_{name}={value!r} is not known; choose one of {', '.join(known)}")
    return value


def launch(
    kernel: Artifact | Buildable | str,
    recipe: Launch,
    arrays: Mapping[str, np.ndarray[Any, np.dtype[Any]]],
    *,
    options: Options | None = None,
    observers: tuple[Observer, ...] = (),
    ctas: range | None = None,
    entry: str | None = None,
) -> None:
    """Run a kernel on NumPy arrays; what it writes is in them afterwards.

    Parameters
    ----------
    kernel : Artifact, Buildable or str
        A compiled kernel; a ``@cute.jit`` callable with fake arguments, compiled now; or PTX text.
    recipe : Launch
        Grid, block, shared memory and parameters.
    arrays : mapping of str to ndarray
        The operands that the recipe names, any strides. Workspaces are made here unless they are given.
    options : Options, optional
        Options of the run; by default those of the environment.
    observers : tuple of Observer
        Observers of the run.
    ctas : range, optional
        Numbers of the CTAs that run, counted cluster by cluster, with a step of 1; by default all of the grid.
    entry : str, optional
        Name of the kernel, where PTX text holds several.

    Raises
    ------
    PtxError
        If the kernel has an instruction that is not modelled.
    FaultError
        If it accesses memory that it does not have, or stops itself.
    DeadlockError
        If its threads wait for an event that cannot happen.
    CheckError
        If a check found fault with it; the arrays hold what it wrote.
    ArgumentError
        If the recipe does not fit the kernel or the arrays.
    """
    arrays = {**workspaces_of(recipe), **arrays}
    missing = {param.operand for param in recipe.params if hasattr(param, "operand")} - set(arrays)
    if missing:
        raise ArgumentError(f"the recipe names operands that were not given: {', '.join(sorted(missing))}")
    if isinstance(kernel, Artifact):
        kernel.check_launch(recipe)
    device = DeviceArrays(arrays)
    options = options or Options.from_environment()
    collected = Collected()
    if options.checks:
        observers = (*all_checks(collected, device), *observers)
    if isinstance(kernel, Buildable):
        kernel = compile_ptx(kernel, virtual_arch())
    program = program_of(kernel.ptx if isinstance(kernel, Artifact) else kernel, entry)
    with collected.before_faults():
        run(program, recipe, device.memory, device.addresses, options, observers, ctas)
    finish(device, collected)


def finish(device: DeviceArrays, collected: Collected) -> None:
    """Copy results back, and then raise the findings of the checks: the arrays hold the results in any case."""
    try:
        device.take_back()
    except ArgumentError:
        # The findings say more of the same kernel; their error has this one as its context.
        collected.check()
        raise
    collected.check()


def run(
    program: Program,
    recipe: Launch,
    memory: GlobalMemory,
    addresses: Mapping[str, int],
    options: Options,
    observers: tuple[Observer, ...] = (),
    ctas: range | None = None,
) -> None:
    """Run one launch, or some CTAs of it, on arrays that are in the virtual GPU's memory already."""
    params, maps = _packed(program, recipe, addresses, memory)
    run_packed(program, Packed(recipe, params, maps), memory, options, observers, ctas)


@dataclasses.dataclass(frozen=True)
class Packed:
    """A launch with the bytes of its parameters.

    Attributes
    ----------
    recipe : Launch
        Grid, block, cluster and shared memory; its parameters are not read.
    params : bytes
        The parameters, each at the offset that the kernel expects.
    maps : dict of int to TensorMap
        The tensor maps among them by offset.
    tiles : tuple of SharedTile
        Names in dynamic shared memory, where they are known.
    """

    recipe: Launch
    params: bytes
    maps: dict[int, TensorMap]
    tiles: tuple[SharedTile, ...] = ()


def run_packed(
    program: Program,
    packed: Packed,
    memory: GlobalMemory,
    options: Options,
    observers: tuple[Observer, ...] = (),
    ctas: range | None = None,
) -> None:
    """Run one launch, or some CTAs of it, whose parameters are bytes already."""
    Launches.number += 1
    recipe = packed.recipe
    geometry = Geometry(recipe.grid, recipe.block, recipe.cluster)
    _check_geometry(program, geometry)
    if geometry.threads > _MAX_THREADS:
        raise ArgumentError(f"a CTA of {recipe.block} has {geometry.threads} threads; it may have 1 to {_MAX_THREADS}")
    launch_state = LaunchState(
        kernel=program.kernel,
        binder=program.binder,
        geometry=geometry,
        params=packed.params,
        memory=memory,
        shared_bytes=recipe.shared_bytes,
        schedule=options.schedule,
        seed=options.seed,
        mma=options.mma,
        maps=packed.maps,
        tiles=(*program.binder.shared_variables, *program.binder.dynamic(packed.tiles)),
    )
    # The first KiB of a CTA's shared memory is the system's.
    shared = program.binder.static_shared_end - SHARED_START + recipe.shared_bytes
    if recipe.shared_bytes < 0 or shared > _MAX_SHARED:
        name = kernel_name(program.kernel)
        raise ArgumentError(f"{name} requests {shared} bytes of shared memory; a CTA has 0 to {_MAX_SHARED}")
    for observer in observers:
        observer.begin(program.kernel)
    workers = 1 if observers or not can_be_spread(program.kernel) else options.workers
    chosen = range(geometry.ctas) if ctas is None else ctas
    if chosen.step != 1 or not (chosen.start >= 0 and chosen.stop <= geometry.ctas):
        raise ArgumentError(f"ctas={chosen} are not adjacent among the grid's {geometry.ctas} CTAs")
    if chosen.start % geometry.cluster_ctas or chosen.stop % geometry.cluster_ctas:
        raise ArgumentError(f"ctas={chosen} are not whole clusters of {geometry.cluster_ctas} CTAs")
    _run_batches(program, launch_state, observers, _batches(geometry, chosen, options.batch_lanes, workers), workers)
    for observer in observers:
        observer.end()


def _check_geometry(program: Program, geometry: Geometry) -> None:
    """Refuse a launch that the driver would refuse: shapes beyond the limits, or not those that the kernel is for."""
    for what, extents, limits in (("grid", geometry.grid, _GRID_LIMITS), ("block", geometry.block, _BLOCK_LIMITS)):
        if any(not 0 < extent <= limit for extent, limit in zip(extents, limits, strict=True)):
            name = kernel_name(program.kernel)
            raise ArgumentError(f"{name} is launched with {what}={extents}, which must be (1, 1, 1) to {limits}")
    if any(extent % side for extent, side in zip(geometry.grid, geometry.cluster, strict=True)):
        raise ArgumentError(f"grid={geometry.grid} is not made of whole clusters of {geometry.cluster}")
    if not 0 < geometry.cluster_ctas <= _MAX_CLUSTER:
        raise ArgumentError(f"cluster={geometry.cluster}: a cluster has 1 to {_MAX_CLUSTER} CTAs")
    for name in ("reqntid", "maxntid"):
        text = program.kernel.directives.get(name)
        if text is None:
            continue
        declared = tuple(int(extent) for extent in text.split(","))
        threads = int(np.prod(declared))
        exact = (*declared, 1, 1)[:3]
        if (geometry.block != exact) if name == "reqntid" else (geometry.threads > threads):
            raise ArgumentError(
                f"block={geometry.block} does not fit {program.kernel.name}, compiled with .{name} {text.strip()}"
            )


def _batches(geometry: Geometry, ctas: range, lanes: int, workers: int) -> list[tuple[int, int]]:
    """Return ranges of CTAs that run at once: of so many lanes, or of fewer, so that several processes have work."""
    cta_lanes = geometry.warps * 32
    if workers > 1:
        lanes = min(lanes, max(len(ctas) * cta_lanes // (4 * workers), _LEAST_LANES))
    # CTAs of a cluster run at the same time.
    side = geometry.cluster_ctas
    at_once = max(1, lanes // (cta_lanes * side)) * side
    return [(start, min(start + at_once, ctas.stop)) for start in range(ctas.start, ctas.stop, at_once)]


def _run_batches(
    program: Program,
    launch_state: LaunchState,
    observers: tuple[Observer, ...],
    batches: list[tuple[int, int]],
    workers: int,
) -> None:
    """Run batches in order, or, where the first shows that it pays, the others in several processes."""
    with np.errstate(all="ignore"):
        for number, batch in enumerate(batches):
            begun = time.perf_counter()
            program.run(launch_state, range(*batch), observers)
            rest = batches[number + 1 :]
            left = (time.perf_counter() - begun) * len(rest)
            # If one failed, this process continues alone and reaches the error in order.
            worth = workers > 1 and number == 0 and len(rest) > 1 and left > WORTH_SECONDS
            if worth and pool.run(program, launch_state, rest, min(workers, len(rest))):
                return


def _packed(
    program: Program, recipe: Launch, addresses: Mapping[str, int], memory: GlobalMemory
) -> tuple[bytes, dict[int, TensorMap]]:
    """Return the parameters' bytes at the offsets that the kernel expects, and the tensor maps by theirs."""
    kernel = program.kernel
    # A tensor map is found by its place; its bytes are for kernels that copy them.
    values = [
        bytes(given.size) if isinstance(given, TensorMapParam) else given.pack(addresses) for given in recipe.params
    ]
    if [len(value) for value in values] != [param.size for param in kernel.params]:
        raise ArgumentError(
            f"the recipe gives parameters of {[len(value) for value in values]} bytes, {kernel.name} takes "
            f"{[param.size for param in kernel.params]}"
        )
    packed = bytearray(program.binder.param_bytes)
    maps = {}
    for given, param, value in zip(recipe.params, kernel.params, values, strict=True):
        start = program.binder.address_of_name(param.name)
        packed[start : start + len(value)] = value
        if isinstance(given, TensorMapParam):
            maps[start] = TensorMap.of(given, addresses[given.operand], memory)
            packed[start : start + given.size] = encoded(maps[start])
    return bytes(packed), maps
