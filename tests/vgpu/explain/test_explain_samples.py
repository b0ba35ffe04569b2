"""Small problems stand for a large one: their counts, scaled and added, are those of the whole."""

from __future__ import annotations

import dataclasses
import math

import pytest

from gemmule.core.arch import Arch
from gemmule.core.chips import chip_named
from gemmule.core.errors import UnsupportedError
from gemmule.lab.explain import explain, page
from gemmule.lab.explain.named import EXPLAINED, choice_named, problem_of
from gemmule.lab.explain.sample import Sample, buffers, extents, pipeline_depth, samples, tile_of
from gemmule.lab.explain.totals import totals
from gemmule.vgpu.instrument import CountedKernel
from support.vgpu.explanations import explained

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

H100 = chip_named("h100")
HOPPER = Arch(9, 0, True)


def whole_counts(choice, problem):
    """The problem itself, run and counted."""
    kernel = CountedKernel(choice.spec, choice.config, choice.signature(problem), HOPPER)
    recipe = choice.spec.launch(problem, choice.config)
    chip = dataclasses.replace(H100, sms=math.prod(recipe.grid))
    return totals([Sample(problem, 1, 1)], [kernel.run(recipe, buffers(problem, 9), chip)]), kernel


def reduced_shape(choice, ragged):
    """A shape that is large enough to be counted by smaller ones."""
    if choice.spec.name in UNALIGNED_TILES:
        return UNALIGNED_TILES[choice.spec.name][ragged]
    form = "999,999,999" if choice.spec.operation == "gemm" else "999,999"
    problem = problem_of(choice, HOPPER, form, None, None, None, None)
    text, found = reduced(choice, problem, ragged)
    if found.operands()["a"].dtype != problem.operands()["a"].dtype:
        # Elements of another size are taken where rows begin otherwise, in other tiles.
        text, _ = reduced(choice, found, ragged)
    return text


def reduced(choice, problem, ragged):
    """The shape, and the problem that is of it, by the tiles of a problem."""
    line = 128 // problem.operands()["a"].dtype.itemsize
    sides = [math.lcm(side, line) for side in tile_of(choice.spec, choice.config, problem)[:2]]
    # Where the kernel refuses rows that begin anywhere, they begin at multiples of 16 bytes.
    for unit in (1, 8):
        rests = (5 * unit, 3 * unit) if ragged else (0, 0)
        shape = [(3 if rest else 2) * side + rest for side, rest in zip(sides, rests, strict=True)]
        if choice.spec.in_place:
            shape = [8 * sides[0] + rests[0]] * 2
        if choice.spec.operation == "gemm":
            depth, least = pipeline_depth(choice.config, problem)
            depth = math.lcm(depth, line, 32)
            slices = -(-least // depth) + (3 if is_hopper(choice.spec) or choice.spec.name in LONG else 1)
            shape.append(depth * slices + (7 * unit if ragged else 0))
        text = ",".join(map(str, shape))
        found = problem_of(choice, HOPPER, text, None, None, None, None)
        if choice.spec.why_not(found, HOPPER, choice.config) is None:
            break
    return text, found


#: Kernels whose large problems are the largest.
LONG = ("mma_sync_gemm", "float64_gemm", "g07_cp_async", "d01_shared_ab", "d02_b_in_registers")
#: A kernel whose whole tiles are counted as those of its neighbours on the ladder.
RAGGED_ONLY = ("gemm_reference",)
#: A kernel whose threads, each of an element, are those of g01.
LIKE_G01 = ("g02_naive_coalesced",)
#: Kernels of which large problems of ragged tiles take longest to count; others have ragged tiles in every run.
WHOLE_ONLY = ("simt_gemm", "simt_batched", "g04_register_tile", "complex128_gemm", "mma_sync_small")
#: A kernel whose tiles are those of simt_gemm, in larger ones, with four times the work.
LIKE_SIMT_GEMM = ("complex64_gemm",)
#: Kernels whose tiles and threads are those of g04, so that the same small problems are chosen for them.
LIKE_G04 = ("g05_conflict_free", "g06_double_buffer")
#: Kernels whose last tile reads and writes its end in other vectors where it lies elsewhere.
ENDS_APART = ("transpose_whole_rows",)
#: Kernels whose first tile is shorter, and which take few shapes: a whole one and a ragged one.
UNALIGNED_TILES = {
    "transpose_gathered": ("1024,70", "1000,70"),
    "transpose_skinny": ("9920,3", "9003,3"),
    "transpose_word_aligned": ("1024,70", "1000,70"),
    "transpose_whole_rows": ("77,7936", "77,11909"),
}


def is_hopper(spec):
    return all(arch.specific for arch in spec.archs)


def is_slow(spec, number, ragged):
    """Whether it is left to slow runs: quick ones have each kernel in whole tiles or in ragged ones, by turns."""
    rare = spec.name in (*LONG, *LIKE_G01, *LIKE_G04, *LIKE_SIMT_GEMM) or is_hopper(spec)
    takes_ragged = spec.name in RAGGED_ONLY or (spec.name not in WHOLE_ONLY and EXPLAINED.index(spec) % 2)
    return number > 0 or rare or bool(takes_ragged) != ragged


CASES = [
    pytest.param(
        f"{spec.name}[{number}]", ragged, id=f"{spec.name}-{number}-{'ragged' if ragged else 'whole'}",
        marks=[pytest.mark.slow] if is_slow(spec, number, ragged) else [],
    )
    for spec in EXPLAINED
    if spec.next_kernel is None
    for number, config in enumerate(spec.configs)
    # explain refuses configs that share tiles out among CTAs.
    if not (getattr(config, "stream_k", 0) or getattr(config, "split_k", 0))
    for ragged in (False, True)
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "ragged"), CASES)
def test_small_problems_give_the_counts_of_a_large_one(kernel, ragged):
    choice = choice_named(kernel)
    problem = problem_of(choice, HOPPER, reduced_shape(choice, ragged), None, None, None, None)
    if (reason := choice.spec.why_not(problem, HOPPER, choice.config)) is not None:
        pytest.skip(reason)
    chosen = samples(choice.spec, choice.config, problem)
    assert len(chosen) > 1 or chosen[0].weight > 1
    assert all(math.prod(extents(sample.problem)) < math.prod(extents(problem)) for sample in chosen)
    found = explained(kernel, ",".join(map(str, extents(problem)))).totals
    whole, _ = whole_counts(choice, problem)
    if is_hopper(choice.spec) or choice.spec.name in ENDS_APART:
        # Where a CTA's tile lies decides by which of several branches its place is computed, or its end written.
        assert found.warps == pytest.approx(whole.warps, rel=0.02)
        assert found.engine_bytes == whole.engine_bytes
    else:
        assert found.by_class == whole.by_class
    assert found.operations_by_class == whole.operations_by_class
    if choice.spec.name not in ENDS_APART:
        assert found.by_line == whole.by_line
    # The model of L1 looks at where lines lie, which is not the same in a smaller matrix.
    assert found.l2_bytes == pytest.approx(whole.l2_bytes, rel=0.05)


@pytest.mark.parametrize(
    ("kernel", "shape"),
    [
        ("mma_sync_small[0]", "64,64,2048"),
        pytest.param("mma_sync_small[6]", "100,64,2501", marks=pytest.mark.slow),
        ("mma_sync_gemm[9]", "64,64,3072"),
        ("simt_gemm[4]", "64,64,1280"),
    ],
)
def test_rounds_of_k_tiles_and_clusters_along_k(kernel, shape):
    """The period along K is of all CTAs of a cluster, and of the k-tiles that are loaded together."""
    choice = choice_named(kernel)
    problem = problem_of(choice, HOPPER, shape, None, None, None, None)
    found, (whole, _) = explained(kernel, shape).totals, whole_counts(choice, problem)
    assert (found.warps, found.by_class, found.by_line) == (whole.warps, whole.by_class, whole.by_line)


@pytest.mark.parametrize(
    ("kernel", "shape", "dtype", "weights", "tile"),
    [
        ("transpose_tiled[0]", "70,96,64", "float32", [70], "64 x 64"),
        ("transpose_tiled[0]", "37,100,60", "float32", [-16, 17], "64 x 60"),
        ("transpose_whole_matrices[0]", "1001,33,35", "float16", [-13, 14], None),
        ("t10_padded", "40,70,64", "float32", [2], "32 x 32"),
    ],
)
def test_matrices_of_a_batch(kernel, shape, dtype, weights, tile):
    """As many of them are left out as begin at the same place of a line; a tile is one of a matrix."""
    choice = choice_named(kernel)
    problem = problem_of(choice, HOPPER, shape, dtype, None, None, None)
    found, (whole, _) = explained(kernel, shape, dtype=dtype), whole_counts(choice, problem)
    assert [weight for _, weight in found.samples] == weights
    assert (found.totals.warps, found.totals.by_class, found.totals.by_line) == (
        whole.warps, whole.by_class, whole.by_line
    )  # fmt: skip
    assert found.totals.l2_bytes == whole.l2_bytes
    assert page(found).startswith(f"{kernel.partition('[')[0]}")
    assert f"{' x '.join(shape.split(','))}, H100" in page(found)
    assert (f", {tile} elements each" in page(found)) if tile else "elements each" not in page(found)


@pytest.mark.parametrize(
    ("kernel", "shape", "tile"),
    [
        ("transpose_skinny[0]", "9003,3", (496, 3)),
        ("transpose_skinny[0]", "3,9003", (3, 496)),
    ],
)
def test_a_tile_is_no_larger_than_the_matrix(kernel, shape, tile):
    assert explained(kernel, shape).tile[:2] == tile


def test_a_tile_of_a_cluster_is_not_said_to_be_a_ctas():
    """h06 has clusters of two CTAs, each with 128 x 256 elements."""
    text = page(explained("h06_cluster_multicast", "2304,2304,256"))
    assert "256 x 256 elements per cluster of 2 at a time" in " ".join(text.split())


def test_a_grid_that_does_not_tell_the_tile():
    """Such a kernel is run as a whole, and refused where that takes too long."""
    spec = choice_named("g04_register_tile").spec

    def launch(problem, config):
        return dataclasses.replace(spec.launch(problem, config), grid=(1, 1, 1))

    choice = dataclasses.replace(choice_named("g04_register_tile"), spec=dataclasses.replace(spec, launch=launch))
    problem = problem_of(choice, HOPPER, "4096,4096,4096", None, None, None, None)
    with pytest.raises(UnsupportedError, match="does not give the tile of a CTA"):
        explain(problem, choice, H100, CountedKernel)
