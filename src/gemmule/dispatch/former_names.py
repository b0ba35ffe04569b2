"""Former names of kernels, config fields, precisions and strategies: in records, tuned tables, packs and journals."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

#: Kernels by their former names.
KERNELS: Mapping[str, str] = {
    "d03_mma_f64": "float64_gemm",
    "d04_triangle_f64": "float64_syrk",
    "g08_triangle": "simt_syrk",
    "h01_mma_sync": "mma_sync_gemm",
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
    "mma_sync_unaligned": "mma_sync_small",
    "t12_production": "transpose_tiled",
    "t13_in_place": "transpose_in_place",
    "t14_whole_sectors": "transpose_whole_sectors",
    "t15_register_squares": "transpose_in_registers",
    "t16_gathered_words": "transpose_gathered",
    "t17_unshifted_words": "transpose_word_aligned",
}
#: Config fields by their former names, for each kernel by its current name.
FIELDS: Mapping[str, Mapping[str, str]] = {
    "hopper_gemm": {"swapped": "swap_ab"},
    "hopper_syrk": {"swapped": "swap_ab"},
}
#: Values of `Precision` by their former names.
PRECISIONS: Mapping[str, str] = {"int8x14": "ozaki-14", "int8x15": "ozaki-15", "int8x16": "ozaki-16"}
#: Strategies of streamed GEMMs by their former names, which calls take too.
STRATEGIES: Mapping[str, str] = {"paper": "five-buffers"}
_WORDS: Mapping[str, str] = {**KERNELS, **PRECISIONS}
#: Fields of a record whose text has names of kernels or precisions.
_NAMED_FIELDS = frozenset(
    {"kernel", "best_kernel", "default_kernel", "float8_kernel", "what", "failures", "precision", "kind"}
)
_WORD = re.compile(r"\w+")
#: A kernel in a text, with its config in brackets.
_WITH_CONFIG = re.compile(r"(\w+)( ?\[)([^]]*)\]")


# Records of one file have the same fields and kernels in every line.
@functools.lru_cache(maxsize=4096)
def current_names(text: str) -> str:
    """Return a text with the current names of kernels, their config fields in brackets, and precisions."""

    def renamed(found: re.Match[str]) -> str:
        names = FIELDS.get(found[1], {})
        return f"{found[1]}{found[2]}{_WORD.sub(lambda word: names.get(word[0], word[0]), found[3])}]"

    return _WITH_CONFIG.sub(renamed, _WORD.sub(lambda word: _WORDS.get(word[0], word[0]), text))


def current_fields(kernel: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config's fields under their current names, for a kernel by its current name."""
    names = FIELDS.get(kernel, {})
    return {names.get(name, name): value for name, value in config.items()}


def current_record(value: Any, *, names: bool = False) -> Any:
    """Return a record, or a part of one, with current names of kernels, config fields, precisions and strategies.

    Parameters
    ----------
    value : object
        Any JSON value.
    names : bool
        Whether its texts contain names of kernels or precisions.
    """
    if isinstance(value, str):
        return current_names(value) if names else value
    if isinstance(value, list):
        return [current_record(one, names=names) for one in value]
    if not isinstance(value, dict):
        return value
    record = {current_names(field): current_record(one, names=field in _NAMED_FIELDS) for field, one in value.items()}
    if isinstance(strategy := record.get("strategy"), str):
        record["strategy"] = STRATEGIES.get(strategy, strategy)
    for field, config in record.items():
        # A config is that of the kernel of the same prefix (best_, default_ …), else of the record's kernel.
        prefix = field.removesuffix("s").removesuffix("config")
        kernel = record.get(prefix + "kernel", record.get("kernel"))
        if not field.removesuffix("s").endswith("config") or not isinstance(kernel, str):
            continue
        name = kernel.partition(" ")[0]
        if isinstance(config, dict):
            record[field] = current_fields(name, config)
        elif isinstance(config, list):
            record[field] = [current_fields(name, one) if isinstance(one, dict) else one for one in config]
    return record
