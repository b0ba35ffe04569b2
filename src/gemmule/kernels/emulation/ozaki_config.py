"""The configs of the kernels of Ozaki scheme II, and the common layout of residues and scales in memory."""

from __future__ import annotations

from gemmule.core.config import Config
from gemmule.core.dataclass import dataclass
from gemmule.kernels.hopper.tile_config import CLUSTERS, K_BYTES, WarpScheduleConfig
from gemmule.kernels.parts.hopper_facts import SMS

#: K of a k-tile, to multiples of which lines are padded; columns within which a row's bytes have their own order.
SLICE, GROUP = K_BYTES, 64
#: Threads of a CTA of the kernels without wgmma; elements of a k-tile, or columns, that one of them converts.
THREADS, RUN = 256, 4
#: MN-major lines that a CTA converts together.
LINES = 32
#: Stride of lines in shared memory, in elements: an odd number, so that columns are in different banks.
PITCH = SLICE + 1
#: CTAs, one cluster, and threads that compare lines of A and of B, and how many of each; samples of a line that a CTA
#: has at a time, and the stride of lines in shared memory, for which columns of a product are in different banks.
PAIR_CTAS, PAIR_THREADS, PAIR_SIDE = 8, 1024, 64
PAIR_SAMPLES, PAIR_PITCH = 64, 68
#: Threads of the CTA that sets the guard's words.
WORDS_THREADS = 32
#: One of so many CTAs of K-major lines measures first. The share of the room for listed lines that theirs may take, and
#: the least room where that is a fair sample.
EARLY_PERIOD, EARLY_SHARE, FEWEST_EARLY = 8, (3, 32), 64
#: Most CTAs of residues, and of the reconstruction: where these are not needed, each costs time to return.
RESIDUES_CTAS, RECONSTRUCTION_CTAS = 32 * SMS, 8 * SMS
#: Side of a square of complex elements that a CTA copies.
SIDE = 32
#: Products of residues for a complex product (3M), and parts of an element, which are successive along K.
PLANES, PARTS = 3, 2
#: Microseconds of a launch on an H100 and an H200.
LAUNCH_US = 2.0
#: The scale of a row or column that is not emulated: one with an element that is not finite, or that the guard lists.
#: And of those that its product of magnitudes lists, larger, as that depends on which were listed before.
NOT_EMULATED, LISTED_LATE = 2**20, 2**20 + 1


@dataclass(frozen=True)
class ScalesConfig(Config):
    """Config of the measurement of lines."""

    #: ahead, deep: Elements that a thread loads at once of a K-major line, and of an MN-major one.
    ahead: int = 8
    deep: int = 12
    #: across, together: MN-major lines that a CTA measures, a power of two up to 16, and K-major ones, up to 8.
    across: int = 16
    together: int = 2
    resident: int = 5  #: CTAs that an SM has room for.


@dataclass(frozen=True)
class ResiduesConfig(Config):
    """Config of the conversion of lines."""

    runs: int = 2  #: K-tiles of K-major lines that a warp converts.


@dataclass(frozen=True)
class RealFormsConfig(Config):
    """Nothing to choose."""


@dataclass(frozen=True)
class NativeLinesConfig(Config):
    """Nothing to choose."""


@dataclass(frozen=True)
class DecisionConfig(Config):
    """Nothing to choose."""


@dataclass(frozen=True)
class ReconstructionConfig(Config):
    """Nothing to choose."""


@dataclass(frozen=True)
class ProductsConfig(WarpScheduleConfig):
    """Tile of D, stages, the cluster, and how the two consumer warpgroups share the work."""

    tile_n: int = 256
    #: cluster_m, cluster_n: CTAs of a cluster along M and N, to which TMA multicasts k-tiles.
    cluster_m: int = 2
    cluster_n: int = 1
    group: int = 8  #: Clusters' tiles that the raster goes down before it goes to the right.
    ctas: int = SMS  #: CTAs that share all tiles: the SMs of the chip.

    def _why_not_cluster(self) -> str | None:
        if self.cluster_m not in (1, 2) or self.cluster_n not in (1, 2):
            return "clusters have 1 or 2 CTAs along M and N"
        return None

    @property
    def cluster_size(self) -> int:
        return self.cluster_m * self.cluster_n

    @property
    def max_active_clusters(self) -> int:
        """Clusters that run at the same time."""
        return min(max(self.ctas // self.cluster_size, 1), CLUSTERS[self.cluster_size])
