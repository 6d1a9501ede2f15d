from __future__ import annotations

import logging

import pytest

from kvferry_operator.kube import kinds
from kvferry_operator.kube.calls import Call
from kvferry_operator.kube.server_warnings import Warnings, texts

CALL = Call("apply", kinds.DEPLOYMENT, "models", "tiny-router")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], []),
        (['299 - "spec.x: deprecated"'], ["spec.x: deprecated"]),
        (['299 - "one", 299 - "two"', '299 - "three"'], ["one", "two", "three"]),
        ([r'299 - "say \"no\" to C:\\"'], ['say "no" to C:\\']),
        (["nonsense"], []),
    ],
)
def test_texts(headers: list[str], expected: list[str]) -> None:
    assert texts(headers) == expected


def test_a_warning_is_logged_once_with_the_object_that_met_it(caplog: pytest.LogCaptureFixture) -> None:
    warnings = Warnings(logging.getLogger("test"))
    for _ in range(3):
        warnings.note(CALL, ['299 - "spec.x: deprecated"'])
    assert [record.getMessage() for record in caplog.records] == [
        "apply Deployment models/tiny-router: the API server warns: spec.x: deprecated"
    ]


def test_a_flood_of_different_warnings_is_not_remembered_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    warnings = Warnings(logging.getLogger("test"))
    for number in range(1000):
        warnings.note(CALL, [f'299 - "{number}"'])
    warnings.note(CALL, ['299 - "0"'])
    assert len(caplog.records) == 1001
