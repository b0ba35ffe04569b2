"""Sectors of global memory: textbook patterns, and a count with sets."""

import numpy as np
import pytest

from gemmule.vgpu.models.sectors import ideal_sectors, request_sectors, touched_sectors

LANE = np.arange(32)
ALL = np.ones((1, 32), bool)
BASE = 7 * 4096


@pytest.mark.parametrize(
    ("addresses", "size", "sectors", "ideal"),
    [
        # Coalesced: 32 bytes of data a sector.
        (LANE, 1, 1, 1),
        (2 * LANE, 2, 2, 2),
        (4 * LANE, 4, 4, 4),
        (8 * LANE, 8, 8, 8),
        (16 * LANE, 16, 16, 16),
        # The order of lanes does not matter.
        (4 * LANE[::-1], 4, 4, 4),
        (4 * (LANE ^ 13), 4, 4, 4),
        # One element behind the start of a sector: a sector more.
        (4 * LANE + 4, 4, 5, 4),
        (4 * LANE + 16, 4, 5, 4),
        (16 * LANE + 16, 16, 17, 16),
        # Strides.
        (8 * LANE, 4, 8, 4),
        (16 * LANE, 4, 16, 4),
        (32 * LANE, 4, 32, 4),
        (4096 * LANE, 4, 32, 4),
        # Lanes that share an element.
        (0 * LANE, 4, 1, 1),
        (4 * (LANE // 8), 4, 1, 1),
        (1024 * (LANE // 8), 4, 4, 1),
        # Two rows of 16 floats each, as in a 16 x 16 tile.
        (4 * (LANE % 16) + 4000 * (LANE // 16), 4, 4, 4),
        (4 * (LANE % 16) + 4004 * (LANE // 16), 4, 5, 4),
    ],
)
def test_patterns(addresses, size, sectors, ideal):
    addresses = (BASE + addresses)[None].astype(np.int64)
    assert request_sectors(addresses, ALL, size).tolist() == [sectors]
    assert ideal_sectors(addresses, ALL, size).tolist() == [ideal]


def test_inactive_lanes_do_not_count():
    addresses = np.stack([BASE + 32 * LANE, BASE + 4 * LANE, BASE - 4 * LANE, BASE + 4 * LANE]).astype(np.int64)
    active = np.stack([LANE % 2 == 0, LANE < 9, LANE == 31, LANE < 0])
    addresses[~active] = -(10**15)
    assert request_sectors(addresses, active, 4).tolist() == [16, 2, 1, 0]
    assert ideal_sectors(addresses, active, 4).tolist() == [2, 2, 1, 0]


def test_wider_accesses_may_straddle():
    """12 bytes a lane, in a row: 384 bytes are 12 sectors, each of the lanes at a border touching two."""
    addresses = (BASE + 12 * LANE)[None].astype(np.int64)
    assert request_sectors(addresses, ALL, 12).tolist() == [12]
    assert request_sectors(addresses + 4, ALL, 12).tolist() == [13]


@pytest.mark.parametrize("size", [1, 2, 4, 8, 12, 16])
def test_against_sets(rng, size):
    addresses = rng.integers(0, 400, (500, 32)) * rng.choice([1, 3, 64], (500, 1)) * size
    active = rng.random((500, 32)) < rng.choice([0, 0.1, 0.9, 1], (500, 1))
    sets = [
        {byte // 32 for lane in np.flatnonzero(on) for byte in range(row[lane], row[lane] + size)}
        for row, on in zip(addresses.tolist(), active, strict=True)
    ]
    assert request_sectors(addresses, active, size).tolist() == [len(touched) for touched in sets]
    requests, sectors = touched_sectors(addresses, active, size)
    expected = [(request, sector) for request, touched in enumerate(sets) for sector in sorted(touched)]
    assert list(zip(requests.tolist(), sectors.tolist(), strict=True)) == expected
    elements = [len(set(row[on].tolist())) for row, on in zip(addresses, active, strict=True)]
    assert ideal_sectors(addresses, active, size).tolist() == [-(-count * size // 32) for count in elements]


def test_no_requests():
    none, off = np.empty((0, 32), np.int64), np.empty((0, 32), bool)
    assert request_sectors(none, off, 4).shape == ideal_sectors(none, off, 4).shape == (0,)
    assert [part.shape for part in touched_sectors(none, off, 4)] == [(0,), (0,)]
