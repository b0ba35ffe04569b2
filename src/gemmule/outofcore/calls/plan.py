"""The plan of a large product: tiles, buffers, traffic and expected time, for the function and the command."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import Precision

from ..device.planner.budgets import Budgeted, binding_line
from ..tiles.memory_budget import format_bytes, resident_memory
from ..tiles.plan import StreamPlan
from .device_engine import DeviceEngine
from .request import Request
from .session import StreamSession

if TYPE_CHECKING:
    from ..device.planner.plan import DevicePlan
    from ..tiles.report import Report

#: Allowance for what BLAS, threads and the allocator take once Python and its libraries are loaded; 8 MiB were seen.
LIBRARY_BYTES = 32 << 20


@dataclass(frozen=True)
class Plan:
    """The plan of a call of `gemmule.outofcore.matmul`.

    Attributes
    ----------
    executor : str
        ``gpu``, ``cpu`` or ``vgpu``.
    device : str
        Name of the GPU, or of the BLAS.
    lines : tuple of str
        The plan in words, the verdict first.
    figures : mapping
        The plan in numbers, as ``gemmule matmul --dry-run --json`` prints them.
    """

    executor: str
    device: str
    lines: tuple[str, ...]
    figures: Mapping[str, Any]
    run: Callable[[], Report] | None = dataclasses.field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        verdict, *others = self.lines
        return "\n".join([f"{verdict}; {self.device} ({self.executor})", *others])

    def execute(self) -> Report:
        """Compute the product, as the call that was planned would."""
        assert self.run is not None
        return self.run()


def planned_request(request: Request, run: Callable[[], Report] | None = None) -> Plan:
    """Plan a request, without computing; `run` computes it.

    Raises
    ------
    GemmuleError
        If the product cannot be computed as it is requested.
    """
    with StreamSession(request, dry_run=True) as session:
        engine = session.engine
        if isinstance(engine, DeviceEngine):
            lines, figures = _device_lines(engine.chosen), _device_figures(engine.chosen)
        else:
            plans = engine.plan, engine.plan_with_twice_the_memory(session.problem)
            lines, figures = [*_host_lines(*plans), *_unused_precision(session)], _host_figures(*plans)
        return Plan(engine.name, engine.device, tuple(lines), figures, run)


def plan_line(session: StreamSession) -> str:
    """Return the plan of an open product, and its expected time, in a line."""
    engine, plan = session.engine, session.plan
    a, b, out = session.problem.a.dtype, session.problem.b.dtype, session.problem.dtype
    operands = str(a) if a == b else f"{a} by {b}"
    types = operands if a == b == out else f"{operands} into {out}"
    reused = f", {session.tiles_reused} of them done before" if session.tiles_reused else ""
    text = f"{extents_of(plan)}, {types}: {_tiles(plan, reused)}; {engine.device}"
    if isinstance(engine, DeviceEngine):
        predicted = engine.chosen.prediction
        usual = "" if engine.chosen.rates.measured else " at usual rates"
        return f"{text}; expected {predicted.seconds:.3g} s{usual}, bound by {predicted.bottleneck}"
    constant = format_bytes(-(-(resident_memory() + LIBRARY_BYTES) >> 20) << 20, up=True, like=session.limit)
    limit = f"memory limit {format_bytes(session.limit)}, plus about {constant} of Python and its libraries"
    return "; ".join((text, limit, *_unused_precision(session)))


def _unused_precision(session: StreamSession) -> tuple[str, ...]:
    """Return that the host does not use the requested precision, if it does not."""
    precision = Precision.parse(session.request.precision)
    if session.engine.name != "cpu" or precision is Precision.IEEE:
        return ()
    return (f"precision {precision.value!r} is unused: the host computes as with 'ieee'",)


def extents_of(plan: StreamPlan | DevicePlan) -> str:
    """Return M x N x K of a plan."""
    product = plan.product
    return f"{product.m} x {product.n} x {product.k}"


def _tiles(plan: StreamPlan | DevicePlan, reused: str = "") -> str:
    strategy = "" if isinstance(plan, StreamPlan) else f"{plan.strategy}, "
    tiles = f"{plan.tiles} tile{'s' * (plan.tiles != 1)} of {plan.tile_m} x {plan.tile_n}"
    half = ", the others mirrored" if plan.symmetric else ""
    return f"{strategy}{tiles}{half}{reused}, k-tiles of {plan.tile_k}"


def _extents_and_tiles(plan: StreamPlan | DevicePlan) -> dict[str, Any]:
    product = plan.product
    return {
        "m": product.m, "n": product.n, "k": product.k, "tiles": plan.tiles, "tile_m": plan.tile_m,
        "tile_n": plan.tile_n, "tile_k": plan.tile_k, "symmetric": plan.symmetric,
    }  # fmt: skip


def _less_read(plan: StreamPlan, roomier: StreamPlan) -> float:
    """Return the bytes read with twice the memory, as a share of the bytes read; 1 if nearly as many."""
    share = roomier.bytes_read() / plan.bytes_read() if plan.bytes_read() else 1.0
    return share if share < 0.99 else 1.0


def _host_figures(plan: StreamPlan, roomier: StreamPlan) -> dict[str, Any]:
    less = _less_read(plan, roomier)
    return {
        **_extents_and_tiles(plan), "memory_bytes": plan.memory_bytes, "bytes_read": plan.bytes_read(),
        "bytes_written": plan.bytes_written(), "binds": {"memory": less} if less < 1 else {},
    }  # fmt: skip


def _host_lines(plan: StreamPlan, roomier: StreamPlan) -> list[str]:
    less = _less_read(plan, roomier)
    bound = (
        f"memory (twice as much: {less:.0%} of what is read)"
        if less < 1
        else "nothing; twice as much memory would save no reads"
    )
    return [
        f"{extents_of(plan)}: {_tiles(plan)}",
        f"buffers: {format_bytes(plan.memory_bytes)}",
        f"reads {plan.bytes_read() / 1e9:.4g} GB, writes {plan.bytes_written() / 1e9:.4g} GB",
        f"limited by: {bound}",
    ]


def _device_figures(chosen: Budgeted) -> dict[str, Any]:
    plan, predicted = chosen.plan, chosen.prediction
    return {
        **_extents_and_tiles(plan), "strategy": plan.strategy, "c_tiles": plan.c_tiles,
        "device_bytes": plan.device_bytes, "pinned_bytes": chosen.pinned_bytes,
        "memory_bytes": chosen.memory_bytes, "binds": chosen.binding(), "bytes_h2d": predicted.bytes_in,
        "bytes_d2h": predicted.bytes_out, "predicted_s": predicted.seconds,
        "predicted_between_s": list(chosen.between), "best_s": predicted.best_s,
        "exposed_copy_share": predicted.exposed_share, "bottleneck": predicted.bottleneck,
        "works_s": predicted.works, "rates_measured": chosen.rates.measured, "others_s": dict(chosen.others),
    }  # fmt: skip


def _device_lines(chosen: Budgeted) -> list[str]:
    plan, predicted, budgets = chosen.plan, chosen.prediction, chosen.budgets
    works = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in predicted.works.items() if seconds)
    buffers = ", ".join(
        f"{count} of {format_bytes(size, like=budgets.device)} for {name}"
        for name, (count, size) in plan.buffers.items()
    )
    least, most = chosen.between
    between = f" ({least:.3g} to {most:.3g} s, as the disk's rate varied)" if most > 1.01 * least else ""
    return [
        f"{extents_of(plan)}: expected {predicted.seconds:.4g} s, bound by {predicted.bottleneck}",
        f"plan: {_tiles(plan)}",
        f"device memory: {format_bytes(plan.device_bytes, up=True, like=budgets.device)} ({buffers})",
        f"host memory: {format_bytes(chosen.memory_bytes, up=True, like=budgets.memory)} of "
        f"{format_bytes(budgets.memory)}, "
        f"{format_bytes(chosen.pinned_bytes, up=True, like=budgets.pinned)} of it pinned, of "
        f"{format_bytes(budgets.pinned)}",
        f"to the device {predicted.bytes_in / 1e9:.4g} GB, back {predicted.bytes_out / 1e9:.4g} GB",
        f"busy: {works}",
        f"expected: {predicted.seconds:.4g} s{between}, {predicted.exposed_share:.1%} of it exposed copies",
        binding_line(chosen),
        *(f"with strategy={name!r}: {seconds:.4g} s" for name, seconds in chosen.others),
    ]
