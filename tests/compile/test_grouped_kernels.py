"""Kernels of grouped products are compiled for every architecture that they claim, without spills."""

from __future__ import annotations

import pytest

from gemmule.compiler.pool import Job
from gemmule.dispatch.registry import kernels_of
from support.code.launch_order import assert_in_order

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: The first and the last layout on Hopper, one elsewhere; slow ones are the others of Hopper.
JOBS = [
    pytest.param(
        Job(spec, spec.default, signature, arch),
        marks=[] if signature in (signatures[0], signatures[-1]) else [pytest.mark.slow],
    )
    for spec in kernels_of("grouped")
    for arch in spec.archs
    for signatures in [spec.signatures(arch)]
    for signature in signatures[: None if arch.major == 9 else 1]
]


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_nothing_is_spilled(job):
    artifact = job.run()
    assert f".target {job.arch}" in artifact.ptx
    assert artifact.resources.spill_bytes == 0
    # Offsets too are read after the predecessor's writes.
    assert_in_order(artifact.ptx, job.arch, overlaps=True)
