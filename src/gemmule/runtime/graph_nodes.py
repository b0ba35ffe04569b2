"""Kernels of CUDA graphs, by name: of a graph, and of one that a stream is being captured into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .driver import call, driver


def kernel_name(node: Any) -> str | None:
    """Return the name of a node's kernel, as the driver knows it; None for another kind of node."""
    if call("cuGraphNodeGetType", node) != driver().CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
        return None
    params = call("cuGraphKernelNodeGetParams", node)
    if int(params.func):
        return str(call("cuFuncGetName", params.func).decode())
    return str(call("cuKernelGetName", params.kern).decode())


def was_captured_last(queue: Callable[..., None], stream: int) -> bool:
    """Return whether the next launch into a stream that is being captured follows a kernel of a product.

    Parameters
    ----------
    queue : callable
        Queues the product; of one that is several launches it is not known.
    stream : int
        The driver's handle of the stream.
    """
    direct = getattr(queue, "direct", None)
    if direct is None:
        return False
    _, _, _, nodes, _, count = call("cuStreamGetCaptureInfo", stream)
    return bool(count == 1 and kernel_name(nodes[0]) == call("cuFuncGetName", direct.function).decode())
