"""Every transpose on the virtual GPU, all checks on: every config and specialisation, memory of any alignment."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from gemmule.core.dtype import opaque_dtype
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import TransposeProblem, split_batch
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.kernels.transpose.skinny.config import SkinnyConfig
from gemmule.kernels.transpose.tile_config import LINE, SectorTileConfig
from gemmule.vgpu import Options
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.arrays import virtual_address
from gemmule.vgpu.counts import Counter
from gemmule.vgpu.execute import run_kernel
from gemmule.vgpu.launcher import launch
from support.stray_writes import nothing_strays
from support.transpose_rows import ITEMSIZES, SIZES, bits, check_permutation, permutation_between, random_rows, rows_of

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

TRANSPOSES = [spec for spec in REGISTRY if spec.operation == "transpose" and not spec.in_place]
IN_PLACE = [spec for spec in REGISTRY if spec.in_place]
ARCH = virtual_arch()


def matrix(array, transposed):
    address = virtual_address(array)
    *outer, row, col = (stride // array.itemsize for stride in array.strides)
    rows, cols = array.shape[-2:]
    found = StridedMatrix(
        opaque_dtype(array.itemsize), rows, cols, row, col, tuple(outer), min((address & -address) or 256, 256)
    )
    return found.transposed() if transposed else found


def transpose_of(source, target, copies=False):
    """The problem whose rows are the source's contiguous direction."""
    cols, rows = source.shape[-2:]
    return TransposeProblem(rows, cols, source.shape[:-2], matrix(source, True), matrix(target, copies))


def transposed(spec, config, source, pad=0, offset=0, **options):
    """Run a kernel into poisoned memory and hold every element against the source."""
    copies = spec.name in ("t01_copy_row", "t02_copy_col")
    shape = source.shape if copies else (*source.shape[:-2], source.shape[-1], source.shape[-2])
    target = rows_of(shape, source.itemsize, pad, offset)
    target.view(np.uint8)[...] = 0x77
    problem = transpose_of(source, target, copies)
    inner, _, _ = split_batch(problem, spec.batch_dims)
    if reason := spec.why_not(inner, ARCH, config):
        pytest.skip(reason)
    with nothing_strays(target):
        run_kernel(problem, Choice(spec, config), {"a": source, "d": target}, Options(checks=True, **options))
    np.testing.assert_array_equal(bits(target), bits(source if copies else np.swapaxes(source, -1, -2)))


def case_id(value):
    return getattr(value, "name", str(value))


@pytest.mark.parametrize("shape", [(1, 1), (1, 70), (70, 1), (33, 31), (65, 210)], ids=str)
@pytest.mark.parametrize("itemsize", SIZES)
@pytest.mark.parametrize("spec", TRANSPOSES, ids=case_id)
def test_ragged_shapes(spec, itemsize, shape, rng):
    transposed(spec, spec.default, random_rows(rng, shape, itemsize))


@pytest.mark.combinations(2)
@pytest.mark.parametrize("pad", [0, 3])
@pytest.mark.parametrize("offset", [0, 1, 5])
@pytest.mark.parametrize("itemsize", SIZES)
@pytest.mark.parametrize("spec", [spec for spec in TRANSPOSES if spec.batch_dims > 1], ids=case_id)
def test_rows_that_begin_anywhere(spec, itemsize, offset, pad, rng):
    """Tiles inside of the matrix as well as across its edge."""
    edge = 350 // itemsize
    source = random_rows(rng, (2, edge, edge + 7), itemsize, pad, offset)
    transposed(spec, spec.default, source, pad=pad + 1, offset=offset)


@pytest.mark.parametrize("itemsize", SIZES)
@pytest.mark.parametrize("spec", [spec for spec in TRANSPOSES if spec.batch_dims > 1], ids=case_id)
def test_rows_in_reverse_order(spec, itemsize, rng):
    transposed(spec, spec.default, random_rows(rng, (201, 99), itemsize, offset=1)[::-1])


@pytest.mark.combinations(2)
@pytest.mark.parametrize("pad", [0, 1, 4])
@pytest.mark.parametrize("offset", [0, 1, 2, 3])
@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize("cols", [66, 77, 123, 124, 125])
@pytest.mark.parametrize("held", [416, 450], ids=["whole", "part"])
@pytest.mark.parametrize(
    ("config", "itemsize"), [(SectorTileConfig(1, 128, 256, 0), 1), (SectorTileConfig(), 1), (SectorTileConfig(), 2)]
)
def test_rows_shorter_than_a_tile(config, itemsize, held, cols, step, offset, pad, rng):
    """Words beyond the ends of rows are those of others, but at both ends of memory."""
    source = random_rows(rng, (held // itemsize, cols), itemsize, pad, offset)[::step]
    transposed(named("transpose_whole_sectors"), config, source, offset=offset)


def configs_of(specs):
    """Every config; of each kind of launch the first is for every run, the others are for test-all."""
    for spec in specs:
        kinds = set()
        for config in spec.configs:
            kind = getattr(config, "group", 1) == 0
            marks = [pytest.mark.slow] if kind in kinds else []
            kinds.add(kind)
            yield pytest.param(spec, config, marks=marks, id=f"{spec.name}-{config}".replace(" ", ","))


def sizes_of(cases):
    """The sizes of elements for a config: one for tiles in groups of another form, three for steps of the ladder."""
    for case, itemsize in itertools.product(cases, ITEMSIZES):
        step = case.values[0].next_kernel is not None
        slow = (getattr(case.values[1], "group", 1) == 0 and itemsize != 4) or (step and itemsize in (2, 8))
        marks = [*case.marks, *([pytest.mark.slow] if slow else [])]
        yield pytest.param(*case.values, itemsize, marks=marks, id=f"{case.id}-{itemsize}")


@pytest.mark.parametrize("wide", [True, False], ids=["wide", "narrow"])
@pytest.mark.parametrize(("spec", "config", "itemsize"), list(sizes_of(configs_of(TRANSPOSES))))
def test_every_config(spec, config, itemsize, wide, rng):
    shape = (80, 144) if wide else (77, 131)
    transposed(spec, config, random_rows(rng, shape, itemsize))


ROWS = next(spec for spec in TRANSPOSES if spec.name == "transpose_rows")


def rows_copied(moved, target):
    """Copy rows by every config into poisoned memory."""
    problem = permutation_between(moved, target)
    if problem.target.col_stride != 1 or problem.source.col_stride != 1:
        pytest.skip("another axis is contiguous too")
    for config in ROWS.configs:
        if reason := config.why_not(problem):
            assert "more than a vector" in reason
            assert config.vector < 16
            continue
        check_permutation(ROWS, config, moved, target)


@pytest.mark.combinations(2)
@pytest.mark.parametrize(("pad", "offset"), [(0, 0), (0, 1), (3, 0), (8, 8)])
@pytest.mark.parametrize("gap", [0, 1])
@pytest.mark.parametrize("shape", [(3, 5, 7, 40), (2, 70, 3, 16), (300, 4, 33), (9, 3, 130), (40, 3, 32)], ids=str)
@pytest.mark.parametrize("itemsize", SIZES)
def test_permutations_that_keep_the_last_axis(itemsize, shape, gap, pad, offset, rng):
    """Units of 1 to 16 bytes: the axes but the last are reversed. Rows of the target follow one another, or do not."""
    source = random_rows(rng, shape, itemsize, pad, offset)
    order = (*reversed(range(len(shape) - 1)), len(shape) - 1)
    rows_copied(source.transpose(order), rows_of([shape[axis] for axis in order], itemsize, gap * (pad + 1), offset))


@pytest.mark.combinations(2)
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("itemsize", [1, 2, 4])
@pytest.mark.parametrize("strides", [(-400, 37), (0, 41), (3, 200), (1, 0), (-1, -50)], ids=str)
def test_rows_in_any_order(itemsize, strides, offset, rng):
    """In reverse, repeated, and overlapping, at both ends of memory."""
    shape = (7, 9, 37)
    far = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=False)]
    first = -sum(min(one, 0) for one in far)
    memory = random_rows(rng, (1, first + sum(max(one, 0) for one in far) + shape[2]), itemsize, 0, offset)[0]
    view = np.lib.stride_tricks.as_strided(memory[first:], shape, (*(one * itemsize for one in strides), itemsize))
    rows_copied(view, rows_of(shape, itemsize, 0, offset))


SKINNY = next(spec for spec in TRANSPOSES if spec.name == "transpose_skinny")


@pytest.mark.combinations(2, once=["short", "long"])
@pytest.mark.parametrize("offset", [0, 1, 7])
@pytest.mark.parametrize(("short", "long"), [(1, 2100), (2, 1403), (3, 2049), (8, 1100), (33, 777), (64, 512)])
@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("itemsize", SIZES)
def test_arrays_of_structures(itemsize, side, short, long, offset, rng):
    """Spans inside of the matrix as well as at its ends; the long rows have gaps, the structures have none."""
    shape = (2, long // itemsize + 512, short) if side == "source" else (2, short, long // itemsize + 512)
    pads = (0, 5) if side == "source" else (5, 0)
    source = random_rows(rng, shape, itemsize, pads[0], offset)
    transposed(SKINNY, SkinnyConfig(256 if short == 33 else 512), source, pad=pads[1], offset=offset)


FEW = [SkinnyConfig(512, 64), *(pytest.param(one, marks=pytest.mark.slow) for one in (SkinnyConfig(1024, 128),))]
#: Elements of a structure by the bytes of each, and whether every run has them.
COUNTS = [(1, count, count in (3, 8, 9)) for count in range(2, 17)] + [
    (2, 2, True),
    (2, 5, False),
    (2, 8, False),
]


@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize("config", FEW, ids=str)
@pytest.mark.parametrize(
    ("itemsize", "short"), [pytest.param(*one, marks=() if often else pytest.mark.slow) for *one, often in COUNTS]
)
def test_structures_of_few_small_elements(itemsize, short, config, offset, rng):
    """Rows begin at any byte of a word; the structures begin where a sector does, so that elements are woven."""
    long = 3 * config.span(itemsize) + 13
    transposed(SKINNY, config, random_rows(rng, (short, long), itemsize, 1, offset))
    transposed(SKINNY, config, random_rows(rng, (long, short), itemsize), pad=1, offset=offset)


@pytest.mark.combinations(1)
@pytest.mark.parametrize("short", [33, 35])
@pytest.mark.parametrize("itemsize", SIZES)
def test_warps_that_are_no_power_of_2_share_structures(itemsize, short, rng):
    long = 900 // itemsize + 512
    transposed(SKINNY, SkinnyConfig(256, 288), random_rows(rng, (short, long), itemsize, 3, 1))
    transposed(SKINNY, SkinnyConfig(256, 288), random_rows(rng, (long, short), itemsize, 0, 1), pad=2, offset=1)


def test_threads_move_whole_structures_at_once(rng):
    """48 elements of 1 byte fill 12 words, and their padding follows after 48."""
    transposed(SKINNY, SkinnyConfig(256, 512), random_rows(rng, (700, 48), 1))


@pytest.mark.parametrize("itemsize", [1, 2, 4])
def test_few_rows_in_reverse_order(itemsize, rng):
    source = random_rows(rng, (5, 3000), itemsize, 1, 1)[::-1]
    transposed(SKINNY, SkinnyConfig(512), source, offset=1)


@pytest.mark.parametrize("schedule", ["eager", "random"])
@pytest.mark.parametrize("spec", TRANSPOSES, ids=case_id)
def test_any_schedule(spec, schedule, rng):
    transposed(spec, spec.default, random_rows(rng, (144, 80), 4), schedule=schedule, seed=int(rng.integers(2**31)))


#: Large tiles of bytes are more than the shared memory of some chips, and a thread's part of small ones is large, which
#: takes long to compile: with more threads it is less.
BYTES_IN_PLACE = [(spec, dataclasses.replace(spec.configs[-1], threads=256), 1) for spec in IN_PLACE]


@pytest.mark.combinations(2)
@pytest.mark.parametrize(("pad", "offset"), [(0, 0), (1, 1), (0, 3)])
@pytest.mark.parametrize("edge", [1, 2, 31, 64, 100, 144, 301])
@pytest.mark.parametrize(("spec", "config", "itemsize"), [*sizes_of(configs_of(IN_PLACE)), *BYTES_IN_PLACE])
def test_in_place(spec, config, itemsize, edge, pad, offset, rng):
    array = random_rows(rng, (2, edge, edge), itemsize, pad, offset)
    before = array.copy()
    problem = TransposeProblem(edge, edge, (2,), matrix(array, True), matrix(array, False), in_place=True)
    if reason := spec.why_not(problem, ARCH, config):
        pytest.skip(reason)
    with nothing_strays(array):
        run_kernel(problem, Choice(spec, config), {"a": array, "d": array}, Options(checks=True))
    np.testing.assert_array_equal(bits(array), bits(np.swapaxes(before, -1, -2)))


@pytest.mark.combinations(2)
@pytest.mark.parametrize("pitch", [0, 1, 2])
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("itemsize", [1, 2, 4])
@pytest.mark.parametrize("spec", [spec for spec in TRANSPOSES if spec.batch_dims > 1], ids=case_id)
def test_rows_that_share_memory(spec, itemsize, offset, pitch, rng):
    """Views that repeat a row, or whose windows overlap; words at both ends belong to many rows."""
    memory = random_rows(rng, (1, 101 + 99 * pitch), itemsize, 0, offset)[0]
    transposed(spec, spec.default, np.lib.stride_tricks.as_strided(memory, (100, 101), (pitch * itemsize, itemsize)))


def counts_of(spec, config, itemsize, edge=256, pad=0):
    source, target = (rows_of((edge, edge), itemsize, pad) for _ in range(2))
    source[...] = np.zeros((), source.dtype)
    problem = transpose_of(source, target)
    assert spec.why_not(problem, ARCH, config) is None
    counter = Counter()
    from gemmule.compiler.cache import artifact_for

    artifact = artifact_for(spec, config, spec.signature(problem, config), ARCH)
    launch(artifact, spec.launch(problem, config), {"a": source, "d": target}, observers=(counter,))
    return counter.counts


def named(name):
    return next(spec for spec in REGISTRY if spec.name == name)


@pytest.mark.parametrize(
    ("itemsize", "some"),
    [
        (4, slice(1)),
        # Two rows of a tile share a line of all banks.
        (1, slice(-1, None)),
        (2, slice(-1, None)),
        *(pytest.param(size, slice(None), marks=pytest.mark.slow) for size in ITEMSIZES),
    ],
)
def test_production_touches_only_the_sectors_it_fills_and_no_bank_twice(itemsize, some):
    spec, checked = named("transpose_tiled"), 0
    for config in spec.configs[some]:
        if not config.is_wide:
            continue
        edge = max(config.tile(itemsize))
        source = rows_of((edge, edge), itemsize)
        if spec.why_not(transpose_of(source, source), ARCH, config):
            continue
        checked += 1
        counts = counts_of(spec, config, itemsize, edge)
        sectors = edge * edge * itemsize // 32
        for way in ("load", "store"):
            assert counts.total("sectors", f"{way} global") == sectors
            assert counts.total("requests", f"{way} global") == sectors // 16
        # The chunks of shorter rows are too few to keep words apart that are no part of a block in registers.
        assert counts.bank_conflicts == 0 or (itemsize == 4 and config.write_bytes < LINE)
    assert checked > 4 or some != slice(None)
    assert checked


@pytest.mark.parametrize(
    ("name", "loads", "stores", "conflicts"),
    [
        ("t03_naive_row", 4, 32, 0),
        ("t04_naive_col", 32, 4, 0),
        ("t05_unroll_row", 4, 32, 0),
        ("t06_unroll_col", 32, 4, 0),
        ("t07_diagonal_row", 4, 32, 0),
        ("t08_diagonal_col", 32, 4, 0),
        ("t09_shared_tile", 4, 4, 31),
        ("t10_padded", 4, 4, 0),
        ("t11_swizzled_vectorised", 16, 16, 0),
    ],
)
def test_the_studys_sectors_and_bank_conflicts(name, loads, stores, conflicts):
    """Sectors of a request, and what conflicts add to each read of shared memory."""
    spec = named(name)
    counts = counts_of(spec, spec.default, 4)
    for way, sectors in (("load", loads), ("store", stores)):
        assert counts.total("sectors", f"{way} global") == sectors * counts.total("requests", f"{way} global")
    reads = counts.total("requests", "load shared")
    assert counts.bank_conflicts == conflicts * reads


@pytest.mark.parametrize(
    ("itemsize", "read", "written"), [(1, 1.97, 1.24), (2, 1.47, 1.23), (4, 1.22, 1.2), (8, 1.09, 1.16)]
)
def test_what_rows_that_begin_anywhere_ask_for(itemsize, read, written):
    """As docs/notebook/transpose/transpose_tiled.md says."""
    assert_sectors("transpose_tiled", itemsize, read, written)


@pytest.mark.parametrize(
    ("itemsize", "read", "written"), [(1, 1.73, 1.31), (2, 1.64, 1.09), (4, 1.52, 1.01), (8, 1.37, 1.01)]
)
def test_whole_sectors_are_written_once(itemsize, read, written):
    """As docs/notebook/transpose/transpose_whole_sectors.md says; the surplus is at the ends of the matrix's rows."""
    assert_sectors("transpose_whole_sectors", itemsize, read, written)


@pytest.mark.parametrize(("itemsize", "read", "written"), [(1, 2.07, 2.06), (2, 2.44, 1.9)])
def test_words_as_they_lie_are_asked_for_twice(itemsize, read, written):
    """As docs/notebook/transpose/transpose_word_aligned.md says."""
    assert_sectors("transpose_word_aligned", itemsize, read, written)


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_whole_vectors_that_end_within_sectors(itemsize, rng, monkeypatch):
    """Rows of 16 bytes more than whole sectors, which transpose_whole_sectors takes of large matrices."""
    monkeypatch.setattr("gemmule.kernels.transpose.whole_sectors.spec._LARGE", {itemsize: 0})
    source = random_rows(rng, (304 // itemsize, 528 // itemsize), itemsize)
    spec = named("transpose_whole_sectors")
    assert spec.why_not(transpose_of(source, source.T.copy()), ARCH, spec.default) is None
    transposed(spec, spec.default, source)


@pytest.mark.parametrize("itemsize", [1, 2])
def test_squares_in_registers_fill_the_sectors_they_write(itemsize):
    """As docs/notebook/transpose/transpose_in_registers.md says: a request takes half of each sector that it reads."""
    spec = named("transpose_in_registers")
    counts = counts_of(spec, spec.default, itemsize, edge=32)
    wanted = 32 * 32 * itemsize // 32
    assert counts.total("sectors", "store global") == wanted
    assert counts.total("sectors", "load global") == 2 * wanted


@pytest.mark.parametrize("itemsize", [1, 2])
def test_words_of_a_batch_of_small_matrices_with_a_pitch(itemsize, rng):
    spec = named("transpose_in_registers")
    source = random_rows(rng, (3, 12, 44), itemsize, pad=4, offset=4)
    transposed(spec, spec.default, source, pad=8, offset=8)


def assert_sectors(name, itemsize, read, written):
    spec = named(name)
    counts = counts_of(spec, spec.default, itemsize, edge=512, pad=1)
    for way, expected in (("load", read), ("store", written)):
        ratio = 32 * counts.total("sectors", f"{way} global") / (512 * 512 * itemsize)
        assert ratio == pytest.approx(expected, abs=0.006)
