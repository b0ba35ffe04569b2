"""Tables of what transposes ask of caches and memory, beside the hardware's counters."""

from __future__ import annotations

from pages.transpose_counters import counters_table, throughput_table

LOADS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
STORES = "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"


def count(counter, hardware, virtual=None, kernel="t10_padded", **more):
    record = {"record": "counts", "kernel": kernel, "config": {"block_x": 32}, "dtype": "uint32", "shape": [64, 96]}
    record |= {"counter": counter, "hardware": hardware} | more
    return record if virtual is None else record | {"virtual": virtual}


def row_of(table):
    header, rows = table
    assert len(rows) == 1
    return dict(zip(header, rows[0], strict=True))


def test_equal_counts_stand_once_and_others_beside_each_other():
    records = [count(LOADS, 768, 768), count(STORES, 800, 768), count("dram__bytes_read.sum", 24576)]
    row = row_of(counters_table(records))
    assert row["M x N"] == "64 x 96 of 4 bytes"
    assert row["sectors of loads"] == "768"
    assert row["sectors of stores"] == "768 / 800"
    assert row["bytes from memory"] == "24.6 K"
    assert row["of them in L1"] == ""


def test_products_are_left_out():
    assert counters_table([count(LOADS, 1, 1, shape=[64, 64, 64])])[1] == []


def test_configs_of_a_kernel_are_told_apart():
    records = [count(LOADS, 1, 1), count(LOADS, 2, 2, config={"block_x": 64})]
    assert [row[0] for row in counters_table(records)[1]] == ["t10_padded[block_x=32]", "t10_padded[block_x=64]"]


def test_bytes_of_sectors_over_the_time():
    time = {"record": "transpose", "kernel": "t10_padded", "config": {"block_x": 32}, "itemsize": 4, "m": 64, "n": 96}
    times = [time | {"median_us": 2.0, "gbps": 24.6}, time | {"m": 96, "n": 64, "median_us": 1.0, "gbps": 1.0}]
    records = [count(LOADS, 1000), count(STORES, 500), count("dram__bytes_read.sum", 4000)]
    row = row_of(throughput_table(records, times))
    assert (row["GB/s"], row["load GB/s"], row["store GB/s"], row["memory read GB/s"]) == ("25", "16", "8", "2")
    assert row["memory written GB/s"] == ""
    assert throughput_table(records, times[1:])[1] == []
