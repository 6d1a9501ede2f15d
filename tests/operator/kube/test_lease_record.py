from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from kvferry_operator.kube.lease_record import Move, Sighting, Terms, decide, held, released

TERMS = Terms("kvferry-system", "kvferry-operator")
WALL = datetime(2026, 5, 17, 12, 0, 0, 250, tzinfo=UTC)


def lease(holder: str, renewed: str = "2026-05-17T11:00:00.000000Z", duration: int = 15) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "kvferry-system", "name": "kvferry-operator", "resourceVersion": "7"},
        "spec": {
            "holderIdentity": holder,
            "renewTime": renewed,
            "acquireTime": "2026-05-17T10:00:00.000000Z",
            "leaseDurationSeconds": duration,
            "leaseTransitions": 3,
        },
    }


@pytest.mark.parametrize(
    ("holder", "age", "move"),
    [
        ("me", 0.0, Move.RENEW),
        ("me", 100.0, Move.RENEW),
        ("other", 14.9, Move.WAIT),
        ("other", 15.0, Move.TAKE),
        ("", 0.0, Move.TAKE),
    ],
)
def test_decision(holder: str, age: float, move: Move) -> None:
    assert decide(Sighting.of(lease(holder), now=50.0), "me", now=50.0 + age) is move


def test_there_is_none_yet() -> None:
    assert decide(None, "me", now=0.0) is Move.TAKE


def test_a_holder_that_renews_is_waited_for_whatever_the_clocks_say() -> None:
    seen = Sighting.of(lease("other", "1999-01-01T00:00:00.000000Z"), now=0.0)
    for minute in range(1, 10):
        seen = Sighting.of(lease("other", f"1999-01-01T00:{minute:02}:00.000000Z"), now=minute * 10.0, before=seen)
        assert decide(seen, "me", now=minute * 10.0 + 9.0) is Move.WAIT


def test_a_holder_that_is_silent_is_followed_although_its_lease_is_read_again_and_again() -> None:
    seen = Sighting.of(lease("other"), now=0.0)
    moves = []
    for second in range(1, 17):
        seen = Sighting.of(lease("other"), now=float(second), before=seen)
        moves.append(decide(seen, "me", now=float(second)))
    assert moves == [Move.WAIT] * 14 + [Move.TAKE] * 2


def test_the_holders_own_promise_counts_not_ours() -> None:
    assert decide(Sighting.of(lease("other", duration=60), now=0.0), "me", now=59.0) is Move.WAIT


def test_taking_over_counts_and_renewing_does_not() -> None:
    taken = held(TERMS, "me", WALL, Sighting.of(lease("other"), 0.0))["spec"]
    renewed = held(TERMS, "me", WALL, Sighting.of(lease("me"), 0.0))["spec"]
    assert (taken["leaseTransitions"], renewed["leaseTransitions"]) == (4, 3)
    assert (taken["acquireTime"], renewed["acquireTime"]) == (
        "2026-05-17T12:00:00.000250Z",
        "2026-05-17T10:00:00.000000Z",
    )


@pytest.mark.parametrize("spec", [None, {}])
def test_a_lease_without_content_can_be_taken(spec: dict[str, Any] | None) -> None:
    empty = {**lease(""), "spec": spec}
    seen = Sighting.of(empty, 0.0)
    assert decide(seen, "me", 0.0) is Move.TAKE
    assert held(TERMS, "me", WALL, seen)["spec"]["holderIdentity"] == "me"


def test_what_is_written_over_another_state_carries_that_states_version() -> None:
    seen = Sighting.of(lease("me"), 0.0)
    for manifest in (held(TERMS, "me", WALL, seen), released(TERMS, WALL, seen)):
        assert manifest["metadata"]["resourceVersion"] == "7"


def test_a_released_lease_is_free_at_once() -> None:
    left = Sighting.of(released(TERMS, WALL, Sighting.of(lease("me"), 0.0)), 0.0)
    assert decide(left, "other", 0.0) is Move.TAKE


@pytest.mark.parametrize(("duration", "deadline", "retry"), [(10, 10, 2), (15, 2, 2), (15, 10, 0)])
def test_terms_that_would_allow_two_leaders_are_refused(duration: float, deadline: float, retry: float) -> None:
    with pytest.raises(ValueError, match="duration > renew deadline > retry > 0"):
        Terms("a", "b", duration, deadline, retry)
