"""Global memory: the empty zones around arrays."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.vgpu import FaultError
from support.ptx.snippets import at, run


@pytest.mark.parametrize("distance", [1 << 10, (1 << 20) - 1280])
def test_an_access_far_behind_an_operand_is_in_none(distance):
    arrays = {"a": np.zeros(64, np.uint32), "b": np.zeros(64, np.uint32)}
    body = at("a", 1, str(256 + distance)) + "ld.global.b32 %r1, [%address];"
    with pytest.raises(FaultError, match=r"^out of bounds in .*operand [ab]"):
        run(body, arrays, 1)
