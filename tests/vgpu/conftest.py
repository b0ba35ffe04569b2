"""What the tests of the virtual GPU share; with ``--twin`` every launch is repeated on an NVIDIA GPU."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _special_numbers_are_wanted():
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(scope="session")
def _twin_of_session(request):
    if not request.config.getoption("--twin"):
        return None
    from support.vgpu.twin import Twin

    twin = Twin()
    request.config.extra_records.append(twin.records)
    return twin


@pytest.fixture(autouse=True)
def _twin(_twin_of_session, request, monkeypatch):
    if _twin_of_session is None:
        yield
        return
    from gemmule.runtime.device import current

    if request.node.get_closest_marker("differs_on_hardware"):
        yield
        return
    _twin_of_session.test = request.node.nodeid.split("[")[0]
    _twin_of_session.nan = _type_whose_nan_is_open(request.node)
    _twin_of_session.install(monkeypatch)
    with current(0):
        yield
    failures = _twin_of_session.failures
    if failures:
        pytest.fail(f"{len(failures)} launches differ from the hardware; the first: {failures[0]}")


def _type_whose_nan_is_open(test):
    marker = test.get_closest_marker("which_nan_is_open")
    if marker is None:
        return None
    return marker.kwargs.get("kind") or test.callspec.params[marker.args[0]]
