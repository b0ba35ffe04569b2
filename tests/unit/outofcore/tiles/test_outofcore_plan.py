"""Plans: memory, traffic, and the words of a refusal."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.core.errors import ArgumentError, MemoryLimitError
from gemmule.outofcore.tiles.memory_budget import (
    GivenBytes,
    at_least,
    available_memory,
    format_bytes,
    parse_bytes,
    resident_memory,
)
from gemmule.outofcore.tiles.plan import Operand, Product
from gemmule.outofcore.tiles.search import least_memory, plan_product
from gemmule.outofcore.tiles.slots import Slots

F4 = Operand(np.dtype("f4"))


def tile_bytes(m: int, n: int, k: int) -> int:
    return 8 * m * n


def product(m: int, n: int, k: int) -> Product:
    return Product(m, n, k, F4, F4, F4)


def test_a_product_that_fits_is_read_once():
    plan = plan_product(product(2000, 3000, 1000), 1 << 30, tile_bytes)
    assert plan.bytes_read() == 4 * (2000 * 1000 + 1000 * 3000)


def test_slices_stay_deep_and_tiles_large_where_memory_is_short():
    plan = plan_product(product(20000, 20000, 2000), 256 << 20, tile_bytes)
    assert plan.memory_bytes <= 256 << 20
    assert plan.tile_k >= 256
    assert min(plan.tile_m, plan.tile_n) >= 1500
    assert plan.memory_bytes > 0.9 * (256 << 20)
    assert plan.bytes_read() < 1.5e9


def test_too_little_memory_is_refused_with_what_would_do():
    problem = product(5000, 5000, 5000)
    least = least_memory(problem, tile_bytes)
    assert plan_product(problem, least, tile_bytes).memory_bytes <= least
    with pytest.raises(MemoryLimitError, match=f"at least {least} bytes") as caught:
        plan_product(problem, GivenBytes(least - 1), tile_bytes)
    assert str(caught.value).endswith(f"; give memory='{least}' or more")
    with pytest.raises(MemoryLimitError, match=r"limit 7 KiB is .* at least 8 KiB; give memory='8KiB' or more$"):
        plan_product(problem, parse_bytes("7KiB"), tile_bytes)
    with pytest.raises(MemoryLimitError, match=r"limit 7 kB is .* at least 8\.2 kB; give memory='8\.2kB' or more$"):
        plan_product(problem, parse_bytes("7kB"), tile_bytes)


def test_more_memory_never_means_more_reading():
    read = [
        plan_product(product(3000, 3000, 3000), size << 20, tile_bytes).bytes_read() for size in (1, 4, 16, 64, 256)
    ]
    assert read == sorted(read, reverse=True)


def test_slots_give_up_the_least_recently_used():
    slots = Slots(2)
    assert slots.claim("a") == (0, False)
    assert slots.claim("b") == (1, False)
    assert slots.claim("a") == (0, True)
    assert slots.claim("c") == (1, False)
    assert slots.claim("b") == (0, False)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("256MiB", 256 << 20),
        ("2GB", 2 * 10**9),
        ("1.5GiB", 3 << 29),
        ("1.5 gib", 3 << 29),
        ("4096", 4096),
        ("7k", 7000),
    ],
)
def test_amounts_of_memory_are_read(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "lots", "0", "0.1", "-5MB", "5 parsecs", "1e9", "MiB"])
def test_other_amounts_are_refused(text):
    with pytest.raises(ArgumentError, match="256MiB"):
        parse_bytes(text)


def test_amounts_are_written_for_people():
    assert [format_bytes(size) for size in (5, 2048, 256 << 20, 3 << 29)] == ["5 bytes", "2 KiB", "256 MiB", "1.5 GiB"]
    assert format_bytes((1 << 20) + 1, up=True) == "1.1 MiB"


@pytest.mark.parametrize(
    ("given", "size", "remedy"),
    [
        ("300", 2400, "'2400' or more"),
        ("300", 2401, "'2401' or more, or a unit as in memory='300MiB'"),
        ("300", 300 << 20, "'314572800' or more, or a unit as in memory='300MiB'"),
        ("300", (300 << 20) + 1, "'314572801' or more"),
        (str((1 << 18) - 1), 1 << 30, "'1073741824' or more, or a unit as in memory='262143MiB'"),
        (str(1 << 18), 1 << 30, "'1073741824' or more"),
        ("300B", 2401, "'2401' or more"),
        ("1MiB", (3 << 20) + 1, "'3.1MiB' or more"),
        ("1MB", (3 << 20) + 1, "'3.2MB' or more"),
    ],
)
def test_a_remedy_is_in_the_units_that_were_given_and_bytes_may_have_been_meant_as_mib(given, size, remedy):
    assert at_least("memory", size, parse_bytes(given)) == f"give memory={remedy}"


def test_the_system_is_asked():
    assert available_memory() > 1 << 20
    assert resident_memory() >= 0
