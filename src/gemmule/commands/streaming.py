"""What ``gemmule multiply`` shows of a product: plan, prediction, pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import ArgumentError
from .json_output import echo_json

if TYPE_CHECKING:
    from ..api.streaming.session import StreamSession
    from ..outofcore.device.planner.budgets import Budgeted
    from ..outofcore.device.planner.plan import DevicePlan
    from ..outofcore.journal.resumption import Plan
    from ..outofcore.tiles.plan import StreamPlan

#: Allowance for what BLAS, threads and the allocator take once Python and its libraries are loaded; 8 MiB were seen.
LIBRARY_BYTES = 32 << 20


def _types(session: StreamSession) -> str:
    """Name the types of the factors, and that of the result where it is another one."""
    a, b, out = session.problem.a.dtype, session.problem.b.dtype, session.problem.dtype
    factors = str(a) if a == b else f"{a} by {b}"
    return factors if a == b == out else f"{factors} into {out}"


def plan_line(session: StreamSession) -> str:
    """Say in a line how a product will be computed."""
    from ..api.streaming.device_engine import DeviceEngine
    from ..outofcore.tiles.memory_budget import format_bytes, resident_memory

    engine, plan = session.engine, session.plan
    reused = f", {session.tiles_reused} of them finished before" if session.tiles_reused else ""
    if isinstance(engine, DeviceEngine):
        predicted = engine.chosen.prediction
        return (
            f"{_extents(plan)}, {_types(session)}: {_tiles(engine.plan)}{reused}; {engine.device}; expected "
            f"{predicted.seconds:.3g} s, bound by {predicted.bottleneck}"
        )
    constant = -(-(resident_memory() + LIBRARY_BYTES) >> 20)
    tiles = f"{plan.tiles} tile{'s' * (plan.tiles != 1)} of {plan.tile_m} x {plan.tile_n}"
    half = ", the others mirrored" if plan.symmetric else ""
    return (
        f"{_extents(plan)}, {_types(session)}: {tiles}{half}{reused}, slices {plan.tile_k} deep; {engine.device}; "
        f"memory limit {format_bytes(session.limit)}, plus about {constant} MiB for Python and its libraries"
    )


def echo_dry_run(session: StreamSession, *, as_json: bool) -> None:
    """Print what would be done, and what it is expected to take."""
    from ..api.streaming.device_engine import DeviceEngine

    engine = session.engine
    record: dict[str, Any]
    if isinstance(engine, DeviceEngine):
        record, lines = _predicted(engine.chosen), [] if as_json else _lines(engine.chosen)
    else:
        plans = engine.plan, engine.roomier_plan(session.problem)
        record, lines = _host_record(*plans), _host_lines(*plans)
    if as_json:
        echo_json({"executor": engine.name, "device": engine.device, **record})
        return
    click.echo(f"{engine.device} ({engine.name})")
    for line in lines:
        click.echo(line)


def _less_read(plan: StreamPlan, roomier: StreamPlan) -> float:
    """Return what would be read with twice the memory, as a share of what is read; 1 if that is nearly as much."""
    share = roomier.bytes_read() / plan.bytes_read() if plan.bytes_read() else 1.0
    return share if share < 0.99 else 1.0


def _host_record(plan: StreamPlan, roomier: StreamPlan) -> dict[str, Any]:
    product, less = plan.product, _less_read(plan, roomier)
    return {
        "m": product.m, "n": product.n, "k": product.k, "tiles": plan.tiles, "tile_m": plan.tile_m,
        "tile_n": plan.tile_n, "tile_k": plan.tile_k, "symmetric": plan.symmetric, "memory_bytes": plan.memory_bytes,
        "bytes_read": plan.bytes_read(), "bytes_written": plan.bytes_written(),
        "binds": {"memory": less} if less < 1 else {},
    }  # fmt: skip


def _host_lines(plan: StreamPlan, roomier: StreamPlan) -> list[str]:
    from ..outofcore.tiles.memory_budget import format_bytes

    less = _less_read(plan, roomier)
    bound = (
        f"memory (twice as much: {less:.0%} of what is read)"
        if less < 1
        else "none; twice as much memory would save no reads"
    )
    half = ", the others mirrored" if plan.symmetric else ""
    return [
        f"{_extents(plan)}: {plan.tiles} tiles of {plan.tile_m} x {plan.tile_n}{half}, slices {plan.tile_k} deep",
        f"buffers: {format_bytes(plan.memory_bytes)}",
        f"reads {plan.bytes_read() / 1e9:.4g} GB, writes {plan.bytes_written() / 1e9:.4g} GB",
        f"binds: {bound}",
    ]


def _predicted(chosen: Budgeted) -> dict[str, Any]:
    plan, predicted, product = chosen.plan, chosen.prediction, chosen.plan.product
    return {
        "m": product.m, "n": product.n, "k": product.k, "strategy": plan.strategy, "tiles": plan.tiles,
        "tile_m": plan.tile_m, "tile_n": plan.tile_n, "tile_k": plan.tile_k, "c_tiles": plan.c_tiles,
        "symmetric": plan.symmetric, "device_bytes": plan.device_bytes, "pinned_bytes": chosen.pinned_bytes,
        "memory_bytes": chosen.memory_bytes, "binds": chosen.binding(), "bytes_h2d": predicted.bytes_in,
        "bytes_d2h": predicted.bytes_out, "predicted_s": predicted.seconds,
        "predicted_between_s": list(chosen.between), "best_s": predicted.best_s,
        "exposed_copy_share": predicted.exposed_share, "bottleneck": predicted.bottleneck,
        "works_s": predicted.works, "rates_measured": chosen.rates.measured, "others_s": dict(chosen.others),
    }  # fmt: skip


def _lines(chosen: Budgeted) -> list[str]:
    from ..outofcore.device.planner.budgets import binding_line
    from ..outofcore.tiles.memory_budget import format_bytes

    plan, predicted, budgets = chosen.plan, chosen.prediction, chosen.budgets
    works = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in predicted.works.items() if seconds)
    buffers = ", ".join(f"{count} of {format_bytes(size)} for {name}" for name, (count, size) in plan.buffers.items())
    lines = [
        f"{_extents(plan)}: {_tiles(plan)}",
        f"device memory: {format_bytes(plan.device_bytes, up=True)} ({buffers})",
        f"host memory: {format_bytes(chosen.memory_bytes, up=True)} of {format_bytes(budgets.memory)}, "
        f"{format_bytes(chosen.pinned_bytes, up=True)} of it pinned, of {format_bytes(budgets.pinned)}",
        f"to the device {predicted.bytes_in / 1e9:.4g} GB, back {predicted.bytes_out / 1e9:.4g} GB",
        f"each part works: {works}",
        f"expected: {predicted.seconds:.4g} s{_between(chosen)}, of which nothing is computed in "
        f"{predicted.exposed_share:.1%}; bound by {predicted.bottleneck}",
    ]
    lines.append(binding_line(chosen))
    return lines + [f"instead of {name}: {seconds:.4g} s" for name, seconds in chosen.others]


def _between(chosen: Budgeted) -> str:
    """Say how much the time may differ, where the disk's rate did while it was measured."""
    least, most = chosen.between
    return f" ({least:.3g} to {most:.3g} s, as the disk's rate varied)" if most > 1.01 * least else ""


def _extents(plan: Plan) -> str:
    product = plan.product
    return f"{product.m} x {product.n} x {product.k}"


def _tiles(plan: DevicePlan) -> str:
    tiles = f"{plan.tiles} tile{'s' * (plan.tiles != 1)} of {plan.tile_m} x {plan.tile_n}"
    half = ", the others mirrored" if plan.symmetric else ""
    return f"{plan.strategy}, {tiles}{half}, slices {plan.tile_k} deep"


def check_drawings(trace: str | None, timeline: str | None, *, force: bool, others: Sequence[str | None] = ()) -> None:
    """Refuse files that cannot be written, or that are one of `others`, before anything runs."""
    from ..lab.whole_files import check_target

    read = [Path(other.partition("::")[0]) for other in others if other]
    for path in (trace, timeline):
        if path is not None:
            check_target(Path(path).absolute(), force=force, inputs=read)
            read.append(Path(path))
    if timeline is not None:
        from ..lab.drawing.canvas import check_matplotlib

        check_matplotlib()
        if Path(timeline).suffix not in (".png", ".svg"):
            raise ArgumentError(f"--timeline {timeline}: is neither .png nor .svg; name a file of one of these")


def write_drawings(session: StreamSession, trace: str | None, timeline: str | None, *, force: bool) -> None:
    """Write what ran when, as it was asked for."""
    from ..lab.streams import draw_timeline, write_stream_trace

    title = f"{_extents(session.plan)} by {session.plan.strategy} on {session.engine.device}"
    if trace is not None:
        write_stream_trace(Path(trace).absolute(), session.activity, {"product": title}, force=force)
    if timeline is not None:
        draw_timeline(Path(timeline).absolute(), session.activity, title, force=force)
