"""The instruction set: files that define instructions, each with the units of the running batch that these share."""

from . import (
    atomics,
    bits,
    blackwell,
    compare,
    control,
    convert,
    floating,
    integer,
    loads,
    matrix,
    mbarrier,
    move,
    printing,
    signs,
    tensormap,
    warp,
)
from .async_copy import Copies
from .barrier import Barriers
from .bulk_copy import BulkCopies
from .cluster_barrier import ClusterBarriers
from .mbarrier_phases import MBarriers
from .warp_barrier import WarpBarriers
from .wgmma import Warpgroups

__all__ = [
    "UNITS",
    "atomics", "bits", "blackwell", "compare", "control", "convert", "floating", "integer", "loads", "matrix",
    "mbarrier", "move", "printing", "signs", "tensormap", "warp",
]  # fmt: skip

#: Units of a machine, in the order in which their operations complete.
UNITS = (Barriers, WarpBarriers, ClusterBarriers, MBarriers, BulkCopies, Copies, Warpgroups)
