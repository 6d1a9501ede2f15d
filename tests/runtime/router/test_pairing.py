"""Which groups a request is given to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_contract.endpoints import Group
from kvferry_runtime.router.group_table import ASIDE_SECONDS, GroupTable
from kvferry_runtime.router.pairing import Alone, Load, Nobody, Pair, Wish, choose
from kvferry_runtime.router.reasons import RouteReason

ANY = Wish(alone=None, alone_allowed=True)


def make(role: str, name: str, revision: str = "r1", **changes: Any) -> Group:
    known: dict[str, Any] = {"ready": True, "terminating": False, "sidecars": ("10.0.0.1:7400",), "ordinal": 0}
    return Group(role=role, revision=revision, engine=name, pod=name, **known | changes)


P1, P2 = make("prefill", "p1"), make("prefill", "p2", ordinal=1)
D1, D2 = make("decode", "d1"), make("decode", "d2", ordinal=1)
OLD_P, OLD_D = make("prefill", "op", "r0"), make("decode", "od", "r0")


@pytest.mark.parametrize(
    ("groups", "busy", "expected"),
    [
        pytest.param([P1, D1], {}, Pair(P1, D1), id="the only pair"),
        pytest.param([P1, P2, D1, D2], {"p1": 1, "d2": 1}, Pair(P2, D1), id="least loaded on both sides"),
        pytest.param([P1, D1, OLD_P, OLD_D], {"d1": 3, "od": 1}, Pair(OLD_P, OLD_D), id="least loaded revision"),
        pytest.param([P1, D1, OLD_D], {"d1": 9}, Pair(P1, D1), id="a pair before an idle group without one"),
        pytest.param([P1, OLD_D], {}, Alone(OLD_D, RouteReason.NO_PAIR), id="never across revisions"),
        pytest.param([D1, D2], {"d1": 1}, Alone(D2, RouteReason.NO_PREFILL), id="no prefill"),
        pytest.param([make("prefill", "p", ready=False), D1], {}, Alone(D1, RouteReason.NO_PREFILL), id="unready"),
        pytest.param([make("prefill", "p", sidecars=()), D1], {}, Alone(D1, RouteReason.NO_PREFILL), id="no sidecar"),
        pytest.param([make("aggregated", "a"), P1], {}, Alone(make("aggregated", "a"), RouteReason.NO_PAIR), id="agg"),
        pytest.param([P1, make("decode", "d", terminating=True)], {}, Nobody("no decode group is ready"), id="ending"),
        pytest.param([], {}, Nobody("no decode group is ready"), id="nobody"),
    ],
)
def test_choice(groups: list[Group], busy: dict[str, int], expected: object) -> None:
    assert choose(groups, {name: Load(count) for name, count in busy.items()}, set(), ANY) == expected


def test_engines_that_failed_are_no_prefill_and_the_last_resort_for_decode() -> None:
    assert choose([P1, P2, D1, D2], {}, {"p1", "d1"}, ANY) == Pair(P2, D2)
    assert choose([P1, D1], {}, {"p1", "d1"}, ANY) == Alone(D1, RouteReason.NO_PREFILL)


def test_engines_that_this_request_has_tried_are_out() -> None:
    wish = Wish(alone=None, alone_allowed=True, skip=frozenset({"d1"}))
    assert choose([P1, D1, D2], {}, set(), wish) == Pair(P1, D2)
    assert isinstance(choose([P1, D1], {}, set(), wish), Nobody)


def test_without_leave_to_fall_back_there_is_a_pair_or_nobody() -> None:
    strict = Wish(alone=None, alone_allowed=False)
    assert choose([P1, D1], {}, set(), strict) == Pair(P1, D1)
    for groups in ([D1], [P1, OLD_D]):
        assert isinstance(choose(groups, {}, set(), strict), Nobody)


def test_equals_take_turns() -> None:
    table = GroupTable()
    table.replace((P1, P2, D1, D2))
    order = []
    for _ in range(4):
        route = table.choose(ANY)
        assert isinstance(route, Pair)
        with table.hold((route.prefill, route.decode)):
            order.append((route.prefill.engine, route.decode.engine))
    assert order == [("p1", "d1"), ("p2", "d2")] * 2


def test_in_flight_is_given_back_also_when_the_group_is_gone() -> None:
    table = GroupTable()
    table.replace((P1, D1))
    with table.hold((P1, D1)):
        table.replace((P1,))
        assert (table.in_flight("p1"), table.in_flight("d1")) == (1, 1)
    assert (table.in_flight("p1"), table.in_flight("d1")) == (0, 0)


def test_aside_ends_by_itself() -> None:
    now = [0.0]
    table = GroupTable(clock=lambda: now[0])
    table.replace((P1, D1))
    table.put_aside("p1")
    assert table.aside() == {"p1"}
    now[0] = ASIDE_SECONDS + 0.1
    assert table.aside() == set()
    assert table.choose(ANY) == Pair(P1, D1)


GROUPS = st.lists(
    st.builds(
        make,
        st.sampled_from(["prefill", "decode", "aggregated", "other"]),
        st.integers(0, 30).map(str),
        st.sampled_from(["r0", "r1", "r2"]),
        ready=st.booleans(),
        terminating=st.booleans(),
        sidecars=st.sampled_from([(), ("10.0.0.1:7400",)]),
    ),
    max_size=12,
    unique_by=lambda group: group.engine,
)
NAMES = st.integers(0, 30).map(str)


@given(
    groups=GROUPS,
    loads=st.dictionaries(NAMES, st.builds(Load, st.integers(0, 3), st.integers(0, 9))),
    aside=st.sets(NAMES),
    skip=st.frozensets(NAMES),
    alone=st.sampled_from([None, RouteReason.SHORT_PROMPT]),
    allowed=st.booleans(),
)
def test_every_choice_is_one_that_may_be_made(
    groups: list[Group],
    loads: dict[str, Load],
    aside: set[str],
    skip: frozenset[str],
    alone: RouteReason | None,
    allowed: bool,
) -> None:
    route = choose(groups, loads, aside, Wish(alone, allowed, skip))
    chosen = [route.prefill, route.decode] if isinstance(route, Pair) else []
    chosen = [route.group] if isinstance(route, Alone) else chosen
    usable = [group for group in groups if group.ready and not group.terminating and group.engine not in skip]
    assert all(group in usable for group in chosen)
    if isinstance(route, Pair):
        assert alone is None
        assert (route.prefill.role, route.decode.role) == ("prefill", "decode")
        assert route.prefill.revision == route.decode.revision
        assert route.prefill.engine not in aside
    if isinstance(route, Alone):
        assert route.group.role in ("decode", "aggregated")
        assert allowed or alone is not None
    if isinstance(route, Nobody) and (allowed or alone is not None):
        assert not any(group.role in ("decode", "aggregated") for group in usable)
