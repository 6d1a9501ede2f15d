"""`kvferry-runtime` itself: its flags, and the help of every command."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator

import pytest

from kvferry_contract import env
from kvferry_runtime.__main__ import build_parser, main


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from parsers(each)


PARSERS = list(parsers(build_parser()))


def examples(parser: argparse.ArgumentParser) -> list[str]:
    """The lines below `examples:`, up to the first one that is not indented."""
    found = re.search(r"^examples:\n((?:  .*\n?)+)", parser.epilog or "", re.MULTILINE)
    return found.group(1).splitlines() if found else []


@pytest.mark.parametrize("parser", PARSERS, ids=[parser.prog for parser in PARSERS])
def test_the_help_of_a_command_has_examples_that_it_understands(parser: argparse.ArgumentParser) -> None:
    lines = examples(parser)
    assert lines, f"the help of {parser.prog} has no examples"
    for line in lines:
        words = shlex.split(line, comments=True)
        build_parser().parse_args(words[words.index("kvferry-runtime") + 1 :])
        assert parser.prog.split()[-1] in words, f"{line} is no example of {parser.prog}"


@pytest.mark.parametrize("parser", PARSERS, ids=[parser.prog for parser in PARSERS])
def test_the_help_shows_the_examples_line_by_line(parser: argparse.ArgumentParser) -> None:
    assert "\n".join(examples(parser)) in parser.format_help()


@pytest.mark.parametrize("parser", PARSERS, ids=[parser.prog for parser in PARSERS])
def test_every_option_is_explained(parser: argparse.ArgumentParser) -> None:
    choices = [action for action in parser._actions if not isinstance(action, argparse._SubParsersAction)]
    assert [action.dest for action in choices if not action.help] == []


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (["--log-level", "foo"], {}, ["--log-level", "'foo'", "debug", "info", "warning", "error"]),
        (["--log-format", "xml"], {}, ["--log-format", "'xml'", "json", "text"]),
        (
            [],
            {env.LOG_LEVEL: "foo"},
            ["KVFERRY_LOG_LEVEL=foo: allowed are debug, info, warn", "warning, error, critical"],
        ),
        ([], {env.LOG_FORMAT: "xml"}, ["KVFERRY_LOG_FORMAT=xml: allowed are json, text"]),
    ],
)
def test_a_wrong_kind_of_log_is_named(
    arguments: list[str],
    variables: dict[str, str],
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert code_of([*arguments, "timeline", "/absent"]) == 2
    printed = capsys.readouterr().err
    assert all(word in printed for word in said), printed


@pytest.mark.parametrize("value", ["DEBUG", "Error", "warn", "critical", ""])
def test_a_level_may_be_written_in_capitals_and_an_empty_variable_says_nothing(
    value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(env.LOG_LEVEL, value)
    assert main(["timeline", "/absent"]) == 2
    assert "cannot read the trace /absent" in capsys.readouterr().err


def test_a_flag_goes_before_a_variable(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(env.LOG_LEVEL, "foo")
    assert main(["--log-level", "INFO", "timeline", "/absent"]) == 2
    assert "foo" not in capsys.readouterr().err


def code_of(arguments: list[str]) -> object:
    try:
        return main(arguments)
    except SystemExit as ended:
        return ended.code
