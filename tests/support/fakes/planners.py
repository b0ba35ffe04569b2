"""Planners of calls that stand in for the dispatcher's, or count what it plans."""

from __future__ import annotations

from gemmule.api.calls import dispatcher
from gemmule.api.calls.call_cache import CALLS


def replaced(monkeypatch, name, planner):
    """Let the planner of that name, `plan_product` or `plan_transpose`, be another."""
    monkeypatch.setattr(dispatcher, name, planner)


def counted(monkeypatch, name="plan_product"):
    """Return the list of what is planned from now on, with no call known."""
    CALLS.forget()
    plans, plan = [], getattr(dispatcher, name)

    def noted(*given, **options):
        plans.append(given)
        return plan(*given, **options)

    replaced(monkeypatch, name, noted)
    return plans


def limited(monkeypatch, **limits):
    """Let fewer calls be known: `MOST_CALLS` and the like."""
    for name, most in limits.items():
        monkeypatch.setattr(CALLS, name, most)
