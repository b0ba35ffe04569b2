"""Advice on a pipeline, by what the tensor cores wait for in its timeline."""

from __future__ import annotations

from .timeline import Timeline

# Shares of the time that are worth a change, and of shared memory's passes conflicts that are.
_WORTH, _CONFLICTS = 0.01, 0.1
# Share of the time that copies may take at the rate that is assumed.
_FULL = 0.95


def keep_busy(found: Timeline, k_tiles: int, worth: float = _WORTH) -> str:
    """Return the sentence; nothing where the tensor cores hardly wait.

    Parameters
    ----------
    found : Timeline
        A sample.
    k_tiles : int
        K-tiles of a tile in the launch itself, which may be more than in the sample.
    worth : float
        The least share of the time that is worth a sentence.
    """
    per_tile = sample_shares(found, k_tiles)
    within, ends = per_tile["slice"], per_tile["ends"]
    if max(within, ends) < worth:
        return _fewer_bytes(found) if found.copying > _FULL else ""
    if within >= ends:
        return _bring_earlier(found, within)
    if not found.persistent:
        return (
            f"Let CTAs stay: the tensor cores have nothing to do for {ends:.0%} of a tile's time, before its first "
            "k-tile has come and while it is written, and nothing of the next tile can begin; tile after tile in one "
            "CTA, its k-tiles come while the one before is written."
        )
    if any(wait.about == "its turn" for wait in found.waits):
        return (
            f"Shorten what is between two tiles: the tensor cores have nothing to do for {ends:.0%} of a tile's time, "
            "though another warpgroup takes its turn; hand over earlier, or take larger tiles."
        )
    copied = any(span.what == "store" for span in found.spans)
    how = "" if copied else ", or write through shared memory and TMA"
    return (
        f"Multiply while a tile is written: the tensor cores have nothing to do for {ends:.0%} of a tile's time, since "
        f"all warpgroups write at once; let each have tiles of its own, and take turns{how}."
    )


def sample_shares(found: Timeline, k_tiles: int) -> dict[str, float]:
    """Return the shares of a tile's time in which the tensor cores wait: ``slice``, within it, and ``ends``.

    The sample has fewer k-tiles a tile than the launch: those beyond cost what the ones of the sample do.
    """
    sums = dict.fromkeys(("start", "tile", "slice", "end"), 0.0)
    for (when, _), cycles in found.idle.items():
        sums[when] += cycles
    held = found.ctas // found.multiprocessors
    tiles = found.tiles * held
    # A persistent launch begins and ends once; else every tile does.
    # The other CTAs of an SM can multiply then.
    alone = (sums["start"] + sums["end"]) if held == 1 else 0.0
    ends = sums["tile"] / max(found.tiles - 1, 1) / held if found.persistent else alone
    within = sums["slice"] / (tiles * max(found.k_tiles - 1, 1)) * max(k_tiles - 1, 0)
    whole = found.step * k_tiles + within + ends
    return {"slice": within / whole, "ends": ends / whole}


def _fewer_bytes(found: Timeline) -> str:
    return (
        f"Load fewer bytes: copies take {found.copying:.2g} steps for a step of products, if TMA gets "
        f"{found.rules.copy_bytes:g} bytes a cycle; a larger tile, or k-tiles shared by a cluster, need less."
    )


def _bring_earlier(found: Timeline, share: float) -> str:
    copies = sum(cycles for (when, what), cycles in found.idle.items() if when == "slice" and what == "copy")
    every = sum(cycles for (when, _), cycles in found.idle.items() if when == "slice")
    if copies < 0.5 * every:
        return (
            f"Keep a product under way: the tensor cores have nothing to do for {share:.0%} of a tile's time, between "
            "the products of one k-tile and the next; wait for those of a k-tile only when the next ones are issued."
        )
    if found.stages == 1:
        return (
            f"Keep more k-tiles in flight: the tensor cores wait for copies {share:.0%} of a tile's time, and there "
            "is one stage; with several, copies run ahead of the products."
        )
    return (
        f"Load less, or earlier: the tensor cores wait for copies {share:.0%} of a tile's time with "
        f"{found.stages} stages, at the rates that are assumed; larger tiles or k-tiles shared by a cluster need fewer "
        "bytes for a product, further stages load earlier."
    )


def read_less(conflicts: float, passes: float) -> str:
    """Return the advice where shared memory takes longer than the tensor cores.

    Parameters
    ----------
    conflicts : float
        Share of the passes that conflicts of banks add.
    passes : float
        Passes for a matrix instruction of a warp.
    """
    if conflicts > _CONFLICTS:
        return f"Remove the bank conflicts: {conflicts:.0%} of the wavefronts of shared memory; change the layout."
    return (
        f"Read less from shared memory: {passes:.2g} wavefronts for one product of a warp take longer than the "
        "product; a product of more columns reads its factors for more multiply-adds."
    )
