"""What the tests with JAX share."""

from __future__ import annotations

import pytest


@pytest.fixture
def jax_on_the_host():
    """JAX with its arrays in host memory, and with 64-bit types."""
    import jax

    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    with jax.default_device(jax.devices("cpu")[0]):
        yield
    jax.config.update("jax_enable_x64", before)
