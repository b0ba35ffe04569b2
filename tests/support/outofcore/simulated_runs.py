"""When each operation of a plan runs, as its time is predicted."""

import dataclasses

from gemmule.outofcore.device.planner.operation import Op
from gemmule.outofcore.device.planner.schedule import operations
from gemmule.outofcore.device.planner.simulation import Model


@dataclasses.dataclass(frozen=True)
class Ran:
    """When an operation ran, in seconds from the start."""

    op: Op
    start: float
    end: float


def simulate(plan, rates, done=()):
    """Return what a plan takes at those rates, and when each operation runs.

    The two streams towards the device share a link, on which copies take turns; where a disk gives and takes, all do.
    Operations of a stream follow each other; each begins when those that it waits for are over, and when it is queued.
    Streams that compute take turns at the processor. Tiles that are `done` are left out.
    """
    model, ran = Model(plan, rates), []
    for op in operations(plan, done):
        start, end = model.run(op)
        ran.append(Ran(op, start, end))
    return model.prediction(), ran
