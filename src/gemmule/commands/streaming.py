"""Output of ``gemmule multiply`` for streamed products: plan, prediction, summary, pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import ArgumentError
from .json_output import echo_json
from .tables import echo_text

if TYPE_CHECKING:
    from ..api.device_product import DeviceProduct
    from ..api.streamed import Request, StreamedProduct
    from ..outofcore.device.budgets import Budgeted
    from ..outofcore.plan import StreamPlan


def types(product: StreamedProduct | DeviceProduct) -> str:
    """Name the types of the factors, and that of the result where it is another one."""
    a, b, out = product.a.dtype, product.b.dtype, product.sink.dtype
    factors = str(a) if a == b else f"{a} by {b}"
    return factors if a == b == out else f"{factors} into {out}"


def plan_line(product: DeviceProduct) -> str:
    """Return the plan of a product, and its expected time, in a line."""
    reused = f", {product.tiles_reused} of them done before" if product.tiles_reused else ""
    chosen, device = product.part.chosen, product.part.device
    predicted = chosen.prediction
    return (
        f"{_extents(chosen)}, {types(product)}: {_tiles(chosen)}{reused}; {device}; expected "
        f"{predicted.seconds:.3g} s, bound by {predicted.bottleneck}"
    )


def echo_dry_run(request: Request, *, as_json: bool) -> None:
    """Print the plan and its expected time, the verdict first."""
    from ..api.dry_run import dry_run
    from ..outofcore.device.budgets import Budgeted

    planned = dry_run(request)
    record: dict[str, Any]
    if isinstance(planned.how, Budgeted):
        record, lines = _predicted(planned.how), [] if as_json else _lines(planned.how)
    else:
        record, lines = _host_record(planned.how, planned.roomier), _host_lines(planned.how, planned.roomier)
    if as_json:
        echo_json({"executor": planned.executor, "device": planned.device, **record})
        return
    verdict, *others = lines
    echo_text(f"{verdict}; {planned.device} ({planned.executor})")
    for line in others:
        echo_text(line)


def _less_read(plan: StreamPlan, roomier: StreamPlan | None) -> float:
    """Return the bytes read with twice the memory, as a share of the bytes read; 1 if nearly as many."""
    share = roomier.bytes_read() / plan.bytes_read() if roomier is not None and plan.bytes_read() else 1.0
    return share if share < 0.99 else 1.0


def _host_record(plan: StreamPlan, roomier: StreamPlan | None) -> dict[str, Any]:
    product, less = plan.product, _less_read(plan, roomier)
    return {
        "m": product.m, "n": product.n, "k": product.k, "tiles": plan.tiles, "tile_m": plan.tile_m,
        "tile_n": plan.tile_n, "tile_k": plan.tile_k, "symmetric": plan.symmetric, "memory_bytes": plan.memory_bytes,
        "bytes_read": plan.bytes_read(), "bytes_written": plan.bytes_written(),
        "binds": {"memory": less} if less < 1 else {},
    }  # fmt: skip


def _host_lines(plan: StreamPlan, roomier: StreamPlan | None) -> list[str]:
    from ..outofcore.budget import format_bytes

    product, less = plan.product, _less_read(plan, roomier)
    bound = (
        f"memory (twice as much: {less:.0%} of what is read)"
        if less < 1
        else "none; twice as much memory would save no reads"
    )
    half = ", the others mirrored" if plan.symmetric else ""
    return [
        f"{product.m} x {product.n} x {product.k}: {plan.tiles} tiles of {plan.tile_m} x {plan.tile_n}{half}, "
        f"k-tiles of {plan.tile_k}",
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
    from ..outofcore.budget import format_bytes
    from ..outofcore.device.budgets import binding_line

    plan, predicted, budgets = chosen.plan, chosen.prediction, chosen.budgets
    works = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in predicted.works.items() if seconds)
    buffers = ", ".join(f"{count} of {format_bytes(size)} for {name}" for name, (count, size) in plan.buffers.items())
    lines = [
        f"{_extents(chosen)}: expected {predicted.seconds:.4g} s, bound by {predicted.bottleneck}",
        f"plan: {_tiles(chosen)}",
        f"device memory: {format_bytes(plan.device_bytes, up=True)} ({buffers})",
        f"host memory: {format_bytes(chosen.memory_bytes, up=True)} of {format_bytes(budgets.memory)}, "
        f"{format_bytes(chosen.pinned_bytes, up=True)} of it pinned, of {format_bytes(budgets.pinned)}",
        f"to the device {predicted.bytes_in / 1e9:.4g} GB, back {predicted.bytes_out / 1e9:.4g} GB",
        f"busy: {works}",
        f"expected: {predicted.seconds:.4g} s{_between(chosen)}, {predicted.exposed_share:.1%} of it exposed copies",
    ]
    lines.append(binding_line(chosen))
    return lines + [f"with --strategy {name}: {seconds:.4g} s" for name, seconds in chosen.others]


def _between(chosen: Budgeted) -> str:
    """Return the range of the time, if the measured disk rate varied."""
    least, most = chosen.between
    return f" ({least:.3g} to {most:.3g} s, as the disk's rate varied)" if most > 1.01 * least else ""


def _extents(chosen: Budgeted) -> str:
    product = chosen.plan.product
    return f"{product.m} x {product.n} x {product.k}"


def _tiles(chosen: Budgeted) -> str:
    plan = chosen.plan
    tiles = f"{plan.tiles} tile{'s' * (plan.tiles != 1)} of {plan.tile_m} x {plan.tile_n}"
    half = ", the others mirrored" if plan.symmetric else ""
    return f"{plan.strategy}, {tiles}{half}, k-tiles of {plan.tile_k}"


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


def write_drawings(product: DeviceProduct, trace: str | None, timeline: str | None, *, force: bool) -> None:
    """Write the trace and the timeline, where the user named files for them."""
    from ..lab.streams import draw_timeline, write_stream_trace

    title = f"{_extents(product.part.chosen)} by {product.plan.strategy} on {product.part.device}"
    if trace is not None:
        write_stream_trace(Path(trace).absolute(), product.activity, {"product": title}, force=force)
    if timeline is not None:
        draw_timeline(Path(timeline).absolute(), product.activity, title, force=force)
