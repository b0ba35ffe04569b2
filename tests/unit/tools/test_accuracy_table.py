"""The table of the accuracy of guarded products."""

from pages.accuracy import accuracy_table


def test_an_input_is_a_row_with_its_worst_share_of_the_bound():
    product = {"record": "accuracy", "dtype": "float64", "input": "normal", "bound_u": 4, "ran": "ozaki-14", "k": 1}
    other = product | {"input": "Hilbert", "k": 256, "bound_u": 259, "ran": "ieee"}
    records = [
        {"record": "experiment", "gpu": "NVIDIA H200"},
        product | {"error_u": 1.0, "native_u": 2.0, "cublas_u": 2.0, "cublas_emulation_u": 8.0},
        other | {"error_u": 2.59, "native_u": 2.59, "cublas_u": 2.59},
        product | {"k": 64, "bound_u": 67, "ran": "ozaki-15", "error_u": 33.5, "native_u": 6.7, "cublas_u": 6.7},
    ]
    assert accuracy_table(records).splitlines()[2:] == [
        "| float64 | normal | 1 to 64 | ozaki-14, ozaki-15 | 0.5 | 0.5 | 0.5 | 2 |",
        "| float64 | Hilbert | 256 | ieee | 0.01 | 0.01 | 0.01 |  |",
    ]
    beside = [*records, product | {"dtype": "float32", "error_u": 1.0, "native_u": 2.0, "cublas_u": 2.0}]
    assert accuracy_table(beside, ["float64"]) == accuracy_table(records) != accuracy_table(beside)
