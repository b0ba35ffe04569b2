"""The table of searched configs: the best of each size, what is taken without a search, and the means."""

from __future__ import annotations

import pytest

from gemmule.core.gpu_rates import H200_RATES
from gemmule.dispatch.registry import REGISTRY
from gemmule.kernels.hopper.gemm.spec import SPEC
from gemmule.lab.products import gemm_problem
from pages.searched import searched

EXPERIMENT = {"record": "experiment", "gpu": "NVIDIA H200"}


def product(size, config, ratio, kernel=SPEC.name):
    m, n, k = size
    named = {"dtype": "bfloat16", "out_dtype": "bfloat16", "layout": "nn", "m": m, "n": n, "k": k}
    timed = {"median_us": 10.0 / ratio, "tflops": 2 * m * n * k * ratio / 1e7}
    return {"record": "gemm", "kernel": kernel, "config": config.as_dict(), "ratio": ratio} | named | timed


def taken(size):
    problem = gemm_problem(*size, "bfloat16", "bfloat16", "nn")
    return min(SPEC.configs, key=lambda config: SPEC.cost(problem, config, H200_RATES))


def test_best_and_taken_stand_side_by_side():
    sizes = (512, 512, 512), (8192, 8192, 8192)
    others = [next(config for config in SPEC.configs if config != taken(size)) for size in sizes]
    records = [EXPERIMENT, {"record": "skipped", "kernel": SPEC.name, "m": 1, "n": 1, "k": 1, "reason": "small"}]
    for size, other, ratios in zip(sizes, others, ((0.5, 1.0), (1.0, 0.25)), strict=True):
        records += [product(size, taken(size), ratios[0]), product(size, other, ratios[1])]
    (header, rows), means = searched(records)
    assert [row[0] for row in rows] == ["512 x 512 x 512", "8192 x 8192 x 8192"]
    assert [(row[header.index("vs cuBLASLt")], row[-1]) for row in rows] == [("1.000", "0.500"), ("1.000", "1.000")]
    assert [row[1] for row in rows] == ["10.0", "10.0"]
    assert means == (
        "Geometric means: 1.000 (least 1.000) searched, 0.707 (least 0.500) unsearched, which is 0.707 (least 0.500) "
        "of the searched"
    )


def test_a_config_that_was_not_measured_is_not_made_up():
    size = (512, 512, 512)
    other = next(config for config in SPEC.configs if config != taken(size))
    (_, rows), means = searched([EXPERIMENT, product(size, other, 0.5)])
    assert rows[0][-2:] == ["", ""]
    assert means == "Geometric means: 0.500 (least 0.500) searched"


def test_a_kernel_that_is_not_known():
    with pytest.raises(KeyError, match="no kernel k99"):
        searched([EXPERIMENT, product((8, 8, 8), SPEC.default, 1.0, kernel="k99")])


def test_what_dispatch_took_then_is_what_was_taken():
    size = (512, 512, 512)
    other = next(config for config in SPEC.configs if config != taken(size))
    then = product(size, other, 0.5) | {"chosen_by": "dispatch"}
    best = product(size, taken(size), 1.0) | {"chosen_by": "search"}
    (header, rows), means = searched([EXPERIMENT, best, then])
    assert rows[0][header.index("config taken unsearched") :] == [rows[0][-2], "0.500"]
    assert "of the searched" in means
    # Where the two are one, it is not told twice.
    (_, rows), _ = searched([EXPERIMENT, product(size, other, 0.5) | {"chosen_by": "dispatch"}])
    assert rows[0][-2:] == ["the same", "0.500"]


def test_types_and_layouts_are_told_apart_and_may_be_left_out():
    size = (512, 512, 512)
    records = [EXPERIMENT, product(size, SPEC.default, 0.5), product(size, SPEC.default, 1.0) | {"layout": "tn"}]
    (header, rows), _ = searched(records)
    assert header[:3] == ["M x N x K", "types", "layout"]
    assert [row[1:3] for row in rows] == [["bfloat16", "nn"], ["bfloat16", "tn"]]
    (header, rows), means = searched(records, ["tn"])
    assert header[1] == "us"
    assert len(rows) == 1
    assert means.startswith("Geometric means: 1.000")
    with pytest.raises(KeyError, match="nothing was measured of float16"):
        searched(records, ["float16"])


def test_sizes_of_a_preset_are_told_apart():
    records = [EXPERIMENT, product((512, 512, 512), SPEC.default, 0.5), product((520, 520, 520), SPEC.default, 1.0)]
    (_, rows), _ = searched(records, ["cells"])
    assert [row[0] for row in rows] == ["512 x 512 x 512"]
    with pytest.raises(KeyError, match="random:3:1"):
        searched(records, ["random:3:1"])


def test_kernels_are_named_where_there_are_several():
    size = (512, 512, 512)
    other = next(spec for spec in REGISTRY if spec.name == "mma_sync_gemm")
    records = [EXPERIMENT, product(size, SPEC.default, 0.5), product(size, other.default, 1.0, kernel=other.name)]
    (header, rows), _ = searched(records)
    assert rows[0][header.index("best config")].startswith("mma_sync_gemm: ")
