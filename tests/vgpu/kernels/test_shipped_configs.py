"""Configs of shipped tables that are not registered, which no other test runs: ragged tiles, on the virtual GPU."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.core.dtype import dtype_named
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.tuned_file import read_tuned
from gemmule.dispatch.tuned_table import shipped_files
from gemmule.lab.products import gemm_problem, output_type
from gemmule.vgpu import Options
from gemmule.vgpu.execute import run_kernel
from support.oracle import assert_product, poisoned, random_matrix

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

SPECS = {spec.name: spec for spec in REGISTRY}
FOUND = {
    (one.kernel, one.config, one.key.a_dtype, one.key.layout): SPECS[one.kernel]
    for path in shipped_files()
    for one in read_tuned(path)
    if SPECS[one.kernel].default.of_record(dict(one.config)) not in SPECS[one.kernel].configs
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "config", "dtype", "layout"),
    [
        pytest.param(spec, spec.default.of_record(dict(config)), dtype, layout, id=f"{kernel}-{layout}-{number}")
        for number, ((kernel, config, dtype, layout), spec) in enumerate(FOUND.items())
    ],
)
def test_a_config_of_a_table_is_right_beyond_its_product(spec, config, dtype, layout, rng):
    kind, out = dtype_named(dtype), output_type(dtype, None)
    # Neither tiles nor slices divide these, and every CTA of a cluster has a part of K.
    m, n, k = 200, 328, (64 * config.cluster_k + 72) * 2 // kind.itemsize
    a, b = random_matrix(rng, kind, (m, k)), random_matrix(rng, kind, (k, n))
    stored = {name: one if letter == "n" else np.ascontiguousarray(one.T) for name, one, letter in (
        ("a", a, layout[0]), ("b", b, layout[1]),
    )}  # fmt: skip
    problem = gemm_problem(m, n, k, dtype, out, layout)
    views = {name: one if layout["ab".index(name)] == "n" else one.T for name, one in stored.items()}
    d = poisoned(dtype_named(out), (m, n))
    run_kernel(problem, Choice(spec, config), {**views, "d": d}, Options(checks=True))
    assert_product(d, a, b)
