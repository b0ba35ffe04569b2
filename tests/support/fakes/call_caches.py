"""Calls of the public functions on arrays of a test's own, which a test plans and queues."""

from __future__ import annotations

import contextlib
import dataclasses

from gemmule.api.calls.call_cache import CALLS
from gemmule.api.planning.plan import Execution
from gemmule.runtime import repeated as repeated_launches
from support.fakes import planners

#: Whether the kernels of executed plans clear the absolute maximum.
CLEARS_ABSMAX = False


@contextlib.contextmanager
def scripted(monkeypatch, plan_product, repeated, libraries):
    """Let a test plan and repeat products while the block runs; nothing is known before and afterwards.

    Parameters
    ----------
    monkeypatch : MonkeyPatch
        Undoes it.
    plan_product, repeated : callable
        Stand in for the functions of `gemmule.api.calls.dispatcher` and `gemmule.runtime.repeated`.
    libraries : dict of type to CallArrays
        The arrays that are known.
    """
    monkeypatch.setattr("gemmule.runtime.repeated.repeated", repeated)
    planners.replaced(monkeypatch, "plan_product", planner(plan_product))
    monkeypatch.setattr(CALLS, "libraries", libraries)
    CALLS.forget()
    try:
        yield
    finally:
        CALLS.forget()


def planner(plan_product):
    """Return a planner of a call's arguments, given one of `gemm`'s parameters; its plans leave launches behind."""

    def plan(call, *, traced=None):
        options = {field.name: getattr(call, field.name) for field in dataclasses.fields(call)}
        operation, a, b = (options.pop(name) for name in ("operation", "a", "b"))
        found = plan_product(operation, a, b, **options, traced=traced)
        found.execution = execution(found, (*found.places, *(() if call.absmax is None else ("absmax",)), "d"), a)
        return found

    return plan


def execution(plan, operands, a):
    """Return what an execution of a plan leaves: what the stand-in of `repeated` queues."""
    ordinal = a.get_device() if hasattr(a, "get_device") else 0
    queue = repeated_launches.repeated(plan.problem, plan.choice, operands, None, ordinal)
    return Execution(queue, clears_absmax=CLEARS_ABSMAX)


def retained(monkeypatch):
    """Return a list of what is kept alive from now on, with the GPU and the stream."""
    found = []
    monkeypatch.setattr("gemmule.runtime.retain.retain", lambda *what: found.append(what))
    return found
