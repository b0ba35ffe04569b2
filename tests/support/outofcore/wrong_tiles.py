"""Tiles that come out wrong."""

from __future__ import annotations

from gemmule.host.tiles import HostTileSum


def spoil_tiles(monkeypatch):
    """Add to an element of every tile that the host finishes."""
    finish = HostTileSum.finish

    def wrong(self, out, *args, **kwargs):
        finish(self, out, *args, **kwargs)
        out[0, 0] += 1000

    monkeypatch.setattr(HostTileSum, "finish", wrong)
