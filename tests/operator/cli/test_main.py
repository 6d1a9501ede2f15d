"""The program `kvferry` as a whole."""

from __future__ import annotations

import pytest

from kvferry_operator.cli import main


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main.main(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in main.COMMANDS) and "examples:" in shown


@pytest.mark.parametrize("command", main.COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main.main([command, "--help"])
    assert caught.value.code == 0
    assert "examples:" in capsys.readouterr().out


def test_a_wrong_argument_is_a_usage_error() -> None:
    with pytest.raises(SystemExit) as caught:
        main.main(["validate"])
    assert caught.value.code == 2
