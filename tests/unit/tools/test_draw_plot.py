"""The picture of draws shows each product that was compared, of each GPU its last run of a type."""

from gemmule.lab.drawing.canvas import figure_on
from gemmule.lab.drawing.theme import LIGHT
from pages.draw_plot import DrawnType, draw_plot


def product(m, ours, first=None, dtype="bfloat16", **other):
    record = {"record": "gemm", "chosen_by": "dispatch", "m": m, "n": m, "k": m, "dtype": dtype, "out_dtype": dtype}
    return record | {"precision": "ieee", "median_us": ours} | ({"yardstick_first_us": first} if first else {}) | other


def run(gpu, *products):
    return [{"record": "experiment", "gpu": gpu}, *products]


def test_products_are_dots():
    records = [
        *run("NVIDIA H100 80GB HBM3", product(64, 10, 12), product(63, 10, 8), product(128, 10)),
        *run("NVIDIA H200", product(64, 10, 9, precision="tf32", dtype="float32")),
    ]
    plot = draw_plot(records)
    assert [gpu for gpu, _ in plot.gpus] == ["H100", "H200"]
    assert plot.gpus[0][1] == (DrawnType("bfloat16", (1.2,), (0.8,)), DrawnType("float32, tf32", (), ()))
    assert plot.gpus[1][1][1].aligned == (0.9,)


def test_last_run_of_a_type_counts():
    records = [
        *run("NVIDIA H200", product(64, 10, 12)),
        *run("NVIDIA H200", product(128, 10, 15), product(256, 10, 20)),
    ]
    assert draw_plot(records).gpus == (("H200", (DrawnType("bfloat16", (1.5, 2.0), ()),)),)


def test_other_choices_are_no_dots():
    assert draw_plot(run("NVIDIA H200", product(64, 10, 12, chosen_by="rung"))).gpus == ()


def test_dots_beyond_the_axis_are_drawn_at_its_end():
    plot = draw_plot(run("NVIDIA H200", product(64, 10, 1000), product(128, 1000, 10), product(192, 10, 10)))
    with figure_on(plot.page(LIGHT)) as figure:
        plot.draw(figure, plot.page(LIGHT))
        (axes,) = figure.axes
        dots = next(line for line in axes.lines if line.get_marker() == "o")
        low, high = axes.get_xlim()
        assert all(low <= x <= high for x in dots.get_xdata())
        assert len(dots.get_xdata()) == 3
