"""Tables of the commands: they fit the terminal, and break neither words nor numbers."""

from __future__ import annotations

import pytest

from gemmule.commands.tables import print_table

HEADER = ["kernel", "median us", "vs cuBLASLt", "note"]
NOTE = "skipped: the kernel takes rows that begin at multiples of sixteen bytes"
ROWS = [["hopper_gemm[tile_m=128]", "1234567.8", "0.95 (0.94 to 0.96)", ""], ["g01_naive", "", "", NOTE]]


def lines(capsys, rows=ROWS):
    print_table("4096 x 4096 x 4096, float32", HEADER, rows)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("columns", [71, 80, 140])
def test_a_table_fits_the_terminal(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = lines(capsys)
    assert max(map(len, shown)) <= columns
    words = " ".join(shown).split()
    for word in (*HEADER[0].split(), "hopper_gemm[tile_m=128]", "1234567.8", "multiples", "sixteen"):
        assert word in words
    # A ratio and its interval stay in one line.
    assert any("0.95 (0.94 to 0.96)" in line for line in shown)


def test_words_and_numbers_are_wider_than_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    assert any("hopper_gemm[tile_m=128]" in line and "1234567.8" in line for line in lines(capsys))


def test_a_pipe_gets_whole_rows(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    rows = [[*ROWS[1][:3], f"{NOTE} {NOTE} {NOTE}"]]
    assert any(line.rstrip().endswith(f"{NOTE} {NOTE} {NOTE}") for line in lines(capsys, rows))


def test_a_narrow_terminal_omits_optional_columns(capsys, monkeypatch):
    def shown(columns):
        monkeypatch.setenv("COLUMNS", str(columns))
        print_table("sizes", HEADER, ROWS, optional=("vs cuBLASLt", "median us"))
        return capsys.readouterr().out

    assert "vs cuBLASLt" in shown(71)
    assert "vs cuBLASLt" not in shown(70)
    assert "1234567.8" in shown(70)
    assert "1234567.8" not in shown(40)
    assert "hopper_gemm[tile_m=128]" in shown(40)
