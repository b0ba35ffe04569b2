"""A timeline as plain data."""

from __future__ import annotations

from typing import Any

from .timeline import Role, Timeline


def timeline_dict(found: Timeline) -> dict[str, Any]:
    """Return everything, times in steps."""
    numbers = {role: number for number, role in enumerate(found.roles)}

    def steps(cycles: float) -> float:
        return round(cycles / found.step, 3)

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
            {"when": when, "for": what, "steps": steps(cycles)} for (when, what), cycles in found.idle.items()
        ],
        "longest_path": {what: steps(cycles) for what, cycles in found.path.items()},
        "roles": [{"cta": role.cta, "warps": list(role.warps), "does": list(role.does)} for role in found.roles],
        "waits": [
            {
                "role": numbers[wait.role],
                "for": wait.about,
                "by": named(wait.by),
                "times": wait.times,
                "steps": steps(wait.cycles),
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
