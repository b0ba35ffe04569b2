"""Configs of tiles that warps share."""

from __future__ import annotations

from gemmule.core.config import Config


class WarpTileConfig(Config):
    """Base of configs with a tile of the result, and warps that share it, in `warps_k` groups where it has that field.

    What derives from it is a dataclass with these fields.
    """

    tile_m: int
    tile_n: int
    warps_m: int
    warps_n: int

    @property
    def tile_elements(self) -> int:
        return self.tile_m * self.tile_n

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        groups: int = vars(self).get("warps_k", 1)
        return 32 * self.warps_m * self.warps_n * groups
