"""Flags and variables of the operator: read, checked, and said in --help."""

from __future__ import annotations

import pytest

from kvferry_operator import options
from kvferry_operator.api.types import PullPolicy
from kvferry_operator.options import Options


def test_without_any_flag_the_defaults_hold() -> None:
    assert options.parse([], {}) == Options()


def test_flags_are_read() -> None:
    chosen = options.parse(
        [
            "--namespace=models",
            "--namespace=more",
            "--namespace=models",
            "--resync-seconds=60",
            "--workers=3",
            "--leader-elect",
            "--runtime-image=mine",
            "--pull-policy=Never",
        ],
        {},
    )
    assert chosen.namespaces == ("models", "more")
    assert (chosen.resync_seconds, chosen.workers, chosen.leader_elect) == (60.0, 3, True)
    assert chosen.images.runtime == "mine" and chosen.images.engine == Options().images.engine
    assert chosen.pull_policy is PullPolicy.NEVER


def test_variables_stand_in_for_flags_and_flags_win() -> None:
    environment = {
        "KVFERRY_OPERATOR_NAMESPACE": "models,more",
        "KVFERRY_OPERATOR_RESYNC_SECONDS": "60",
        "KVFERRY_OPERATOR_LEADER_ELECT": "true",
        "KVFERRY_OPERATOR_LOG_LEVEL": "debug",
        "KVFERRY_OPERATOR_WORKERS": "",
    }
    chosen = options.parse([], environment)
    assert chosen.namespaces == ("models", "more")
    assert (chosen.resync_seconds, chosen.leader_elect, chosen.log_level) == (60.0, True, "debug")
    assert chosen.workers == Options().workers, "an empty variable says nothing"
    chosen = options.parse(["--namespace=mine", "--resync-seconds=5", "--no-leader-elect"], environment)
    assert (chosen.namespaces, chosen.resync_seconds, chosen.leader_elect) == (("mine",), 5.0, False)


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["--resync-seconds=0"], {}, "--resync-seconds: must be 1 to 86400, found 0"),
        (["--resync-seconds=nan"], {}, "must be 1 to 86400"),
        (["--workers=many"], {}, "--workers"),
        (["--namespace=Not_Legal"], {}, "'Not_Legal' is no legal namespace"),
        ([], {"KVFERRY_OPERATOR_NAMESPACE": "a,B"}, "'B' is no legal namespace"),
        ([], {"KVFERRY_OPERATOR_LOG_LEVEL": "loud"}, "must be one of debug, info, warning, error, found 'loud'"),
        ([], {"KVFERRY_OPERATOR_LEADER_ELECT": "perhaps"}, "KVFERRY_OPERATOR_LEADER_ELECT"),
        (["--resync=5"], {}, "unrecognized"),
    ],
)
def test_what_is_wrong_is_named(
    arguments: list[str], environment: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        options.parse(arguments, environment)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        options.parse(["--help"], {})
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "examples:" in printed and "KVFERRY_OPERATOR_RESYNC_SECONDS" in printed
