"""Kernels of grouped products are compiled for every architecture that they claim, without spills."""

from __future__ import annotations

import pytest

from gemmule.compiler.pool import Job
from gemmule.dispatch.registry import kernels_of
from support.code.launch_order import assert_in_order

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: Every layout on Hopper, one elsewhere.
JOBS = [
    Job(spec, spec.default, signature, arch)
    for spec in kernels_of("grouped")
    for arch in spec.archs
    for signature in spec.signatures(arch)[: None if arch.major == 9 else 1]
]


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_nothing_is_spilled(job):
    artifact = job.run()
    assert f".target {job.arch}" in artifact.ptx
    assert artifact.resources.spill_bytes == 0
    # Offsets too are read after the predecessor's writes.
    assert_in_order(artifact.ptx, job.arch, overlaps=True)
