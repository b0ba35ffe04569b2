"""Products of open matrices on the tile engine, from the matrices themselves."""

from gemmule.outofcore.tiles import engine
from gemmule.outofcore.tiles.problem import StreamProblem
from gemmule.outofcore.verify import freivalds


def plan_tiles(a, b, shape, dtype, executor, *, alpha=1, beta=0, c=None, **options):
    """Plan ``alpha * a @ b + beta * c``."""
    return engine.plan_tiles(StreamProblem(a, b, c, shape, dtype, alpha, beta), executor, **options)


def multiply(a, b, sink, executor, *, memory, alpha=1, beta=0, c=None, plan=None, **options):
    """Write ``alpha * a @ b + beta * c`` into `sink`."""
    problem = StreamProblem(a, b, c, sink.shape, sink.dtype, alpha, beta)
    if plan is None:
        plan = engine.plan_tiles(
            problem, executor, memory=memory, block_shape=sink.block_shape, scratch=sink.scratch_bytes, mirrored=True
        )
    return engine.stream_tiles(problem, sink, executor, plan, **options)


def verify(a, b, result, *, alpha=1, beta=0, c=None, **options):
    """Check that `result` is ``alpha * a @ b + beta * c``."""
    return freivalds.verify(StreamProblem(a, b, c, result.shape, result.dtype, alpha, beta), result, **options)
