"""Tables of scaled products and of quantisation, of several GPUs' records."""

from pages.scaled import quantized_table, scaled_table


def test_products_and_quantisation_stand_under_their_gpu():
    product = {"record": "scaled", "kind": "block", "m": 4096, "n": 64, "k": 128, "us": 10.04, "tflops": 99.6}
    records = [
        {"record": "experiment", "gpu": "NVIDIA H100 80GB HBM3"},
        product | {"ratio": 1.234},
        product | {"kind": "quantize_row", "n": 0, "us": 5.0, "tbytes": 2.7, "ratio": 0.91},
        {"record": "experiment", "gpu": "NVIDIA H200"},
        product | {"kind": "row"},
    ]
    assert scaled_table(records).splitlines()[2:] == [
        "| H100 | 1 x 128 by 128 x 128 | 4096 x 64 x 128 | 10.0 | 100 | 1.23 |",
        "| H200 | row by column | 4096 x 64 x 128 | 10.0 | 100 |  |",
    ]
    assert quantized_table(records).splitlines()[2:] == ["| H100 | row | 4096 x 128 | 5.0 | 2.70 | 0.91 |"]
