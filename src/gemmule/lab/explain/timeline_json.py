"""A timeline as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .steps import Rules
from .timeline import Role, Span, Timeline, Wait


def timeline_dict(found: Timeline) -> dict[str, Any]:
    """Return everything, times in steps."""
    numbers = {role: number for number, role in enumerate(found.roles)}

    def steps(clocks: float) -> float:
        return round(clocks / found.step, 3)

    def named(roles: tuple[Role, ...]) -> list[int]:
        return [numbers[role] for role in roles]

    most, mean = found.in_flight()
    return {
        "step_clocks": found.step,
        "rules": {
            "flop_per_clock": found.rules.flop,
            "shared_bytes_per_clock": found.rules.shared_bytes,
            "copy_bytes_per_clock": found.rules.copy_bytes,
            "copy_latency_clocks": found.rules.copy_latency,
        },
        "ctas": found.ctas,
        "multiprocessors": found.multiprocessors,
        "tiles": found.tiles,
        "slices": found.k_tiles,
        "persistent": found.persistent,
        "stages": found.stages,
        "copied_bytes": found.copied,
        "copying_share": found.copying,
        "stages_in_flight": {"most": most, "mean": round(mean, 4)},
        "steps": steps(found.end),
        "tensor_cores_busy": found.busy / found.end,
        "tensor_cores_idle": [
            {"when": when, "for": what, "steps": steps(clocks)} for (when, what), clocks in found.idle.items()
        ],
        "longest_path": {what: steps(clocks) for what, clocks in found.path.items()},
        "roles": [{"cta": role.cta, "warps": list(role.warps), "does": list(role.does)} for role in found.roles],
        "waits": [
            {
                "role": numbers[wait.role],
                "for": wait.about,
                "by": named(wait.by),
                "times": wait.times,
                "steps": steps(wait.clocks),
                "on_longest_path": wait.critical,
            }
            for wait in found.waits
        ],
        "events": [
            {
                "what": span.what,
                "role": numbers[span.role],
                "cta": span.cta,
                "begin": steps(span.begin),
                "end": steps(span.end),
                "tile": span.k_tile // found.k_tiles if span.k_tile is not None else None,
                "slice": span.k_tile % found.k_tiles if span.k_tile is not None else None,
                "stage": span.stage,
                "for": span.about or None,
            }
            for span in found.spans
        ],
    }


def timeline_from(data: Mapping[str, Any]) -> Timeline:
    """Return the timeline that `timeline_dict` made plain data of."""
    step, given = data["step_clocks"], data["rules"]
    roles = tuple(Role(one["cta"], tuple(one["warps"]), tuple(one["does"])) for one in data["roles"])

    def span(one: Mapping[str, Any]) -> Span:
        place = one["tile"] * data["slices"] + one["slice"] if one["slice"] is not None else None
        begin, end = one["begin"] * step, one["end"] * step
        return Span(one["what"], roles[one["role"]], begin, end, one["cta"], place, one["stage"], one["for"] or "")

    return Timeline(
        rules=Rules(
            given["flop_per_clock"], given["shared_bytes_per_clock"], given["copy_bytes_per_clock"],
            given["copy_latency_clocks"],
        ),
        step=step,
        tiles=data["tiles"],
        k_tiles=data["slices"],
        stages=data["stages"],
        ctas=data["ctas"],
        multiprocessors=data["multiprocessors"],
        persistent=data["persistent"],
        roles=roles,
        spans=tuple(map(span, data["events"])),
        waits=tuple(
            Wait(
                roles[one["role"]], one["for"], tuple(roles[number] for number in one["by"]), one["times"],
                one["steps"] * step, one["on_longest_path"],
            )
            for one in data["waits"]
        ),
        path={what: steps * step for what, steps in data["longest_path"].items()},
        idle={(one["when"], one["for"]): one["steps"] * step for one in data["tensor_cores_idle"]},
        end=data["steps"] * step,
        copied=data["copied_bytes"],
    )  # fmt: skip


def timeline_record(records: Sequence[Mapping[str, Any]], kernel: str) -> Mapping[str, Any]:
    """Return the record of a kernel's timeline.

    Raises
    ------
    KeyError
        If there is none.
    """
    one = next((r for r in records if r["record"] == "timeline" and r["kernel"] == kernel), None)
    if one is None:
        raise KeyError(f"the records have no timeline of {kernel}")
    return one
