"""Traces: what the first CTA did, as data and as a page."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from gemmule import vgpu

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
