"""What the tests of the virtual GPU share."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _special_numbers_are_wanted():
    with np.errstate(all="ignore"):
        yield
