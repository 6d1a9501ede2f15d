"""Lines of log say which model they are about."""

from __future__ import annotations

import json
import logging

import pytest

from kvferry_contract.logs import JsonFormatter, TextFormatter
from kvferry_operator import logs
from kvferry_operator.reconcile.steps import PassStep, log_step


def line(formatter: logging.Formatter, message: str) -> str:
    record = logging.LogRecord("kvferry_operator.reconcile.apply", logging.INFO, "", 0, message, (), None)
    return formatter.format(record)


def test_a_line_of_a_pass_names_model_revision_and_step() -> None:
    with logs.fields(namespace="models", name="tiny"):
        log_step(PassStep.PLAN, "")
        logs.note(revision="abc")
        written = json.loads(line(JsonFormatter(logs.context), "hello"))
        text = line(TextFormatter(logs.context), "hello")
    assert written | {"ts": ""} == {
        "ts": "",
        "level": "info",
        "logger": "kvferry_operator.reconcile.apply",
        "msg": "hello",
        "namespace": "models",
        "name": "tiny",
        "step": "plan",
        "revision": "abc",
    }
    assert text.endswith("hello namespace=models name=tiny step=plan revision=abc")
    assert "tiny" not in line(JsonFormatter(logs.context), "outside of a pass")


def test_a_write_is_told_in_detail(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "kvferry_operator"), logs.fields(name="tiny"):
        log_step(PassStep.APPLY, "Service/tiny-router")
    assert caplog.messages == ["writes Service/tiny-router"]
