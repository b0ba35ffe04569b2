"""What the commands of the laboratory find: a scripted device, kernels that are never compiled, or no GPU at all."""

from __future__ import annotations

import contextlib

import pytest

from gemmule.commands import gpu
from gemmule.compiler import pool
from gemmule.dispatch import registry
from gemmule.lab import protocol

from .bench import REFERENCE, FakeBaseline
from .cuda import FakeCuda, installed


class Laboratory:
    """The surroundings of a command, which a test can change at any time.

    Attributes
    ----------
    compiled : list of Job
        What was to be compiled.
    errors : callable
        Gives the error of a job, or None.
    """

    def __init__(self, patch):
        self._patch, self.compiled, self.errors = patch, [], lambda job: None
        # Products of a warm-up that NumPy computes at once.
        self.warm_up(64)
        patch.setattr(pool, "compile_all", self._compile_all)

    def warm_up(self, edge):
        self._patch.setattr(protocol, "WARM_UP_EDGE", edge)

    def register(self, *specs):
        """Let those be all kernels, beside the reference."""
        self._patch.setattr(registry, "REGISTRY", (*specs, REFERENCE))
        self._patch.setattr(registry, "LADDER", tuple(spec.name for spec in specs))

    def open(self, device):
        """Let commands measure on a device, beside a scripted baseline; return it."""

        @contextlib.contextmanager
        def opened(*, baseline, required=True, without=""):
            with installed(FakeCuda()):
                yield device, FakeBaseline(device) if baseline else None

        self._patch.setattr(gpu, "open_gpu", opened)
        return device

    def _compile_all(self, jobs, workers=1):
        jobs = list(jobs)
        self.compiled += jobs
        return ((job, self.errors(job)) for job in jobs)


@pytest.fixture
def laboratory(monkeypatch):
    return Laboratory(monkeypatch)


@pytest.fixture
def no_gpu():
    with installed(None):
        yield


@pytest.fixture
def one_gpu():
    """A GPU as the driver describes it, which computes nothing."""
    with installed(FakeCuda()) as fake:
        yield fake
