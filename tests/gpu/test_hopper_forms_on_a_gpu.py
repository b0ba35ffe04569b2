"""Forms of Hopper's instructions on this GPU and on the virtual one: equal memory, for some of each group."""

from __future__ import annotations

import json
import subprocess
import sys

import hopper_forms
import numpy as np
import pytest
from hopper_forms import Launched, all_forms, compared

from gemmule.runtime.device import get_device

FORMS = all_forms()
GROUPS = list(dict.fromkeys(form.group for form in FORMS))
REFUSED = "refused"
#: Forms of each group; benchmarks/records/hopper_forms.py runs them all.
SOME = 4


@pytest.fixture(autouse=True)
def _hopper(_gpu):
    if str(get_device().arch) != "sm_90a":
        pytest.skip(f"the forms are instructions of sm_90a; this GPU is {get_device().arch}")


@pytest.mark.parametrize("group", [group for group in GROUPS if group != REFUSED])
def test_memory_is_the_same(group, rng):
    # The hardware stores no box that begins before the first element of a row.
    own = [form for form in FORMS if form.group == group and (group != "store" or "before" not in form.name)]
    for number in rng.permutation(len(own))[:SOME]:
        launched = Launched(own[number])
        with np.errstate(all="ignore"):
            found = compared(launched.first, launched.on_virtual(), launched.on_hardware())
        assert found["equal"] == found["elements"] > 0, (own[number].name, found)


def test_what_the_virtual_gpu_refuses_breaks_the_hardware():
    """In a process of its own, whose context is lost."""
    numbers = [number for number, form in enumerate(FORMS) if form.group == REFUSED]
    for number in numbers:
        command = [sys.executable, hopper_forms.__file__, "--work", str(number)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        record = json.loads(done.stdout.splitlines()[-1])
        assert "boxes begin at multiples of 16 bytes" in record["virtual_error"]
        assert record["hardware_error"] == "CUDA_ERROR_ILLEGAL_INSTRUCTION"
