"""Former names of kernels, config fields and signature keys, as records, tuned tables and packs of before have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Kernels by their former names.
KERNELS: Mapping[str, str] = {
    "d03_mma_f64": "float64_gemm",
    "d04_triangle_f64": "float64_syrk",
    "g08_triangle": "simt_syrk",
    "h09_production": "hopper_gemm",
    "h10_ragged_result": "hopper_gemm_unaligned",
    "h11_packed": "hopper_gemm_repacked",
    "h12_bf16x6": "bf16x6_gemm",
    "h12_six_products": "bf16x6_products",
    "h13_widened": "hopper_gemm_upcast",
    "h14_int8x15": "ozaki_gemm",
    "h14_products": "ozaki_products",
    "h14_reconstruction": "ozaki_reconstruction",
    "h14_residues": "ozaki_residues",
    "h15_symmetric": "hopper_syrk",
    "h16_mixed": "hopper_gemm_w8a16",
    "h17_along_k": "hopper_gemm_k_major",
    "t12_production": "transpose_tiled",
    "t13_in_place": "transpose_in_place",
    "t14_whole_sectors": "transpose_whole_sectors",
    "t15_register_squares": "transpose_in_registers",
    "t16_gathered_words": "transpose_gathered",
    "t17_unshifted_words": "transpose_word_aligned",
}
#: Config fields by their former names, for each kernel by its name of today.
FIELDS: Mapping[str, Mapping[str, str]] = {}
#: Fields of a record that hold a kernel's name, or a name and what stands after a space.
_KERNEL_FIELDS = frozenset({"kernel", "best_kernel", "default_kernel", "float8_kernel"})


def current_kernel(name: str) -> str:
    """Return the name of today for a kernel's name, which a description may follow after a space."""
    first, space, rest = name.partition(" ")
    return KERNELS.get(first, first) + space + rest


def current_fields(kernel: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config's fields under the names of today, for a kernel by its name of today."""
    names = FIELDS.get(kernel, {})
    return {names.get(name, name): value for name, value in config.items()}


def current_record(value: Any) -> Any:
    """Return a record, or a part of one, with kernels and config fields under the names of today."""
    if isinstance(value, list):
        return [current_record(one) for one in value]
    if not isinstance(value, dict):
        return value
    record = {name: current_record(one) for name, one in value.items()}
    for name in _KERNEL_FIELDS & record.keys():
        if isinstance(record[name], str):
            record[name] = current_kernel(record[name])
    if isinstance(record.get("kernel"), str) and isinstance(record.get("config"), dict):
        record["config"] = current_fields(record["kernel"].partition(" ")[0], record["config"])
    return record
