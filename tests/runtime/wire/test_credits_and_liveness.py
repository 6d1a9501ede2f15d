"""The two small machines of a session."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvferry_runtime.wire.credits import ReceiveCredits, SendCredits
from kvferry_runtime.wire.liveness import MISSES, STALL_TICKS, DataFlow, Liveness


@given(st.lists(st.sampled_from(["post", "tell", "reserve", "take", "cancel"]), max_size=80))
def test_no_message_without_a_posted_receive_and_no_number_twice(events: list[str]) -> None:
    sending, receiving = SendCredits(), ReceiveCredits()
    reserved, used = 0, list[int]()
    for event in events:
        match event:
            case "post":
                receiving.post()
            case "tell":
                sending.grant(receiving.limit)
            case "reserve" if sending.available:
                sending.reserve()
                reserved += 1
            case "take" if reserved:
                used.append(sending.take())
                reserved -= 1
            case "cancel" if reserved:
                sending.cancel()
                reserved -= 1
    assert used == list(range(len(used)))
    assert len(used) + reserved + sending.available <= receiving.limit


def test_an_old_grant_takes_nothing_back() -> None:
    credits = SendCredits()
    credits.grant(5)
    credits.grant(3)
    assert credits.available == 5


def test_dead_after_misses_in_a_row_and_not_before() -> None:
    liveness = Liveness(b"boot")
    liveness.tick()
    for _ in range(3):
        for _ in range(MISSES - 1):
            liveness.tick()
            assert not liveness.dead
        liveness.ping(b"boot")
        liveness.tick()
    for _ in range(MISSES):
        liveness.tick()
    assert liveness.dead


def test_another_process_in_its_place_is_dead_at_once() -> None:
    liveness = Liveness(b"boot")
    liveness.ping(b"other")
    assert liveness.dead


def test_pings_are_numbered() -> None:
    liveness = Liveness(b"boot")
    assert [liveness.tick() for _ in range(3)] == [1, 2, 3]


def test_data_is_stalled_only_while_something_is_missing_and_nothing_arrives() -> None:
    flow = DataFlow()

    def ticks(count: int) -> bool:
        for _ in range(count):
            flow.tick()
        return flow.stalled

    assert not ticks(2 * STALL_TICKS)
    flow.sent(2)
    assert not ticks(STALL_TICKS - 1)
    flow.arrived()
    assert not ticks(STALL_TICKS - 1) and flow.missing == 1
    assert ticks(1)


def test_data_may_overtake_the_ping_that_counts_it() -> None:
    flow = DataFlow()
    flow.arrived()
    for _ in range(2 * STALL_TICKS):
        flow.tick()
    assert flow.missing == 0 and not flow.stalled
