"""Tables of grouped products and of transposes of extreme shapes, of several GPUs' records."""

from pages.grouped import grouped_table
from pages.transpose_shapes import transpose_layouts_table, transpose_shapes_table


def test_grouped_products_stand_under_their_gpu():
    product = {"record": "grouped", "kind": "grad_weight", "even": False, "groups": 8, "rows": 4096, "n": 64, "k": 32}
    product["dtype"] = "bfloat16"
    records = [
        {"record": "experiment", "gpu": "NVIDIA H100 80GB HBM3"},
        product | {"us": 10.4, "tflops": 99.6, "ratio": 1.234},
        {"record": "experiment", "gpu": "NVIDIA H200"},
        product | {"us": 9.0, "tflops": 110.0, "ratio": 1.0, "even": True},
        product | {"us": 90.0, "tflops": 11.0, "ratio": 1.1, "dtype": "float32"},
        product | {"kind": "rows", "rows": 2, "us": 7.0, "tflops": 1.0, "ratio": 2.0},
    ]
    assert grouped_table(records).splitlines()[2:] == [
        "| H100 | gradient of the weights | 8 random | 4096 x 64 x 32 | 10 | 100 | 1.23 |",
        "| H200 | gradient of the weights | 8 even | 4096 x 64 x 32 | 9 | 110 | 1.00 |",
        "| H200 | gradient of the weights, float32, of `torch.mm` | 8 random | 4096 x 64 x 32 | 90 | 11 | 1.10 |",
        "| H200 | rows that name matrices, of `torch._grouped_mm` | 8 | 2 x 64 x 32 | 7 | 1 | 2.00 |",
    ]


def test_a_shape_has_a_row_and_a_gpu_columns():
    first = {"record": "transpose", "chosen_by": "dispatch", "shape": [3, 100], "axes": [1, 0], "itemsize": 2}
    other = first | {"shape": [2, 3, 4], "axes": [1, 0, 2]}
    records = [
        {"record": "experiment", "gpu": "NVIDIA H100 80GB HBM3"},
        first | {"faster_copy_ratio": 0.9, "torch_ratio": 2.0, "cupy_ratio": 3.0},
        first | {"chosen_by": "rung", "faster_copy_ratio": 0.1, "torch_ratio": 0.1},
        {"record": "experiment", "gpu": "NVIDIA H200"},
        first | {"faster_copy_ratio": 0.8, "torch_ratio": 1.5},
        other | {"faster_copy_ratio": 0.7, "torch_ratio": 1.0},
        other | {"faster_copy_ratio": 0.6, "torch_ratio": 0.9, "offset": 1},
    ]
    assert transpose_shapes_table(records).splitlines()[2:] == [
        "| 3 x 100 | 2 | 0.90 | 2.00 | 3.00 | 0.80 | 1.50 |  |",
        "| 2 x 3 x 4, axes 1, 0, 2 | 2 |  |  |  | 0.70 | 1.00 |  |",
        "| 2 x 3 x 4, axes 1, 0, 2, from element 1 | 2 |  |  |  | 0.60 | 0.90 |  |",
    ]


def test_drawn_layouts_have_a_row_for_each_name():
    drawn = {
        "record": "transpose",
        "chosen_by": "dispatch",
        "axes": [1, 0],
        "itemsize": 2,
        "seed": 9,
        "cupy_ratio": 3.0,
    }
    first, second = drawn | {"shape": [3, 100], "name": "matrix"}, drawn | {"shape": [4, 100], "name": "matrix"}
    other, known = drawn | {"shape": [5, 100]}, drawn | {"shape": [5, 100], "seed": 1}

    def timed(one, us, share):
        return one | {"median_us": us, "faster_copy_ratio": share, "torch_ratio": 20 / us}

    records = [
        {"record": "experiment"},
        *(timed(one, 8.0, 0.5) for one in (first, second, other, known)),
        {"record": "experiment"},
        *(timed(one, us, 4 / us) for one, us in ((first, 5.0), (second, 8.0), (other, 4.0), (known, 100.0))),
    ]
    assert transpose_layouts_table(records).splitlines()[2:] == [
        "| matrix | 2 | 0.50 (0.50) | 0.65 (0.50) | 1.30 | 2.50 | 3.00 |",
        "| random axes | 1 | 0.50 (0.50) | 1.00 (1.00) | 2.00 | 5.00 | 3.00 |",
        "| all | 3 | 0.50 (0.50) | 0.80 (0.50) | 1.60 | 2.50 | 3.00 |",
    ]
    assert transpose_layouts_table(records[5:]).splitlines()[-1] == "| all | 3 | 0.80 (0.50) | 2.50 | 3.00 |"
