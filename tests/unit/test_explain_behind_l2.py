"""The model of the L2 cache: what CTAs share in step and apart, and the lookups that hit, all by hand."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.core.chips import chip_named
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.lab.explain.behind_l2 import Behind, behind_l2
from gemmule.lab.products import gemm_problem
from gemmule.lab.transposes import transpose_of

H100 = chip_named("h100")
#: Tiles of 128 x 128: a slice of 8 is 4096 bytes of A, and as many of B.
CHOICE = next(Choice(spec, spec.default) for spec in REGISTRY if spec.name == "g05_conflict_free")
SLICE = 4096


class Rows:
    """A kernel whose CTAs go along rows of tiles: the first of a row brings its rows of A, those of the first row B."""

    def __init__(self, columns):
        self.columns = columns
        self.asked = []

    def fresh_bytes(self, recipe, buffers, ctas):
        self.asked.append((recipe.grid, ctas))
        return [SLICE * ((number % self.columns == 0) + (number < self.columns)) for number in ctas]


def behind(size, blocks, chip=H100):
    problem = gemm_problem(size, size, size, "float32", "float32", "nn")
    kernel = Rows(size // 128)
    recipe = CHOICE.spec.launch(problem, CHOICE.config)
    return behind_l2(problem, CHOICE, chip, kernel, recipe, blocks), kernel, problem


def test_waves_in_step_and_ctas_apart():
    """8192 cubed: 64 x 64 tiles, waves of 132; rows of A or columns of B are 4 MB a tile, and 25 MiB of L2 hold six."""
    found, kernel, _ = behind(8192, 1)
    operand = 4 * 128 * 8192
    assert kernel.asked == [((64, 64, 1), range(132))]
    assert found.written == 4 * 8192**2
    # A wave begins three rows, and meets all columns.
    assert found.bytes - found.written == (3 + 64) * operand * 64 * 64 // 132
    # One row of A and five columns: the sixth CTA's column no longer fits.
    assert found.apart_bytes - found.written == 6 * operand * 64 * 64 // 5
    assert found.bytes < found.apart_bytes < 2 * operand * 64 * 64 + found.written


def test_an_l2_of_one_part_holds_twice_as_much():
    whole, *_ = behind(8192, 1, dataclasses.replace(H100, l2_partitions=1))
    operand = 4 * 128 * 8192
    assert whole.apart_bytes - whole.written == 12 * operand * 64 * 64 // 11


@pytest.mark.parametrize(("size", "parts", "how"), [(1408, 2, "one wave"), (1536, 1, "fits in L2")])
def test_where_nothing_is_read_twice(size, parts, how):
    found, _, problem = behind(size, 1, dataclasses.replace(H100, l2_partitions=parts))
    assert found.how == f"each operand once: {how}"
    assert found.bytes == found.apart_bytes == problem.bytes_min
    # 28 MB do not fit into one of two parts.
    assert behind(1536, 1)[0].how == "waves of 132 CTAs share reads"


def test_a_transpose_reads_and_writes_each_element_once():
    problem = transpose_of(1000, 800, 4)
    found = behind_l2(problem, CHOICE, H100, None, CHOICE.spec.launch(behind(1024, 1)[2], CHOICE.config), 1)
    assert found.bytes == found.apart_bytes == 2 * found.written == 2 * 4 * 1000 * 800


def test_hit_rates_by_hand():
    """100 bytes asked for and 20 stored; 10 come from memory in step, 40 apart."""
    found = Behind(bytes=10 + 20, apart_bytes=40 + 20, written=20, how="")
    assert found.hit_rates(100, 20, 1) == pytest.approx((1 - 10 / 120, 1 - 40 / 120))
    # Two parts: half of the stores are looked up twice. In step both parts ask for all 10, of which one has to ask the
    # other: 10 lookups more, and 20 that miss. Apart one part asks, for half of it in vain: 20 more, and 60 that miss.
    assert found.hit_rates(100, 20, 2) == pytest.approx((1 - 20 / 140, 1 - 60 / 150))
    assert Behind(0, 0, 0, "").hit_rates(0, 0, 2) == (1, 1)
