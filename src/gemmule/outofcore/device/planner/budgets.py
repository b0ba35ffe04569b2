"""The fastest plan within three budgets: the memory of each device, pinned memory, and host memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from gemmule.core.dataclass import dataclass

from ....core.errors import MemoryLimitError
from ...stores.matrix import AnyDType
from ...tiles.memory_budget import at_least, format_bytes
from ...tiles.plan import Product
from .choice import Chosen, Scope, choose_plan, least_memory, least_width
from .rates import Rates
from .rings import (
    SMALLEST,
    column_bytes,
    cut_rings,
    least_pinned,
    line_bytes,
    loading_streams,
    pinned_bytes,
    staged_rates,
    too_little_pinned,
)

#: A budget binds where twice as much makes the product so much faster.
_FASTER = 1.01


@dataclass(frozen=True)
class Budgets:
    """The limits of a product's memory."""

    device: int  #: Bytes of each device's memory.
    pinned: int  #: Bytes of pinned memory for staging, for all devices together.
    #: Bytes of host memory: pinned buffers, what reading and writing take besides them, and the memory of a device that
    #: is the host.
    memory: int

    def doubled(self, name: str) -> Budgets:
        """Return the budgets with twice as much of one."""
        return dataclasses.replace(self, **{name: 2 * getattr(self, name)})


@dataclass(frozen=True)
class Staging:
    """The memory that a product needs on the host."""

    staged: tuple[str, ...] = ()  #: Those of ``a``, ``b``, ``c`` and ``out`` that pass through pinned buffers.
    threads: int = 1  #: Most threads that fill buffers, and as many that empty them; all devices share them.
    scratch: int = 0  #: Bytes that one thread of each kind takes besides the buffers.
    on_host: bool = False  #: Whether the device's memory is host memory.


@dataclass(frozen=True)
class Budgeted(Chosen):
    """A plan that keeps to three budgets."""

    budgets: Budgets = dataclasses.field(default_factory=lambda: Budgets(0, 0, 0))  #: Limits of the plan.
    #: pinned, result, threads: Bytes of pinned memory for all devices, those of them for the result, and threads.
    pinned: int = 0
    result: int | None = None
    threads: int = 1
    #: pinned_bytes, memory_bytes: Bytes of all pinned buffers, and of host memory in all, that it takes.
    pinned_bytes: int = 0
    memory_bytes: int = 0
    #: Looks quickly for a plan within other budgets.
    search: Callable[[Budgets], float] | None = dataclasses.field(default=None, repr=False, compare=False)

    def binding(self) -> dict[str, float]:
        """Return the budgets that bind, by name, with the share of the time that is left with twice as much.

        It is found by looking for plans again, which takes as long as this one took.
        """
        if self.search is None:
            return {}
        seconds = self.search(self.budgets)
        found = {}
        for name in ("device", "pinned", "memory"):
            faster = self.search(self.budgets.doubled(name))
            if seconds > _FASTER * faster:
                found[name] = faster / seconds
        return found


def binding_line(chosen: Budgeted) -> str:
    """Say which budgets bind."""
    names = {"device": "device memory", "pinned": "pinned memory", "memory": "memory"}
    bound = [f"{names[name]} (twice as much: {share:.0%} of the time)" for name, share in chosen.binding().items()]
    return f"limited by: {', '.join(bound) or 'no budget; with twice as much of any it would take as long'}"


@dataclass(frozen=True)
class _Way:
    """The limits of one device: its memory, threads and buffers."""

    device: int
    pinned: int
    result: int | None
    threads: int
    rings: tuple[tuple[str, tuple[int, int]], ...]
    widest: int | None


def choose_within(
    count: int,
    product: Product,
    sum_dtype: AnyDType,
    budgets: Budgets,
    staging: Staging,
    rates: Rates,
    *,
    symmetric: bool = False,
    strategy: str | None = None,
) -> Budgeted:
    """Return the plan that is expected to be done first on so many devices, within all budgets.

    Parameters
    ----------
    count : int
        Devices alike that share the tiles.
    product, sum_dtype, symmetric, strategy
        As of `choose_plan`.
    budgets : Budgets
        Memory limits.
    staging : Staging
        Staged matrices, and their host memory.
    rates : Rates
        Rates as they were measured with all threads.

    Raises
    ------
    MemoryLimitError
        If a budget is too small; the message names it, and the least sufficient one.
    ArgumentError
        As of `choose_plan`.
    """
    most = max(staging.threads // count, 1)

    def tried(way: _Way, *, quick: bool) -> Chosen:
        through = staged_rates(rates, dict(way.rings), way.threads, most)
        return choose_plan(
            product, sum_dtype, way.device, through, symmetric=symmetric, strategy=strategy,
            scope=Scope(count, way.widest, quick),
        )  # fmt: skip

    known: dict[_Way, float] = {}

    def fastest(within: Budgets) -> tuple[float, _Way]:
        """Return the rough time of the best strategy within some budgets."""
        refused: MemoryLimitError | None = None
        ways = list(_ways(count, product, sum_dtype, within, staging, symmetric=symmetric, strategy=strategy))
        for way in ways:
            try:
                known[way] = known.get(way) or tried(way, quick=True).prediction.seconds
            except MemoryLimitError as error:
                refused = error
        if refused is not None and not any(way in known for way in ways):
            raise refused
        return min(((known[way], way) for way in ways if way in known), key=lambda one: one[0])

    ways = list(_ways(count, product, sum_dtype, budgets, staging, symmetric=symmetric, strategy=strategy))
    way = ways[0] if len(ways) == 1 else fastest(budgets)[1]
    best = tried(way, quick=False)
    rings = cut_rings(staging.staged, way.pinned, way.threads, line_bytes(best.plan), way.result)
    taken = pinned_bytes(rings) * count
    host = best.plan.device_bytes * count if staging.on_host else 0
    return Budgeted(
        **{field.name: getattr(best, field.name) for field in dataclasses.fields(Chosen)},
        budgets=budgets, pinned=way.pinned * count, result=way.result and way.result * count,
        threads=way.threads * count, pinned_bytes=taken,
        memory_bytes=taken + way.threads * count * staging.scratch + host,
        search=lambda within: fastest(within)[0],
    )  # fmt: skip


def _ways(
    count: int,
    product: Product,
    sum_dtype: AnyDType,
    budgets: Budgets,
    staging: Staging,
    *,
    symmetric: bool,
    strategy: str | None,
) -> Iterator[_Way]:
    """Yield what each device may take of the budgets: many threads or much memory, one ring or the other larger."""
    width = least_width(product, sum_dtype, symmetric=symmetric, strategy=strategy)
    least = count * least_pinned(staging.staged, column_bytes(product) * max(width, 1))
    own = count * least_memory(product, sum_dtype, symmetric=symmetric, strategy=strategy) if staging.on_host else 0
    needed = least + count * staging.scratch + own
    if budgets.memory < needed:
        parts = (needed, least, count * staging.scratch, own)
        whole, pinned_part, scratch, device_part = (format_bytes(x, up=True, like=budgets.memory) for x in parts)
        raise MemoryLimitError(
            f"memory of {format_bytes(budgets.memory)} is too small for this product; it takes at least {whole}: "
            f"{pinned_part} of pinned buffers, {scratch} for reading and writing"
            + (f", {device_part} for the device, which is the host" if own else "")
            + f"; {at_least('memory', needed, budgets.memory)}",
            needed,
        )
    # Second: by default pinned memory is at most `memory`.
    if budgets.pinned < least:
        raise MemoryLimitError(too_little_pinned(budgets.pinned, least))
    for threads in _threads(max(staging.threads // count, 1), staging.scratch):
        free = budgets.memory // count - threads * staging.scratch
        if free * count < least + own:
            continue
        for pinned in _pinned(min(budgets.pinned // count, free - own // count), least // count, staging):
            device = min(budgets.device, free - pinned) if staging.on_host else budgets.device
            yield from _cuts(product, staging, device, pinned, threads, max(width, 1))


def _threads(most: int, scratch: int) -> Iterator[int]:
    """Yield how many threads may read and write: fewer take less memory, where they take some."""
    while most >= 1:
        yield most
        if not scratch:
            return
        if most == 1:
            return
        most //= 2


def _pinned(most: int, least: int, staging: Staging) -> Iterator[int]:
    """Yield how much memory is pinned: less leaves more to a device that is the host."""
    if not staging.staged:
        yield 0
        return
    yield most
    if staging.on_host:
        for part in (8, 64):
            if most // part >= least:
                yield most // part


def _cuts(product: Product, staging: Staging, device: int, pinned: int, threads: int, narrowest: int) -> Iterator[_Way]:
    """Yield ways to share pinned memory: several buffers for narrow tiles, or nearly all of it in one for wide ones."""
    if "out" not in staging.staged:
        rings = cut_rings(staging.staged, pinned, threads, 0)
        yield _Way(device, pinned, None, threads, tuple(rings.items()), None)
        return
    loading = len(loading_streams(staging.staged))
    column, most = column_bytes(product), pinned - SMALLEST * loading
    half = pinned // 2 if loading else pinned
    most_result = max(pinned * 7 // 8, column * narrowest)
    last = None
    for result, parts in ((None, 4), (None, 1), (most_result, 1)):
        own = min(half if result is None else result, most)
        widest = own // parts // SMALLEST * SMALLEST // column
        if narrowest <= widest and widest != last:
            line = min(widest, max(product.n, 1)) * column
            rings = cut_rings(staging.staged, pinned, threads, line, result)
            yield _Way(device, pinned, result, threads, tuple(rings.items()), widest)
            last = widest
        if widest >= product.n:
            # Tiles may be as wide as they like.
            return
