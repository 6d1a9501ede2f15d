"""When keys are due: nothing is lost, nothing runs twice at once, nothing spins."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvferry_operator.schedule import (
    FIRST_BACKOFF_SECONDS,
    LONGEST_BACKOFF_SECONDS,
    REST_SECONDS,
    Schedule,
)

A, B = ("models", "a"), ("models", "b")


def test_many_marks_are_one_pass() -> None:
    schedule = Schedule()
    for _ in range(50):
        schedule.mark(A, now=0.0)
    assert len(schedule) == 1
    assert schedule.take(0.0) == A
    assert schedule.take(0.0) is None


def test_the_key_that_waits_longest_comes_first() -> None:
    schedule = Schedule()
    schedule.mark(A, now=1.0)
    schedule.mark(B, now=0.5)
    assert [schedule.take(2.0), schedule.take(2.0)] == [B, A]


def test_an_urgent_key_goes_before_all_others() -> None:
    schedule = Schedule()
    schedule.mark(A, now=0.0)
    schedule.mark(B, now=1.0, urgent=True)
    assert [schedule.take(2.0), schedule.take(2.0), schedule.take(2.0)] == [B, A, None]


def test_a_key_that_runs_is_not_taken_again_but_remembered() -> None:
    schedule = Schedule()
    schedule.mark(A, now=0.0)
    assert schedule.take(0.0) == A
    schedule.mark(A, now=0.1)
    assert schedule.take(100.0) is None
    schedule.done(A, now=0.2)
    assert schedule.take(0.2) is None, "the echo of its own writes is awaited"
    assert schedule.take(0.2 + REST_SECONDS) == A


def test_a_pass_is_repeated_when_it_asks_for_it() -> None:
    schedule = Schedule()
    schedule.mark(A, now=0.0)
    schedule.take(0.0)
    schedule.done(A, now=1.0, again_after=30.0)
    assert schedule.next_due() == 31.0
    schedule.mark(A, now=5.0)
    assert schedule.next_due() == 5.0, "a mark does not wait for the repetition"
    assert schedule.take(5.0) == A
    schedule.done(A, now=6.0)
    assert schedule.next_due() is None, "and replaces it"


def test_failures_wait_longer_and_longer_up_to_a_limit() -> None:
    schedule = Schedule(spread=lambda: 1.0)
    now, waits = 0.0, []
    schedule.mark(A, now)
    for _ in range(9):
        assert schedule.take(now) == A
        waits.append(schedule.failed(A, now))
        now += waits[-1]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    schedule.take(now)
    schedule.done(A, now)
    schedule.mark(A, now + 10)
    schedule.take(now + 10)
    assert schedule.failed(A, now + 10) == FIRST_BACKOFF_SECONDS, "a success forgets the failures before it"


def test_an_event_does_not_cut_a_back_off_short_but_a_new_spec_does() -> None:
    schedule = Schedule(spread=lambda: 1.0)
    schedule.mark(A, 0.0)
    schedule.take(0.0)
    wait = schedule.failed(A, 0.0)
    schedule.mark(A, 0.1)
    assert schedule.next_due() == wait
    schedule.mark(A, 0.2, urgent=True)
    assert schedule.take(0.2) == A


def test_a_new_spec_that_comes_while_a_pass_fails_is_not_held_up_either() -> None:
    schedule = Schedule()
    schedule.mark(A, 0.0)
    schedule.take(0.0)
    schedule.mark(A, 0.1, urgent=True)
    schedule.failed(A, 0.2)
    assert schedule.take(0.2) == A


def test_the_server_is_not_asked_before_it_wants_to_be() -> None:
    schedule = Schedule(spread=lambda: 0.0)
    schedule.mark(A, 0.0)
    schedule.take(0.0)
    assert schedule.failed(A, 0.0, retry_after=17.0) == 17.0


def test_nothing_is_kept_of_a_key_that_rests() -> None:
    schedule = Schedule()
    for index in range(100):
        key = ("models", str(index))
        schedule.mark(key, 0.0)
        assert schedule.take(0.0) == key
        schedule.done(key, 0.0)
    schedule.forget_rested(REST_SECONDS)
    assert vars(schedule)["_entries"] == {}
    assert len(schedule) == 0


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["mark", "urgent", "take", "done", "again", "failed"]),
        st.sampled_from([A, B, ("models", "c")]),
        st.floats(0, 90),
    ),
    max_size=60,
)


@given(MOVES)
def test_every_mark_is_followed_by_a_pass_that_begins_after_it(moves: list[tuple[str, tuple[str, str], float]]) -> None:
    schedule = Schedule()
    now, running, owed = 0.0, set(), set()
    for move, key, passed in moves:
        now += passed
        match move:
            case "mark" | "urgent":
                schedule.mark(key, now, urgent=move == "urgent")
                owed.add(key)
            case "take":
                taken = schedule.take(now)
                if taken is not None:
                    assert taken not in running, "one pass of a key at a time"
                    running.add(taken)
                    owed.discard(taken)
            case _ if key in running:
                running.discard(key)
                if move == "failed":
                    schedule.failed(key, now)
                else:
                    schedule.done(key, now, passed if move == "again" else None)
    for key in running:
        schedule.done(key, now)
    later, taken_in_the_end = now + LONGEST_BACKOFF_SECONDS, set()
    while (key := schedule.take(later)) is not None:
        taken_in_the_end.add(key)
    assert owed <= taken_in_the_end
