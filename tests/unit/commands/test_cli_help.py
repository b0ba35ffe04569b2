"""What ``--help`` says is whole: nothing is cut off, and every command has an example."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from gemmule.cli import gemmule


def commands(group=gemmule, words=()):
    yield words, group
    if isinstance(group, click.Group):
        for name, command in group.commands.items():
            yield from commands(command, (*words, name))


COMMANDS = dict(commands())


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(("gemmule", *words)))
def test_nothing_is_cut_off(words):
    result = CliRunner().invoke(gemmule, [*words, "--help"], terminal_width=80)
    assert result.exit_code == 0
    assert not [line for line in result.stdout.splitlines() if line.endswith("...") and not line.startswith("Usage")]
    assert isinstance(COMMANDS[words], click.Group) or "Example" in result.stdout


def test_every_command_is_listed_with_a_sentence():
    for words, command in COMMANDS.items():
        if isinstance(command, click.Group):
            listed = CliRunner().invoke(gemmule, [*words, "--help"], terminal_width=80).stdout.partition("Commands:")[2]
            assert all(f"  {name} " in listed for name in command.commands)
            assert listed.count(".\n") == len(command.commands)
