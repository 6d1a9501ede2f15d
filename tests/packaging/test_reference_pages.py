"""The pages that list things follow the code."""

from __future__ import annotations

import operator_reference
import runtime_reference

AGAIN = "run: python tests/_support/runtime_reference.py"


async def test_the_metrics_page_is_fresh() -> None:
    assert runtime_reference.METRICS.read_text() == await runtime_reference.metrics_page(), AGAIN


def test_the_settings_page_is_fresh() -> None:
    assert runtime_reference.SETTINGS.read_text() == runtime_reference.settings_page(), AGAIN


def test_the_operators_page_is_fresh() -> None:
    again = "run: python tests/_support/operator_reference.py"
    assert operator_reference.PAGE.read_text() == operator_reference.page(), again
