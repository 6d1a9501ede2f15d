"""Who sees which message."""

from __future__ import annotations

import pytest

from kvferry_runtime.engine.stages.messages import AnyMessage, PrefillPass, Ready, Release
from kvferry_runtime.engine.stages.route import Route, route
from kvferry_runtime.errors import ProtocolError

COMMAND, REPORT, PASS = Release(1), Ready(1, 10, 8), PrefillPass(1, 1, 0, 4, None)
HERE, ON, BOTH = Route.HERE, Route.ON, Route.BOTH


@pytest.mark.parametrize(
    ("message", "routes"),
    [
        (COMMAND, {1: BOTH, 2: BOTH, 3: HERE}),
        (REPORT, {1: ON, 2: ON, 3: ON, 0: HERE}),
        (PASS, {1: HERE, 2: HERE, 3: HERE}),
    ],
)
def test_where_a_message_goes(message: AnyMessage, routes: dict[int, Route]) -> None:
    assert {stage: route(message, stage, 4) for stage in routes} == routes


@pytest.mark.parametrize("message", [COMMAND, PASS])
def test_what_the_first_stage_says_does_not_come_back_to_it(message: AnyMessage) -> None:
    with pytest.raises(ProtocolError, match="came back to the first stage"):
        route(message, 0, 4)
