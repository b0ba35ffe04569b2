"""Observers: methods of a subclass are those that a run calls."""

from __future__ import annotations

import pytest

from gemmule import vgpu
from gemmule.vgpu.engine.observer import _FORMER


@pytest.mark.parametrize("name", _FORMER)
def test_a_method_by_its_former_name_which_nothing_calls_is_refused(name):
    assert callable(getattr(vgpu.Observer, _FORMER[name]))
    with pytest.raises(TypeError, match=rf"^Mine\.{name} is now {_FORMER[name]}; rename the method$"):
        type("Mine", (vgpu.Observer,), {name: lambda self, *given: None})
