"""What a streamed product says of itself when it is printed."""

from __future__ import annotations

import re

import numpy as np
import pytest

import gemmule as gm


@pytest.mark.parametrize("device", [{}, {"device_memory": "200KB"}], ids=["host", "device"])
def test_a_report_is_short_and_says_what_was_done(rng, device):
    a, b = rng.standard_normal((120, 90), dtype="f4"), rng.standard_normal((90, 70), dtype="f4")
    out = np.full((120, 70), np.nan, "f4")
    report = gm.outofcore.matmul(a, b, out, executor="cpu", **device)
    first, *more = str(report).splitlines()
    assert re.match(
        r"120 x 70 x 90 on .+: \d+\.\d\d s, [\d.]+ [MG]FLOP/s; (\d+) of \1 tiles computed; \S+ GB read and "
        r"3\.36e-05 GB written$",
        first,
    )
    assert len(more) == len(device)
    if device:
        assert report.summary == more[0]
        assert f"by {report.strategy}: " in more[0]
    np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-4)
