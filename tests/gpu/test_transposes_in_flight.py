"""Transposes whose launches begin while the one in front ends: each moves what that one wrote, and not too early."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.lab.transposes import problem_for, random_matrix, transpose_of
from gemmule.runtime.device import get_device
from gemmule.runtime.execute import prepared_launches
from gemmule.runtime.memory import DeviceBuffer
from gemmule.runtime.stopwatch import Graph, lead_in, new_stream
from gemmule.runtime.workspaces import Workspaces

#: An odd number: within its own memory, a matrix is what it was after an even number of transposes.
LINKS = 61
SIZES = [(32, 32), (64, 32), (65, 67), (192, 320), (320, 320), (383, 385), (511, 513)]
TRANSPOSES = [spec for spec in REGISTRY if spec.operation == "transpose"]


def overlapping(spec, m, n, item):
    """Yield problem and choice of two configs if their launches may begin before the one in front has ended."""
    arch = get_device().arch
    for config in dict.fromkeys((spec.configs[0], spec.configs[-1])):
        problem = problem_for(spec, config, arch, transpose_of(m, n, item))
        if not spec.why_not(problem, arch, config) and spec.launch(problem, config).overlaps:
            yield problem, Choice(spec, config)


def moved(values, m, n):
    """Return what a chain of transposes makes of a matrix: each takes what is there for m rows of n elements."""
    for _ in range(LINKS):
        values = values.reshape(m, n).T
    return values.ravel()


@pytest.mark.parametrize("captured", [False, True], ids=["queued", "captured"])
@pytest.mark.parametrize("item", [1, 2, 4, 8])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("spec", TRANSPOSES, ids=lambda spec: spec.name)
def test_transposes_of_what_the_last_one_wrote(spec, size, item, captured):
    """Two buffers in turns, each written again as soon as it has been read; or one, in place."""
    cases = list(overlapping(spec, *size, item))
    if not cases:
        pytest.skip("its launches are in order")
    m, n = size
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(new_stream(0))
        buffers = [stack.enter_context(DeviceBuffer(m * n * item, 0, stream)) for _ in range(2)]
        scratch = stack.enter_context(DeviceBuffer(256, 0, stream))
        # Keeps the GPU busy, so that the launches queue up.
        ahead = lead_in(scratch.address, 0, stream)
        stack.callback(ahead.close)
        workspaces = stack.enter_context(Workspaces(0, stream))
        for seed, (problem, choice) in enumerate(cases):
            places = [buffer.address for buffer in buffers]
            if problem.in_place:
                places = [places[0]] * 2
            links = [
                list(prepared_launches(problem, choice, dict(zip("ad", pair, strict=True)), 0, stream, workspaces))
                for pair in (places, places[::-1])
            ]

            def steps(links=links):
                for number in range(LINKS):
                    for launch in links[number % 2]:
                        launch()

            queue = Graph(steps, 0, stream) if captured else steps
            for turn in range(3):
                values = random_matrix(m, n, item, 100 * seed + turn)
                buffers[0].upload(values)
                buffers[1].upload(np.full(m * n * item, 0x55, np.uint8))
                ahead()
                queue()
                found = np.empty_like(values)
                buffers[0 if problem.in_place else LINKS % 2].download(found)
                np.testing.assert_array_equal(
                    found.ravel().view(np.uint8), np.ascontiguousarray(moved(values, m, n)).view(np.uint8), str(choice)
                )
            if captured:
                queue.close()
