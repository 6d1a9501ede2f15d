from __future__ import annotations

import pytest

from kvferry_operator.errors import NotLeading
from kvferry_operator.kube import kinds
from kvferry_operator.metrics import Metrics, Outcome
from kvferry_operator.observation.observed import Failure
from kvferry_operator.reconcile.steps import PassStep
from kvferry_operator.reconcile.writes import Writes


async def test_nothing_is_written_once_another_operator_may_act() -> None:
    sent = []
    leads = True

    async def request() -> str:
        sent.append("request")
        return "answer"

    writes = Writes(Metrics(), lambda _step, _what: None, lambda: leads)
    assert await writes.send(PassStep.WRITE, kinds.POD, "a", Outcome.APPLIED, request) == "answer"
    leads = False
    with pytest.raises(NotLeading):
        await writes.send(PassStep.WRITE, kinds.POD, "b", Outcome.APPLIED, request)
    refused = await writes.attempt(kinds.POD, "c", Outcome.APPLIED, request)
    assert isinstance(refused, Failure) and isinstance(refused.error, NotLeading)
    assert sent == ["request"]
