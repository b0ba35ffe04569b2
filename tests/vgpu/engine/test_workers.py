"""CTAs spread over processes: the same bits, the same errors."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from gemmule.vgpu import FaultError, Options, launcher, workers
from gemmule.vgpu.ptx.parser import parse
from support.ptx.snippets import at, integers, run

SQUARES = at("a", 4) + "ld.global.b32 %r1, [%address];mul.lo.u32 %r1, %r1, %r1;" + at("out", 4)


@pytest.fixture(autouse=True)
def _always_worth_it(monkeypatch):
    monkeypatch.setattr(launcher, "WORTH_SECONDS", 0)
    yield
    workers.pool.stop()


def test_several_processes_give_the_same_bits(rng, monkeypatch):
    spread = []
    really = workers.pool.run
    monkeypatch.setattr(workers.pool, "run", lambda *given: spread.append(given) or really(*given))
    source = integers(rng, np.uint32, 128 * 400)
    results = []
    for count in (1, 2, 2):
        out = np.zeros_like(source)
        body = SQUARES + "st.global.b32 [%address], %r1;"
        run(body, {"a": source, "out": out}, 128, 400, options=Options(workers=count))
        results.append(out)
    assert len(spread) == 2
    np.testing.assert_array_equal(results[0], source * source)
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_array_equal(results[2], results[0])


def test_an_error_is_the_one_that_a_single_process_meets(rng):
    source = integers(rng, np.uint32, 128 * 400)
    messages = []
    for count in (1, 2):
        with pytest.raises(FaultError) as caught:
            run(
                SQUARES + "st.global.b32 [%address], %r1;",
                {"a": source, "out": np.zeros(128 * 300, np.uint32)},
                128,
                400,
                options=Options(workers=count),
            )
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "CTA (300, 0, 0)" in messages[0]


def test_a_worker_starts_without_a_warning():
    done = subprocess.run(
        [sys.executable, "-m", "gemmule.vgpu.worker"], input="", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_kernels_whose_ctas_meet_in_global_memory_stay_together():
    from support.ptx.snippets import kernel_text

    for body, free in (
        ("red.global.add.u32 [%p_a], 1;", False),
        ("atom.add.u32 %r1, [%p_a], 1;", False),
        ("mov.u32 %r1, buffer;red.shared.add.u32 [%r1], 1;", True),
        ("st.global.b32 [%p_a], 1;", True),
    ):
        kernel = parse(kernel_text(body, ["a"], ".shared .align 4 .b8 buffer[4];"))
        assert workers.can_be_spread(kernel) == free
