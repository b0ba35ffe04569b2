"""The model of the L2 cache: what CTAs share in step and apart, and the lookups that hit, all by hand."""

from __future__ import annotations

import collections
import dataclasses
import math

import pytest

from gemmule.core.chips import chip_named
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.lab.explain.behind_l2 import Behind, behind_l2, copied_bytes
from gemmule.lab.products import gemm_problem
from gemmule.lab.transposes import transpose_of

H100 = chip_named("h100")
#: Tiles of 128 x 128: a k-tile of 8 is 4096 bytes of A, and as many of B.
CHOICE = next(Choice(spec, spec.default) for spec in REGISTRY if spec.name == "g05_conflict_free")
SLICE = 4096


class Rows:
    """A kernel whose CTAs go along rows of tiles: a row of them reads the same of A, a column the same of B."""

    def __init__(self, columns):
        self.columns = columns
        self.asked = []

    def shared_bytes(self, recipe, buffers, ctas):
        self.asked.append((recipe.grid, ctas))
        found = collections.Counter()
        for place in (lambda cta: cta // self.columns, lambda cta: cta % self.columns):
            for readers in collections.Counter(map(place, ctas)).values():
                found[readers] += SLICE
        return found


def behind(size, blocks, chip=H100):
    problem = gemm_problem(size, size, size, "float32", "float32", "nn")
    kernel = Rows(size // 128)
    recipe = CHOICE.spec.launch(problem, CHOICE.config)
    return behind_l2(problem, CHOICE, chip, kernel, math.prod(recipe.grid), blocks), kernel, problem


def test_ctas_in_step_and_apart():
    """8192 cubed: 64 x 64 tiles, 2 CTAs on each of 132 multiprocessors; a tile's rows or columns are 4 MB."""
    found, kernel, _ = behind(8192, 2)
    operand = 4 * 128 * 8192
    assert kernel.asked == [((64, 64, 1), range(264)), ((64, 64, 1), range(132))]
    assert found.written == 4 * 8192**2
    # A wave begins five rows and meets all columns; half of it begins three.
    assert found.bytes - found.written == (5 + 64) * operand * 64 * 64 // 264
    assert found.apart_bytes - found.written == (3 + 64) * operand * 64 * 64 // 132
    # Of 132 CTAs 4 read the same of 4 columns, 2 those of the other 60, 64 the first two rows and 4 the third: all
    # but one of 2 to the power of that many times, both parts of L2 ask.
    copied = 4 * (1 - 2**-3) + 60 * (1 - 2**-2) + 2 + (1 - 2**-4)
    assert found.apart_copied == pytest.approx(copied * operand * 64 * 64 / 132, rel=1e-3)


def test_one_cta_on_a_multiprocessor_has_nobody_to_be_apart_from():
    found, kernel, _ = behind(8192, 1)
    assert len(kernel.asked) == 1
    assert (found.bytes, found.copied) == (found.apart_bytes, found.apart_copied)


def test_copies_between_parts_of_l2():
    assert copied_bytes({1: 100, 2: 1000, 50: 7}, 1) == 0
    assert copied_bytes({1: 100, 2: 1000, 50: 7}, 2) == 50 + 750 + 7
    assert copied_bytes({1: 300}, 3) == 200


@pytest.mark.parametrize(("size", "parts", "how"), [(1408, 2, "one wave"), (1536, 1, "fits in L2")])
def test_where_nothing_is_read_twice(size, parts, how):
    found, _, problem = behind(size, 1, dataclasses.replace(H100, l2_partitions=parts))
    assert found.how == f"each operand once: {how}"
    assert found.bytes == found.apart_bytes == problem.bytes_min
    # 28 MB do not fit into one of two parts.
    assert behind(1536, 1)[0].how == "waves of 132 CTAs share reads"


def test_a_transpose_reads_and_writes_each_element_once():
    problem = transpose_of(1000, 800, 4)
    ctas = math.prod(CHOICE.spec.launch(behind(1024, 1)[2], CHOICE.config).grid)
    found = behind_l2(problem, CHOICE, H100, None, ctas, 1)
    assert found.bytes == found.apart_bytes == 2 * found.written == 2 * 4 * 1000 * 800


def test_hit_rates_by_hand():
    """100 bytes asked for and 20 stored; 10 come from memory in step, 40 apart."""
    one = Behind(bytes=10 + 20, apart_bytes=40 + 20, written=20, copied=0, apart_copied=0, how="")
    assert one.hit_rates(100, 20, 1) == pytest.approx((1 - 10 / 120, 1 - 40 / 120))
    # Two parts: half of the stores are looked up twice, and what is copied too, which misses in one part at first.
    two = dataclasses.replace(one, copied=10, apart_copied=20)
    assert two.hit_rates(100, 20, 2) == pytest.approx((1 - 20 / 140, 1 - 60 / 150))
    assert Behind(0, 0, 0, 0, 0, "").hit_rates(0, 0, 2) == (1, 1)
