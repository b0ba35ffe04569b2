"""Tables of forms that ran on a GPU and on the virtual one."""

from __future__ import annotations

from pages.faithfulness import counters_table
from pages.hopper_forms import forms_table


def cells(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_forms_by_group():
    form = {"record": "form", "group": "load", "sha256": "0"}
    table = forms_table([
        {"record": "experiment"},
        form | {"elements": 100, "equal": 100},
        form | {"elements": 1000, "equal": 990},
        {"record": "form", "group": "refused", "virtual_error": "no", "hardware_error": "NO"},
        {"record": "form", "group": "refused", "hardware_error": "NO"},
    ])  # fmt: skip
    assert cells(table) == [["load", "2", "1", "", "1,100", "1,090"], ["refused", "2", "0", "1", "0", "0"]]


def test_counters_that_the_virtual_gpu_has_not_are_left_out():
    count = {"record": "counts", "counter": "a.sum", "virtual": 4, "hardware": 4.0}
    table = counters_table(
        [count, count | {"hardware": 6.0}, {"record": "counts", "counter": "b.sum", "hardware": 1.0}]
    )
    assert cells(table) == [["`a.sum`", "1 of 2", "1.50 to 1.50 times"]]
