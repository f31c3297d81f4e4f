"""What every command takes, and how it refuses what it does not."""

import importlib
import re
from importlib.metadata import version

import pytest

from jaxserve import cli

COMMANDS = list(cli.COMMANDS)
FIRST = {"bench": ["serving"], "keys": ["new"]}  # what stands before flags


@pytest.fixture
def command(request, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    return importlib.import_module(f"jaxserve.{request.param}").main


@pytest.mark.parametrize("command", COMMANDS, indirect=True)
def test_the_version_is_told(command, capsys):
    with pytest.raises(SystemExit) as ended:
        command(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"jaxserve {version('jaxserve')}\n"


def test_the_console_script_tells_it_too(capsys):
    cli.main(["--version"])
    assert capsys.readouterr().out == f"jaxserve {version('jaxserve')}\n"


@pytest.mark.parametrize(("command", "name"), [(name, name) for name in COMMANDS], indirect=["command"])
def test_help_speaks_of_commands(command, name, capsys):
    for arguments in ([], FIRST.get(name, [])):
        with pytest.raises(SystemExit) as ended:
            command([*arguments, "--help"])
        assert ended.value.code == 0
    assert not re.search(r"\bdoors?\b", capsys.readouterr().out, re.IGNORECASE)


@pytest.mark.parametrize(("command", "name"), [(name, name) for name in COMMANDS], indirect=["command"])
def test_an_unknown_flag_is_one_line(command, name, capsys):
    assert command([*FIRST.get(name, []), "--no-such-thing"]) == 2
    assert re.fullmatch(r"jaxserve: unrecognized arguments: --no-such-thing( .*)?\n", capsys.readouterr().err)
