"""Transposes beside the counters of an H200: what the virtual GPU counts of them, and what the hardware did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pages.counted import counted

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
#: The rungs of the study, and the production kernels since their launches overlap.
STUDY, PRODUCTION = "20261122T111749-host-902e6554e6.jsonl", "20261122T144920-host-bd73dd99d6.jsonl"


def launches_of(file):
    return counted([json.loads(line) for line in (RESULTS / file).read_text().splitlines()])


RUNGS = [launch for launch in launches_of(STUDY) if launch.key[0] < "t12"]
LAUNCHES = RUNGS + list(launches_of(PRODUCTION))
LSU = "l1tex__{}_pipe_lsu_mem_{}.sum"
#: The hardware counts these as the virtual GPU does, to the last one.
EXACT = tuple(LSU.format(what, f"global_op_{way}") for what in ("t_requests", "t_sectors") for way in ("ld", "st"))
#: Where rows begin anywhere, accesses that no thread makes are executed too, and not requested.
EXECUTED = tuple(f"smsp__inst_executed_op_{space}_{way}.sum" for space in ("global", "shared") for way in ("ld", "st"))
L1_HITS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum"


def name_of(launch):
    return f"{launch.key[0]}-{'x'.join(map(str, launch.shape))}-{launch.dtype}"


def test_every_rung_of_the_study_is_there():
    rungs = {launch.key[0][:3] for launch in LAUNCHES}
    assert rungs >= {f"t{number:02}" for number in range(1, 13)}


@pytest.mark.parametrize("launch", LAUNCHES, ids=name_of)
def test_requests_sectors_and_l1_hits_are_equal(launch):
    for counter in EXACT:
        assert launch.virtual[counter] == launch.hardware[counter], counter
    begin_anywhere = launch.key[0][:3] in ("t14", "t16", "t17")
    for counter in EXECUTED:
        assert launch.virtual[counter] == launch.hardware[counter] or begin_anywhere, counter
    # There CTAs of a multiprocessor share sectors, and the virtual GPU counts each alone.
    tolerance = 0.07 if begin_anywhere else 0
    assert launch.hardware[L1_HITS] == pytest.approx(launch.virtual[L1_HITS], rel=tolerance, abs=0)
    # A warp never has fewer than 16; another release of the compiler gave one kernel of t14 fewer than here.
    registers = "launch__registers_per_thread"
    assert max(launch.virtual[registers], 16) == launch.hardware[registers] or begin_anywhere


@pytest.mark.parametrize("launch", LAUNCHES, ids=name_of)
def test_wavefronts_of_shared_memory_but_for_requests_that_wait_for_another(launch):
    """The hardware adds those in which two requests meet, of up to a sixth of the reads."""
    for way, surplus in (("ld", 1.16), ("st", 1.07)):
        counter = f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{way}.sum"
        assert launch.virtual[counter] <= launch.hardware[counter] <= surplus * launch.virtual[counter], counter


@pytest.mark.parametrize("launch", LAUNCHES, ids=name_of)
def test_memory_is_read_once_and_what_is_not_written_stays_in_the_l2_cache(launch):
    m, n = launch.shape
    size = m * n * int(launch.dtype.removeprefix("uint")) // 8
    # Writes of single elements push lines out of the L2 cache before they are used up.
    # A launch reads some kilobytes of its own.
    most = (1.2 if launch.key[0][:3] in SCATTERED else 1.04) * size + 4096
    assert size <= launch.hardware["dram__bytes_read.sum"] <= most
    assert size - (60 << 20) <= launch.hardware["dram__bytes_write.sum"] <= size


SCATTERED = ("t02", "t03", "t05", "t07")


@pytest.mark.slow
@pytest.mark.parametrize("launch", RUNGS, ids=name_of)
def test_the_record_is_what_is_counted_today(launch):
    """Of the rungs: production kernels, and their names, have changed since their record."""
    from explained_counts import counters

    from gemmule.commands.explain import explanation

    told = ",".join(f"{field}={value}" for field, value in launch.key[1])
    shape = ",".join(map(str, launch.shape))
    explained = explanation(f"{launch.key[0]}[{told}]", shape, "h200", dtype=launch.dtype)
    assert {name: value for name, value in counters(explained).items() if name in launch.virtual} == launch.virtual
