"""What the link carries: measured on busy time alone, deaf to a stall, and right three samples after a step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_runtime.auto.goodput import NEWEST, Goodput

MIB = 1 << 20


class Sender:
    """Messages one behind the other on a link, `window` of them handed over at a time."""

    def __init__(self, window: int = 4) -> None:
        self.goodput = Goodput()
        self.now = 0.0
        self.window = window

    def send(self, rate: float, messages: int, size: int = MIB) -> None:
        started = min(self.window, messages)
        for _ in range(started):
            self.goodput.started(size, self.now)
        for _ in range(messages):
            self.now += size / rate
            self.goodput.ended(size, self.now)
            if started < messages:
                started += 1
                self.goodput.started(size, self.now)

    @property
    def rate(self) -> float | None:
        return self.goodput.bytes_per_second(self.now)

    def rest(self, seconds: float) -> None:
        self.now += seconds


def test_nothing_is_known_before_the_first_message() -> None:
    assert Goodput().bytes_per_second(1.0) is None


@given(rate=st.floats(1e6, 5e9), window=st.integers(1, 16), size=st.integers(1 << 19, 1 << 22))
def test_the_rate_of_a_busy_link(rate: float, window: int, size: int) -> None:
    sender = Sender(window)
    sender.send(rate, 20, size)
    assert sender.rate == pytest.approx(rate, rel=0.01)


def test_time_in_which_nothing_was_sent_does_not_count() -> None:
    sender = Sender()
    for _ in range(10):
        sender.send(1e8, 2)
        sender.rest(5.0)
    assert sender.rate == pytest.approx(1e8, rel=0.01)


def test_one_stall_changes_nothing() -> None:
    sender = Sender(window=1)
    sender.send(1e8, 10)
    sender.send(1e5, 1)
    sender.send(1e8, 2)
    assert sender.rate == pytest.approx(1e8, rel=0.01)


@pytest.mark.parametrize(("before", "after"), [(1e8, 1e7), (1e7, 1e8), (1e8, 7e7), (1e8, 1.4e8)])
def test_a_step_is_followed_within_three_messages(before: float, after: float) -> None:
    sender = Sender()
    sender.send(before, 40)
    sender.send(after, NEWEST)
    assert sender.rate == pytest.approx(after, rel=0.01)


def test_small_messages_are_measured_together() -> None:
    sender = Sender()
    sender.send(1e8, 64, 8192)
    assert sender.rate == pytest.approx(1e8, rel=0.01)


def test_messages_whose_ends_are_noticed_together_do_not_make_a_fast_link_look_faster() -> None:
    """Or that the kernel takes into its buffers at once, while nothing else is on its way."""
    sender = Sender()
    rate, size, bunch = 1e9, 2 * MIB, 3
    for _ in range(60):
        for _ in range(bunch):
            sender.goodput.started(size, sender.now)
        sender.now += bunch * size / rate
        for place in range(bunch):
            sender.goodput.ended(size, sender.now + place * 60e-6)
        sender.now += bunch * 60e-6
    assert sender.rate == pytest.approx(rate, rel=0.1)


def test_messages_that_were_not_carried_do_not_count() -> None:
    goodput = Goodput()
    for second in range(20):
        goodput.started(MIB, float(second))
        goodput.ended(MIB, second + 0.5, carried=False)
    assert goodput.bytes_per_second(20.0) is None


def test_a_link_that_carries_nothing_any_more_is_not_believed_to_be_fast() -> None:
    """Long before a message ends that could be measured."""
    sender = Sender()
    sender.send(1e8, 20)
    for _ in range(4):
        sender.goodput.started(MIB, sender.now)
    sender.rest(10.0)
    assert sender.rate == pytest.approx(4 * MIB / 10, rel=0.01)
