"""What a search tries: presets, candidates and their pruning, and the journal."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest

from gemmule.core.arch import Arch
from gemmule.core.dtype import Precision
from gemmule.core.errors import ArgumentError, ForbiddenFileError
from gemmule.core.gpu_rates import H200_RATES
from gemmule.dispatch.problem_key import key_of
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose
from gemmule.lab.products import gemm_problem, output_type
from gemmule.lab.tuning.cells import LLM_ROWS, LLM_WEIGHTS, preset
from gemmule.lab.tuning.journal import TuningJournal
from gemmule.lab.tuning.search import candidates

HOPPER = Arch.parse("sm_90a")
SPEC = next(spec for spec in REGISTRY if spec.name == "hopper_gemm")


def test_the_cells_are_squares_a_sweep_and_language_models():
    cells = preset("cells")
    assert len(cells) == len(set(cells))
    assert {(edge, edge, edge) for edge in (512, 1024, 2048, 4096, 8192, 16384)} <= set(cells)
    assert {(edge, edge, 1024) for edge in (128, 1536, 16384)} <= set(cells)
    assert {(m, n, k) for m in LLM_ROWS for n, k in LLM_WEIGHTS} <= set(cells)
    assert all(extent % 8 == 0 for _, n, k in cells for extent in (n, k))
    assert [math.prod(cell) for cell in cells] == sorted(math.prod(cell) for cell in cells)
    assert {(2047, 2047, 2047), (4096, 4095, 4096)} <= set(preset("odd"))


def test_random_cells_are_told_by_their_seed():
    assert preset("random:40:1") == preset("random:40:1") != preset("random:40:2")
    assert len(set(preset("random:40:1"))) == 40
    assert all(extent % 8 == 0 and 16 <= extent <= 16384 for cell in preset("random:200:3") for extent in cell)
    # All sizes come, not only large ones.
    assert {round(math.log2(extent)) for cell in preset("random:200:3") for extent in cell} == set(range(4, 15))
    for word in ("random:0:1", "random:4", "random:x:1", "random:4:-1", "random:20000:1"):
        with pytest.raises(ArgumentError, match="random:40:1"):
            preset(word)
    with pytest.raises(ArgumentError, match="preset 'cell'"):
        preset("cell")


def configs(problem, **options):
    found = candidates(problem, HOPPER, REGISTRY, H200_RATES, **options)
    return [choice.config for choice in found if choice.spec is SPEC]


@pytest.mark.parametrize("layout", ["nn", "tn"])
@pytest.mark.parametrize("size", [(512, 576, 7168), (128, 28672, 4096), (1, 4096, 64), (8192, 8192, 8192)], ids=str)
def test_candidates_take_the_product_and_are_not_predicted_to_be_slow(size, layout):
    problem = gemm_problem(*size, "bfloat16", "bfloat16", layout)
    found = candidates(problem, HOPPER, REGISTRY, H200_RATES, factor=1.5, most=6)
    assert {choice.spec.name for choice in found} == {SPEC.name}
    assert len({choice.config for choice in found}) == len(found) <= 12
    assert all(choice.spec.why_not(problem, HOPPER, choice.config) is None for choice in found)
    able = [config for config in SPEC.configs if SPEC.why_not(problem, HOPPER, config) is None]
    least = min(SPEC.cost(problem, config, H200_RATES) for config in able)
    # What a call would take is among them.
    assert any(SPEC.cost(problem, choice.config, H200_RATES) == least for choice in found)
    registered = [choice.config for choice in found if choice.config in SPEC.configs]
    assert all(SPEC.cost(problem, config, H200_RATES) <= 1.5 * least for config in registered)
    shapes = [(c.config.tile_m, c.config.tile_n, c.config.cluster_k) for c in found]
    assert max(map(shapes.count, shapes)) <= 2


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8"])
def test_a_call_takes_the_cheapest_config_that_can(dtype, layout):
    taken = 0
    for size in preset("random:12:5"):
        problem = gemm_problem(*size, dtype, output_type(dtype, None), layout)
        if dtype == "float32":
            problem = dataclasses.replace(problem, precision=Precision.TF32)
        able = [config for config in SPEC.configs if SPEC.why_not(problem, HOPPER, config) is None]
        found = choose(problem, HOPPER, multiprocessors=132)
        if able and dtype == "bfloat16" and found.spec.name == "mma_sync_small":
            # Small products: one launch that waits less.
            assert problem.m * problem.n * problem.k < 2**24
        elif able and found.spec is not SPEC:
            # Of TF32 operands that are not both K-major, others may be predicted to be faster.
            assert (dtype, layout != "nt") == ("float32", True)
            assert found.spec.name in ("hopper_gemm_k_major", "mma_sync_gemm", "mma_sync_small")
        elif able:
            taken += 1
            # Of many, times of those that do not lead by the limits are bounds.
            costs = dict(zip(able, SPEC.costs(problem, able, H200_RATES), strict=True))
            assert found.config == min(able, key=costs.__getitem__)
            # One config and many are not summed in one order.
            assert found.predicted_us == pytest.approx(SPEC.cost(problem, found.config, H200_RATES), rel=1e-5)
            assert found.chosen_by == "cost"
        else:
            assert found.spec is not SPEC
            # What stands before it in the registry may take the product.
            refused = dict(found.refused).get(SPEC.name)
            assert refused in (None, SPEC.why_not(problem, HOPPER, SPEC.default))
    # 8-bit operands are taken along K only, in rows of whole 16 bytes, and one of 32 bits must lie along K.
    assert (taken > 0) == (dtype == "bfloat16" or layout == "nt" or (dtype == "float32" and layout != "tn"))


def test_options_narrow_what_is_tried():
    problem = gemm_problem(512, 576, 7168, "bfloat16", "bfloat16", "nn")
    every = configs(problem, most=6)
    assert set(configs(problem, most=6, extra_configs=False)) <= set(SPEC.configs)
    assert any(config not in SPEC.configs for config in every)
    assert len(configs(problem, most=6, factor=1.0)) < len(every)
    assert len(configs(problem, most=2)) <= 4
    named = candidates(problem, HOPPER, REGISTRY, H200_RATES, kernels=("mma_sync_gemm",))
    assert {choice.spec.name for choice in named} == {"mma_sync_gemm"}


def test_a_kernel_that_packs_is_tried_beside_one_that_does_not():
    problem = gemm_problem(127, 127, 127, "bfloat16", "bfloat16", "nn")
    names = {choice.spec.name for choice in candidates(problem, HOPPER, REGISTRY, H200_RATES)}
    assert names == {"hopper_gemm_repacked", "hopper_gemm_small_repacked", "mma_sync_gemm"}


def test_further_configs_fit_and_are_not_registered():
    extra_configs = SPEC.extra_configs()
    assert not set(extra_configs) & set(SPEC.configs)
    assert len(set(extra_configs)) == len(extra_configs)
    # Each has as many stages as there is memory for.
    for config in extra_configs:
        if config.stages < 16:
            with pytest.raises(ArgumentError, match="shared memory"):
                dataclasses.replace(config, stages=config.stages + 1)


def test_a_journal_is_of_one_search(tmp_path):
    keys = [key_of(gemm_problem(m, 8, 8, "bfloat16", "bfloat16", "nn")) for m in (8, 16, 24)]
    journal = TuningJournal(tmp_path / "tuned.json", {"keep": 3})
    assert journal.finished() == set()
    journal.add(keys[:1])
    journal.add(keys[1:2])
    assert TuningJournal(tmp_path / "tuned.json", {"keep": 3}).finished() == set(keys[:2])
    assert TuningJournal(tmp_path / "tuned.json", {"keep": 2}).finished() == set()
    whole = journal.path.read_bytes()
    # Cut off anywhere, it knows the lines that are whole; what is added later is not lost behind a torn one.
    for end in range(len(whole)):
        journal.path.write_bytes(whole[:end])
        assert journal.finished() <= set(keys[:2])
        journal.add(keys[2:])
        assert keys[2] in journal.finished()
    journal.remove()
    assert journal.finished() == set()


@pytest.mark.parametrize("kind", ["symlink_to", "hardlink_to"])
def test_a_journal_that_is_a_link_is_refused_and_what_it_leads_to_stays(tmp_path, kind):
    precious = tmp_path / "precious"
    precious.write_bytes(b"somebody else's")
    journal = TuningJournal(tmp_path / "tuned.json", {"keep": 3})
    getattr(journal.path, kind)(precious)
    for call in (journal.finished, lambda: journal.add([])):
        with pytest.raises(ForbiddenFileError, match=rf"{re.escape(str(journal.path))}: is a .*; remove it, or choose"):
            call()
    assert precious.read_bytes() == b"somebody else's"
