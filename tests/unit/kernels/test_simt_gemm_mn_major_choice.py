"""When float32 operands are transposed or repacked first, and where the product finds them."""

from __future__ import annotations

import pytest

from gemmule.core.arch import Arch
from gemmule.dispatch.select import choose, choose_streamed
from gemmule.lab.products import gemm_problem

HOPPER = Arch.parse("sm_90a")
SIMT, TRANSPOSED, REPACKED = "simt_gemm", "simt_gemm_mn_major", "hopper_gemm_repacked"


def chosen(m, n, k, layout):
    problem = gemm_problem(m, n, k, "float32", "float32", layout)
    choice = choose(problem, HOPPER, multiprocessors=132)
    return choice.spec.name, choice.launches(problem)[0][-1]


@pytest.mark.parametrize(
    ("extent", "kernels"),
    [
        (512, (SIMT, SIMT, SIMT, SIMT)),
        (1024, (SIMT, SIMT, SIMT, SIMT)),
        (4096, (TRANSPOSED, TRANSPOSED, SIMT, TRANSPOSED)),
        (4095, (TRANSPOSED, TRANSPOSED, REPACKED, TRANSPOSED)),
        (8192, (TRANSPOSED, TRANSPOSED, SIMT, TRANSPOSED)),
    ],
)
def test_operands_of_large_products_are_prepared_where_they_need_it(extent, kernels):
    for layout, kernel in zip(("nn", "nt", "tn", "tt"), kernels, strict=True):
        name, last = chosen(extent, extent, extent, layout)
        assert name == kernel
        assert last.spec.name == SIMT
        if kernel != SIMT:
            assert last.problem.layout == "tn"
            types = dict(last.spec.signature(last.problem, last.config))
            assert types["a_copies"] == types["b_copies"] == "16"


@pytest.mark.parametrize(("extents", "layout"), [((1023, 1023, 1023), "nn"), ((401, 829, 3485), "nt")], ids=str)
def test_unaligned_operands_of_middling_products_stay_as_they_lie(extents, layout):
    """Those that were timed to be faster so."""
    assert chosen(*extents, layout)[0] == SIMT


def test_results_that_are_written_by_element_have_no_tile_that_is_alone_in_its_multiprocessor():
    layouts = ("nn", "nt", "tn", "tt")
    assert {chosen(4096, 4096, 4096, layout)[1].config.tile_elements for layout in layouts} == {128 * 256}
    assert {chosen(4095, 4095, 4095, layout)[1].config.tile_elements for layout in layouts} == {64 * 128}


@pytest.mark.parametrize(
    ("extent", "layout", "tile"),
    [
        (256, "nt", (32, 32, 2, 4)), (512, "nn", (32, 64, 1, 4)), (512, "tt", (64, 32, 1, 4)),
        (512, "nt", (64, 32, 1, 4)), (1024, "tn", (128, 64, 1, 2)),
    ],
)  # fmt: skip
def test_groups_of_warps_share_small_tiles(extent, layout, tile):
    """The fastest that were measured: rows, columns, CTAs of a cluster and groups of warps."""
    config = chosen(extent, extent, extent, layout)[1].config
    assert (config.tile_m, config.tile_n, config.cluster_k, config.warps_k) == tile


@pytest.mark.parametrize(
    ("extents", "layout", "tile"),
    [
        ((640, 640, 640), "tt", (64, 32, 1)), ((640, 640, 640), "tn", (64, 64, 1)),
        ((220, 3416, 1552), "nt", (32, 64, 1)), ((748, 224, 452), "tt", (64, 32, 1)),
    ],
)  # fmt: skip
def test_tiles_that_are_alone_in_their_sm_wait_for_vectors_of_k_major_operands(extents, layout, tile):
    """The fastest that were measured: rows, columns and CTAs of a cluster; 64 x 64 alone takes 8 to 32 % longer."""
    config = chosen(*extents, layout)[1].config
    assert (config.tile_m, config.tile_n, config.cluster_k) == tile


def test_results_of_mn_major_operands_that_are_written_by_element_are_not_computed_in_groups_of_warps():
    name, last = chosen(1023, 1023, 1023, "tn")
    assert name == SIMT
    assert last.config.warps_k == 1


def test_few_rows_are_not_worth_a_transpose_of_the_other_operand():
    assert chosen(96, 8192, 8192, "nt")[0] == SIMT


def test_streamed_products_take_no_memory_beyond_their_plan():
    problem = gemm_problem(8192, 8192, 8192, "float32", "float32", "nt")
    choice = choose_streamed(problem, HOPPER, multiprocessors=132)
    assert choice.spec.name == SIMT
    assert not choice.workspaces(problem)
