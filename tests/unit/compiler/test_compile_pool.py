"""Compiling in processes: a job that brings its process down, or fails, costs no other."""

from __future__ import annotations

import dataclasses
import os

import pytest

from gemmule.compiler import pool
from gemmule.core.errors import CompileError


@dataclasses.dataclass(frozen=True)
class FakeJob:
    """Stands for a kernel to compile."""

    name: str
    does: str = "compile"

    def run(self):
        if self.does == "crash":
            os._exit(11)
        if self.does == "fail":
            raise CompileError(f"{self.name} is wrong")
        return f"compiled {self.name} in {os.getpid()}"

    def __str__(self):
        return self.name


@pytest.mark.parametrize("workers", [1, 3])
def test_one_job_costs_no_other(workers):
    jobs = [
        FakeJob("a"),
        FakeJob("b", "crash"),
        FakeJob("c"),
        FakeJob("d", "fail"),
        FakeJob("e", "crash"),
        FakeJob("f"),
    ]
    found = dict(pool.compile_all(jobs, workers))
    assert set(found) == set(jobs)
    for job, result in found.items():
        assert isinstance(result, str if job.does == "compile" else CompileError)
    assert "b: the compiler's process crashed" in str(found[jobs[1]])
    assert "d is wrong" in str(found[jobs[3]])
    processes = {result.split()[-1] for result in found.values() if isinstance(result, str)}
    assert str(os.getpid()) not in processes


def test_nothing_to_compile():
    assert list(pool.compile_all([])) == []
