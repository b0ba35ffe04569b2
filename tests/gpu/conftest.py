"""The tests here need an NVIDIA GPU: without one they are skipped, or fail if GEMMULE_REQUIRE_GPU=1."""

from __future__ import annotations

import os

import pytest

from gemmule.runtime.device import device_count


def pytest_collection_modifyitems(items):
    here = os.path.dirname(__file__)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def _gpu():
    if device_count() == 0:
        if os.environ.get("GEMMULE_REQUIRE_GPU") == "1":
            pytest.fail("GEMMULE_REQUIRE_GPU=1, but no NVIDIA GPU found")
        pytest.skip("needs an NVIDIA GPU")


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy", reason="CuPy is not installed")


@pytest.fixture
def jax():
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    return pytest.importorskip("jax", reason="JAX is not installed")


@pytest.fixture
def gt(torch):
    import gemmule.torch

    return gemmule.torch
