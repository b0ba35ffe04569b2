"""Calls of the public functions on arrays of a test's own, which a test plans and queues."""

from __future__ import annotations

import contextlib

from gemmule.api import kept, prepared


@contextlib.contextmanager
def scripted(monkeypatch, plan_product, repeated, libraries):
    """Let a test plan and repeat products while the block runs; nothing is known before and afterwards.

    Parameters
    ----------
    monkeypatch : MonkeyPatch
        Undoes it.
    plan_product, repeated : callable
        Stand in for the functions of `gemmule.api.prepared` and `gemmule.runtime.repeated`.
    libraries : dict of type to KnownArrays
        The arrays that are known.
    """
    monkeypatch.setattr(prepared, "plan_product", plan_product)
    monkeypatch.setattr("gemmule.runtime.repeated.repeated", repeated)
    monkeypatch.setattr(kept, "_libraries", libraries)
    kept.forget()
    try:
        yield
    finally:
        kept.forget()


def retained(monkeypatch):
    """Return a list of what is kept alive from now on, with the GPU and the stream."""
    found = []
    monkeypatch.setattr("gemmule.runtime.retain.retain", lambda *what: found.append(what))
    return found
