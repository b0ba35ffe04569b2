"""Tables of streamed products beside cuBLASXt, and of links from NUMA nodes."""

from __future__ import annotations

from pages.stream_shapes import numa_links_table, stream_shapes_table


def cells(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def peer(block, nbytes, wall=None, pinning=False):
    found = {"block": block, "pinning": pinning, "first_s": 9.0, "device_bytes": nbytes}
    return found if wall is None else found | {"wall_s": wall}


PRODUCT = {
    "record": "stream", "operation": "added", "source": "pinned", "dtype": "float32", "m": 4, "n": 5, "k": 6,
    "budgets": {"device": "8GiB", "device_bytes": 8 << 30}, "wall_s": 2.0, "predicted_s": 1.9,
    "least_s": {"compute": 1.5, "H2D": 1.6, "D2H": 0.1},
}  # fmt: skip


def test_products_beside_their_peer():
    # What was not run again does not count, however fast its first run was.
    peers = [
        peer(8, 1 << 30, 2.7) | {"first_s": 2.5},
        peer(16, 9 << 30, 2.4),
        peer(4, 1 << 30, 2.6),
        peer(2, 1 << 30) | {"first_s": 1.0},
    ]
    other = PRODUCT | {"operation": "gram", "source": "pageable", "peers": [peer(16, 9 << 30, 1.0, pinning=True)]}
    alone = PRODUCT | {"operation": "gemm", "peers": []}
    table = stream_shapes_table([{"record": "experiment"}, PRODUCT, PRODUCT | {"peers": peers}, other, alone])
    assert "gemmule in 8GiB, s" in table
    assert cells(table) == [
        ["A B + C, 4 x 5 x 6 float32", "pinned", "2.000", "1.900", "2.400 (16, 9.0 GiB)", "1.200",
         "2.500 (8, 1.0 GiB)", "1.250", "1.600 (H2D)", "1.500", "0.800"],
        ["A^T A, 4 x 5 x 6 float32", "pageable", "2.000", "1.900", "1.000 (16, 9.0 GiB, pins itself)", "0.500", "", "",
         "1.600 (H2D)", "0.625", "0.800"],
        ["A B, 4 x 5 x 6 float32", "pinned", "2.000", "1.900", "", "", "", "", "1.600 (H2D)", "", "0.800"],
    ]  # fmt: skip


def test_links_from_every_node():
    link = {
        "record": "numa", "nodes": 2, "node": 1, "memory_node": 1, "gpu": 0, "near": [3, 4],
        "alone": {"h2d": 54.7e9, "d2h": 54.8e9}, "together": {"h2d": 50e9, "d2h": 49.1e9}, "host_copies": 11.8e9,
    }  # fmt: skip
    elsewhere = link | {"memory_node": 0, "near": []}
    assert cells(numa_links_table([link, elsewhere, PRODUCT])) == [
        ["0", "1 of 2", "yes", "54.7, 54.8", "50.0, 49.1", "11.8"],
        ["0", "1 of 2 (0)", "not told", "54.7, 54.8", "50.0, 49.1", "11.8"],
    ]
