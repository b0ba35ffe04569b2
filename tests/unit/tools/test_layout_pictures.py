"""Pictures of layouts are what the kernels' code says."""

from __future__ import annotations

import numpy as np
import pytest

from pages import layouts
from pages.layout_pictures import _PICTURES, layout_picture


@pytest.mark.parametrize("name", _PICTURES)
def test_each_is_drawn_of_cells(name):
    picture = layout_picture(name)
    assert picture == layout_picture(name)
    for panel in picture.panels:
        assert len({len(row) for row in panel.colours}) == 1
        assert any(cell >= 0 for row in panel.colours for cell in row)


def test_each_thread_has_64_accumulators():
    for panel in layout_picture("thread_tiles").panels:
        assert np.bincount(np.array(panel.colours).ravel() + 1)[1:].tolist() == [64] * 4


def test_wavefronts_before_and_after():
    titles = [panel.title for name in ("bank_conflicts", "tile_banks") for panel in layout_picture(name).panels]
    assert [int(title.split(": ")[-1].split()[0]) for title in titles] == [8, 4, 32, 1, 4]


def test_ctas_in_groups_read_fewer_panels():
    assert [panel.title for panel in layout_picture("raster").panels] == [
        "group=1: 2 of A + 16 of B", "group=8: 8 of A + 4 of B",
    ]  # fmt: skip


def test_a_layout_follows_the_source():
    assert layouts.strides("t09_shared_tile", side=32) == (1, 32)
    assert layouts.strides("t10_padded", side=32) == (1, 33)


def test_an_unknown_picture_is_named():
    with pytest.raises(KeyError, match="none_such"):
        layout_picture("none_such")
