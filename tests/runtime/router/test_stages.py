"""Groups of several pipeline stages: one engine is asked, all sidecars are told of, none serves without the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvferry_contract.endpoints import Group
from kvferry_contract.transfer import FIELD
from kvferry_runtime.router.group_table import GroupTable
from kvferry_runtime.router.pairing import Alone, Nobody, Pair, Wish
from kvferry_runtime.router.reasons import RouteReason
from kvferry_runtime.router.slice_view import SliceView
from kvferry_runtime.router.slices import groups_of
from kvferry_runtime.router.stub import FailureKind, StubFailure, StubScript
from routed_stubs import MODEL, Routed, group, publish, routed, until
from stage_slices import event, listed, stage_slice

PROMPT = {"model": MODEL, "prompt": [1, 2, 3]}
PREFILL = ("10.0.0.1:7400", "10.0.0.2:7400", "10.0.0.3:7400")
DECODE = ("10.0.1.1:7400", "10.0.1.2:7400")
ANY = Wish(alone=None, alone_allowed=True)


def _staged(prefills: list[Any], decodes: list[Any]) -> list[Group]:
    return [group(prefills[0], "prefill", sidecars=PREFILL), group(decodes[0], "decode", sidecars=DECODE)]


async def _state_of(state: Routed, role: str, expected: str) -> None:
    async def seen() -> bool:
        async with state.session.get(state.url("/v1/state")) as response:
            groups = (await response.json())["groups"]
        return [each["state"] for each in groups if each["role"] == role] == [expected]

    await until(seen)


async def test_decode_is_told_of_every_prefill_stage_in_their_order(tmp_path: Path) -> None:
    async with routed(tmp_path, groups=_staged) as state:
        assert (await state.post(PROMPT))[0] == 200
        [prefill], [decode] = state.prefills[0].record.requests, state.decodes[0].record.requests
    assert decode[FIELD]["peers"] == list(PREFILL)
    assert prefill[FIELD]["peers"] == [] and prefill[FIELD]["transfer_id"] == decode[FIELD]["transfer_id"]


async def test_what_prefill_keeps_in_vain_is_withdrawn_at_its_first_stage_under_the_id_of_the_request(
    tmp_path: Path,
) -> None:
    recomputing = StubScript(result={"mode": "recomputed", "reason": "peer_lost"})
    async with routed(tmp_path, groups=_staged, decodes=[recomputing]) as state:
        assert (await state.post(PROMPT))[0] == 200
        record = state.prefills[0].record
        await until(lambda: record.withdrawn)
    assert record.withdrawn == [record.requests[0][FIELD]["transfer_id"]]


async def test_a_group_that_loses_a_stage_gets_no_request_until_it_is_whole_again(tmp_path: Path) -> None:
    async with routed(tmp_path, groups=_staged) as state:
        whole = _staged(state.prefills, state.decodes)
        lost = group(state.prefills[0], "prefill", sidecars=PREFILL, ready=False)
        publish(state.endpoints, [lost, whole[1]])
        await _state_of(state, "prefill", "unready")
        _, body, _ = await state.post(PROMPT)
        assert body["kvferry"]["route_reason"] == "no_prefill" and not state.prefills[0].record.requests
        publish(state.endpoints, whole)
        await _state_of(state, "prefill", "ready")
        _, body, _ = await state.post(PROMPT)
        assert body["kvferry"]["route_reason"] == "disaggregated"


async def test_a_first_stage_whose_group_broke_is_answered_for_by_decode(tmp_path: Path) -> None:
    """The first stage fails what is open when a later one is gone; the client gets its answer all the same."""
    broken = {"message": "stage 1 of this group is gone", "type": "server_error", "code": "group_lost"}
    ending = StubScript(failure=StubFailure(FailureKind.STATUS, status=503, error=broken))
    async with routed(tmp_path, groups=_staged, prefills=[ending]) as state:
        status, body, _ = await state.post(PROMPT)
    assert (status, body["choices"][0]["text"]) == (200, "t11 t12 t13 t14 ")


def test_a_dead_stage_takes_its_group_out_of_the_table_with_the_event_that_tells_of_it() -> None:
    pieces = [stage_slice("prefill", stage, 0, 1) for stage in (0, 1)]
    known = SliceView(listed(*pieces, stage_slice("decode", 0, 0), stage_slice("decode", 1, 0)))
    table = GroupTable()

    def chosen(wish: Wish = ANY) -> Any:
        table.replace(groups_of(known.slices))
        return table.choose(wish)

    route = chosen()
    assert isinstance(route, Pair) and route.prefill.sidecars == ("10.0.0.0:7400", "10.0.1.0:7400")
    changes = (
        stage_slice("prefill", 1, 1),  # the pod of group 0 is gone
        stage_slice("prefill", 1, 0, 1, serving={0: False}),
        stage_slice("prefill", 1, 0, 1, terminating={0: True}),
    )
    for change in changes:
        assert known.take(event("MODIFIED", change))
        route = chosen()
        assert isinstance(route, Pair) and route.prefill.ordinal == 1
    assert known.take(event("MODIFIED", stage_slice("prefill", 1, 1, serving={1: False})))
    route = chosen()
    assert isinstance(route, Alone) and route.reason is RouteReason.NO_PREFILL
    assert known.take(event("MODIFIED", stage_slice("decode", 1)))
    assert isinstance(chosen(), Nobody)
    for whole in (*pieces, stage_slice("decode", 1, 0)):
        known.take(event("MODIFIED", whole))
    assert isinstance(chosen(), Pair)


def test_groups_of_unlike_splits_are_pairs() -> None:
    slices = SliceView(listed(*(stage_slice("prefill", n, 0) for n in range(3)), stage_slice("decode", 0, 0))).slices
    table = GroupTable()
    table.replace(groups_of(slices))
    route = table.choose(ANY)
    assert isinstance(route, Pair)
    assert (len(route.prefill.sidecars), len(route.decode.sidecars)) == (3, 1)
