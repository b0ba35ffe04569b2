"""The streams of a plan, and the order of their creation."""

from __future__ import annotations

from .operation import AB_IN, C_IN, C_OUT, LANES, LAST, MIRRORING
from .plan import RESIDENT, DevicePlan


def streams(plan: DevicePlan) -> dict[str, int]:
    """Return the streams that operations of a plan may run on, each with its rank.

    A process has few queues on a GPU: eight, unless ``CUDA_DEVICE_MAX_CONNECTIONS`` sets more, of which the default
    stream may take one, and streams that share one wait for each other. So none is made that a plan does not need, and
    those come first that have work all the time.

    Returns
    -------
    dict of str to int
        The rank by name: kernels of rank 1 come before what others have queued, those of rank -1 after it.
    """
    copies = (AB_IN, C_OUT, *((C_IN,) if plan.product.c is not None else ()))
    # With staircases a tile that is alone is the last one. Where all tiles stay it begins as others do.
    alone = plan.stairs and plan.tiles == 1 and plan.strategy != RESIDENT
    found = dict.fromkeys(copies, 0) | ({MIRRORING: 1} if plan.symmetric else {})
    found |= dict.fromkeys(() if alone else LANES[: plan.lanes], 0)
    return found | (dict.fromkeys(LAST, -1) if plan.stairs else {})
