"""Traces: what the first CTA did, as data and as a page."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from gemmule import vgpu
from gemmule.core.errors import ArgumentError, MissingFileError

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")


@pytest.fixture(scope="module")
def functions():
    from support.vgpu import cute_functions

    return cute_functions


def traced(path, function, *arrays):
    vgpu.run(function, *arrays, trace=path, schedules=2)
    (launch,) = json.loads(path.read_text())
    return launch


def test_steps_of_a_product_through_shared_memory(tmp_path, rng, functions):
    a, b, c = rng.random((40, 20), np.float32), rng.random((24, 20), np.float32), np.zeros((40, 24), np.float32)
    launch = traced(tmp_path / "trace.json", functions.Sgemm(), a, b, c)
    assert (launch["kernel"], launch["cta"], launch["warps"]) == ("Sgemm.kernel", [0, 0, 0], 8)
    steps = launch["steps"]
    loads = [step for step in steps if step["kind"] == "global" and not step["write"]]
    seen = {
        (step["operand"], row, column)
        for step in loads
        for row, column in zip(step["row"], step["column"], strict=True)
    }
    # The first CTA's tiles of A and B, all of K.
    assert seen == {(operand, row, column) for operand in (0, 1) for row in range(16) for column in range(20)}
    written = {
        place for step in steps if step.get("operand") == 2 for place in zip(step["row"], step["column"], strict=True)
    }
    assert written == {(row, column) for row in range(16) for column in range(16)}
    shared = [step for step in steps if step["kind"] == "shared"]
    assert shared
    assert all(step["wavefronts"] == [1, 1] for step in shared if not step["write"])
    assert sum(step["kind"] == "barrier" for step in steps) == 8 * 4
    assert any("sync_threads" in text for _, text, _ in launch["code"])


def test_a_tma_load_fills_shared_memory_and_completes_a_phase(tmp_path, rng, functions):
    x, y = rng.random((64, 64), np.float32), np.zeros((64, 64), np.float32)
    steps = traced(tmp_path / "trace.json", functions.TmaCopy(), x, y)["steps"]
    box = next(step for step in steps if step["kind"] == "box")
    assert (box["operand"], sorted(set(box["row"])), box["size"], box["write"]) == (0, list(range(32)), 256, False)
    load = next(step for step in steps if step["kind"] == "tma load")
    assert len(load["rows"]) == 32 * 64 * 4 // 16
    order = [step["kind"] for step in steps if step.get("barrier") == load["barrier"]]
    assert [kind for kind in order if kind in ("init", "tma load", "phase")] == ["init", "tma load", "phase"]
    assert order.index("phase") < order.index("wait")


def test_the_page_holds_its_data_and_loads_nothing(tmp_path, functions):
    x, y = np.zeros((32, 64), np.float32), np.zeros((32, 64), np.float32)
    page = tmp_path / "trace.html"
    with pytest.raises(vgpu.CheckError):
        vgpu.run(functions.TmaCopy(waits=False), x, y, trace=page)
    text = page.read_text()
    assert not re.search(r"https?://|<link|src=", text)
    data = text.split("const launches = ", 1)[1].split(";\nconst $", 1)[0]
    assert json.loads(data.replace("<\\/", "</"))[0]["steps"]


def test_a_race_has_the_steps_of_its_two_accesses(tmp_path, functions):
    path = tmp_path / "trace.json"
    arrays = [np.ones((16, 16), np.float32) for _ in range(3)]
    with pytest.raises(vgpu.CheckError):
        vgpu.run(functions.Sgemm(barriers=False), *arrays, trace=path)
    (launch,) = json.loads(path.read_text())
    race = launch["races"][0]
    first, second = (launch["steps"][race[which]] for which in ("first", "second"))
    assert race["first"] < race["second"]
    assert (race["space"], first["kind"], second["kind"]) == ("shared", "shared", "shared")
    assert first["write"]
    assert not second["write"]
    # Both access the place of the race, in the lines that write and read the tiles.
    assert race["address"] in first["address"]
    assert race["address"] in second["address"]
    assert "sA[row, column]" in launch["code"][first["code"]][1]
    assert "total +=" in launch["code"][second["code"]][1]


def test_a_race_with_tma_and_one_in_global_memory_have_their_steps(tmp_path, functions):
    path = tmp_path / "trace.json"
    x = np.zeros((32, 64), np.float32)
    with pytest.raises(vgpu.CheckError):
        vgpu.run(functions.TmaCopy(waits=False), x, np.zeros_like(x), trace=path)
    (launch,) = json.loads(path.read_text())
    (race,) = launch["races"]
    assert [launch["steps"][race[which]]["kind"] for which in ("first", "second")] == ["tma load", "shared"]
    with pytest.raises(vgpu.CheckError):
        vgpu.run(functions.shifted, np.zeros(256, np.float32), trace=path)
    (launch,) = json.loads(path.read_text())
    (race,) = launch["races"]
    # Warp 0 writes the element that warp 1 has read.
    assert (race["operand"], race["row"], race["column"]) == (0, 0, 32)
    assert [launch["steps"][race[which]]["warp"] for which in ("first", "second")] == [1, 0]


def test_a_path_that_takes_no_file_is_refused_before_anything_runs(tmp_path, functions):
    x = np.zeros(256, np.float32)
    missing, text = tmp_path / "none" / "t.html", tmp_path / "t.txt"
    refused = {missing: MissingFileError, tmp_path: ArgumentError, text: ArgumentError}
    for path, error in refused.items():
        with pytest.raises(error, match=re.escape(str(path))) as caught:
            vgpu.run(functions.axpy, x, x, 1.0, None, trace=path)
        assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
