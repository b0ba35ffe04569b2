"""Times of calls in CUDA graphs, and of several graphs interleaved. Needs PyTorch and a GPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def graph_of(work: Callable[[int], Any], calls: int) -> Callable[[], float]:
    """Return what replays numbered calls on PyTorch's current stream, and gives the microseconds of one."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work(0)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for number in range(calls):
                work(number)

    def replay() -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            begin.record()
            graph.replay()
            end.record()
        stream.synchronize()
        return float(begin.elapsed_time(end)) * 1e3 / calls

    return replay


def interleaved(replays: Mapping[str, Callable[[], float]], rounds: int, warm_up: int = 0) -> dict[str, list[float]]:
    """Return samples of each replay, forwards and backwards in alternation, after rounds that are not counted."""
    samples: dict[str, list[float]] = {name: [] for name in replays}
    for turn in range(warm_up + rounds):
        for name in list(replays) if turn % 2 else reversed(list(replays)):
            time = replays[name]()
            if turn >= warm_up:
                samples[name].append(time)
    return samples


def fields(samples: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return medians and samples as fields of a record, in microseconds."""
    found: dict[str, Any] = {f"{name}_us": round(statistics.median(of), 3) for name, of in samples.items()}
    return found | {f"{name}_samples_us": [round(time, 3) for time in of] for name, of in samples.items()}
