"""Which tiles the pieces in a journal make up."""

from __future__ import annotations

from gemmule.outofcore.journal.finished_tiles import FinishedTiles


def test_a_tile_is_finished_when_all_its_pieces_are():
    finished = FinishedTiles([(0, 0, 8, 8), (8, 0, 3, 8), (11, 0, 5, 8), (0, 8, 4, 8), (30, 8, 2, 8)])
    assert finished(slice(0, 8), slice(0, 8))
    assert finished(slice(8, 16), slice(0, 8))
    assert finished(slice(0, 16), slice(0, 8))
    missing = [((0, 8), (8, 16)), ((8, 17), (0, 8)), ((24, 32), (8, 16)), ((8, 16), (0, 4)), ((40, 48), (0, 8))]
    assert not any(finished(slice(*rows), slice(*cols)) for rows, cols in missing)


def test_pieces_that_overlap_count_once():
    # Rows 0-2 and 2-4 of a run, then 0-4 of another whose buffers were larger: as large together as the tile.
    tile = slice(0, 8), slice(0, 1024)
    pieces = [(0, 0, 2, 1024), (2, 0, 2, 1024), (0, 0, 4, 1024)]
    assert not FinishedTiles(pieces)(*tile)
    assert not FinishedTiles([*pieces, (4, 0, 4, 512), (6, 512, 2, 512)])(*tile)
    assert FinishedTiles([*pieces, (3, 0, 5, 600), (4, 512, 4, 512)])(*tile)
