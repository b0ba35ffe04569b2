"""Plugin of pytest: the fixture `vgpu` and the option ``--vgpu-schedules``.

pytest loads it where gemmule is installed; it imports the virtual GPU when a test asks for the fixture.
"""

from __future__ import annotations

from typing import Any

import pytest


class VirtualGpu:
    """The virtual GPU of a test.

    Attributes
    ----------
    schedules : int
        Default number of schedules of `run`: that of ``--vgpu-schedules``.
    """

    def __init__(self, schedules: int) -> None:
        self.schedules = schedules

    def run(self, function: Any, *args: Any, schedules: Any = None, **more: Any) -> None:
        """Run a ``@cute.jit`` function as `gemmule.vgpu.run` does; what a check finds fails the test.

        Parameters
        ----------
        function, *args, schedules, **more
            As of `gemmule.vgpu.run`.
        """
        from ..vgpu import run

        run(function, *args, schedules=self.schedules if schedules is None else schedules, **more)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    group = parser.getgroup("gemmule")
    group.addoption(
        "--vgpu-schedules", type=int, choices=(1, 2, 3), default=1, help="schedules that the fixture vgpu runs under"
    )


@pytest.fixture
def vgpu(request: pytest.FixtureRequest) -> VirtualGpu:
    """Return the virtual GPU: `vgpu.run(function, *args)` checks a kernel of CuTe DSL without a GPU."""
    return VirtualGpu(request.config.getoption("--vgpu-schedules"))
