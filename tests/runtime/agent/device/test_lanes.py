"""What is told of work on a side stream."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from kv_settings import SECONDS, Outcomes
from kvferry_runtime.agent.device.lanes import Lanes
from kvferry_runtime.agent.in_flight import InFlight
from stand_in_device import StandInDevice, StandInEvent


@pytest.fixture
def device() -> Iterator[StandInDevice]:
    device = StandInDevice()
    yield device
    device.close()


def test_time_in_which_work_waits_for_others_is_not_its_own(device: StandInDevice) -> None:
    lanes, gate, told = Lanes(device), StandInEvent(), Outcomes()
    stream = lanes.next()
    stream.wait(gate)
    lanes.queue(stream, lambda: time.sleep(0.02), [InFlight()], lambda *outcome: told((outcome, time.perf_counter())))
    time.sleep(0.02)
    fired = time.perf_counter()
    gate.fire()
    (failure, seconds), ended = told.wait()
    assert failure is None
    assert 0.02 <= seconds <= ended - fired
    assert lanes.close(SECONDS)


def test_work_that_fails_is_told_of_and_holds_nothing(device: StandInDevice) -> None:
    lanes, held, told = Lanes(device), InFlight(), Outcomes()
    lanes.queue(lanes.next(), lambda: 1 / 0, [held], lambda *outcome: told(outcome))
    failure, seconds = told.wait()
    assert isinstance(failure, ZeroDivisionError) and seconds == 0
    assert held.count == 0
    assert lanes.close(SECONDS)
