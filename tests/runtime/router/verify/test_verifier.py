"""A router that proves its pairs: canaries through stub engines, records from stub sidecars, and what it reports."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from kvferry_contract import endpoints, pairs
from kvferry_contract.config import TransportKind
from kvferry_contract.endpoints import Group
from kvferry_contract.pairs import Pair, PairState, Report
from kvferry_contract.transfer import FIELD, stage_transfer
from kvferry_runtime.router.stub import FailureKind, StubFailure, StubScript
from routed_stubs import MODEL, Routed, group, publish, routed, until
from stub_sidecar import COMMITTED, StubSidecar, failed

PROMPT = {"model": MODEL, "prompt": [1, 2, 3]}
WELL = {"mode": "transferred", "reason": ""}
RECOMPUTED = {"mode": "recomputed", "reason": "peer_unreachable"}


@dataclass
class Proving:
    routed: Routed
    prefill: StubSidecar
    decode: StubSidecar

    async def report(self) -> Report:
        return pairs.load((await self.routed.get("/v1/pairs"))[1])

    async def pair(self) -> Pair:
        [found] = (await self.report()).pairs
        return found

    async def until(self, condition: Callable[[Pair], bool]) -> Pair:
        async def holds() -> bool:
            return condition(await self.pair())

        await until(holds)
        return await self.pair()

    async def canaries(self) -> dict[str, float]:
        """By result and reason."""
        return await self.series("kvferry_router_canaries_total")

    async def series(self, name: str) -> dict[str, float]:
        _, text = await self.routed.get("/metrics")
        lines = (line.rsplit(" ", 1) for line in text.splitlines() if line.startswith(name + "{"))
        return {key.removeprefix(name): float(value) for key, value in lines if float(value)}


@asynccontextmanager
async def proving(folder: Path, result: dict[str, Any] | None = WELL, **options: Any) -> AsyncIterator[Proving]:
    """One prefill and one decode group, each with a sidecar; result: what the decode engine says of itself."""
    async with AsyncExitStack() as stack:
        prefill = await stack.enter_async_context(StubSidecar("small-prefill-0"))
        decode = await stack.enter_async_context(StubSidecar("small-decode-0"))
        sides = {"prefill": prefill, "decode": decode}

        def groups(prefills: list[Any], decodes: list[Any]) -> list[Group]:
            plain = [group(prefills[0], "prefill"), group(decodes[0], "decode")]
            return [replace(each, sidecar_http=(sides[each.role].address,)) for each in plain]

        known: dict[str, Any] = {"decodes": [StubScript(result=result)], "verify_interval_seconds": 30.0}
        state = await stack.enter_async_context(routed(folder, groups=groups, **known | options))
        yield Proving(state, prefill, decode)


async def test_a_pair_is_proven_by_a_request_of_the_routers_own_that_no_client_is_billed_for(tmp_path: Path) -> None:
    async with proving(tmp_path) as world:
        pair = await world.until(lambda pair: pair.state is PairState.VERIFIED)
        assert (pair.prefill, pair.decode, pair.revision) == ("small-prefill-0", "small-decode-0", "r1")
        assert (pair.reason, pair.message) == ("", "")
        assert (pair.bytes_raw, pair.bytes_wire, pair.chunks, pair.codec) == (4096, 2048, 4, "fp8")
        assert pair.lanes == ("tcp:eth0",)
        [prefill], [decode] = world.routed.prefills, world.routed.decodes
        asked = [prefill.record.requests[0], decode.record.requests[0]]
        assert {body[FIELD]["transfer_id"] for body in asked} == {pair.transfer_id}
        assert {body["prompt"] for body in asked} == {asked[0]["prompt"]} and asked[1]["max_tokens"] <= 2
        assert prefill.record.headers[0]["x-kvferry-canary"] == decode.record.headers[0]["x-kvferry-canary"] == "1"
        assert await world.canaries() == {'{reason="",result="verified"}': 1}
        assert await world.series("kvferry_router_pairs") == {'{state="verified"}': 1}
        assert await world.routed.counted() == {}
        assert not any((await world.report()).routed.values())
        await world.routed.post(PROMPT)
        assert (await world.report()).routed["disaggregated"] == 1
        assert "x-kvferry-canary" not in decode.record.headers[-1]


@asynccontextmanager
async def staged(folder: Path, **options: Any) -> AsyncIterator[tuple[Proving, list[StubSidecar], list[StubSidecar]]]:
    """One prefill and one decode group of two stages each; stage n of decode loads from stage n of prefill."""
    peers = ("127.0.0.1:7400", "127.0.0.1:7500")
    async with AsyncExitStack() as stack:
        sides = {
            role: [await stack.enter_async_context(StubSidecar(f"small-{role}-s{n}-0")) for n in (0, 1)]
            for role in ("prefill", "decode")
        }
        for stage, peer in enumerate(peers):
            figures = {"peer": peer, "digest": f"{stage:016x}", "lanes": [f"tcp:eth{stage}"]}
            for role in sides:
                sides[role][stage].record = COMMITTED | figures
                sides[role][stage].state = {"boot_id": "first", "totals": {"sent": stage + 1}}

        def groups(prefills: list[Any], decodes: list[Any]) -> list[Group]:
            plain = [group(prefills[0], "prefill", sidecars=peers), group(decodes[0], "decode", sidecars=peers)]
            return [replace(each, sidecar_http=tuple(one.address for one in sides[each.role])) for each in plain]

        known: dict[str, Any] = {"decodes": [StubScript(result=WELL)], "verify_interval_seconds": 30.0}
        state = await stack.enter_async_context(routed(folder, groups=groups, **known | options))
        yield Proving(state, sides["prefill"][0], sides["decode"][0]), sides["prefill"], sides["decode"]


async def test_a_pair_of_groups_with_stages_is_proven_at_every_stage(tmp_path: Path) -> None:
    async with staged(tmp_path) as (world, prefills, decodes):
        pair = await world.until(lambda pair: pair.state is PairState.VERIFIED)
        assert (pair.prefill, pair.decode) == ("small-prefill-0", "small-decode-0")
        assert (pair.bytes_raw, pair.bytes_wire, pair.chunks, pair.codec) == (8192, 4096, 8, "fp8")
        assert pair.lanes == ("tcp:eth0", "tcp:eth1")
        for stage in (0, 1):
            asked = {stage_transfer(pair.transfer_id, stage, 2)}
            assert set(prefills[stage].asked) == set(decodes[stage].asked) == asked
        [prefill], [decode] = world.routed.prefills, world.routed.decodes
        assert prefill.record.requests[0][FIELD]["peers"] == []
        assert decode.record.requests[0][FIELD]["peers"] == ["127.0.0.1:7400", "127.0.0.1:7500"]
        told = {(facts.pod, facts.role, facts.sent) for facts in (await world.report()).sidecars}
    assert told == {(f"small-{role}-s{n}-0", role, n + 1) for role in ("prefill", "decode") for n in (0, 1)}


@pytest.mark.parametrize(
    ("role", "record", "reason", "said"),
    [
        ("prefill", None, "corrupt", "prefill stage 1 has no record of what it sent to decode stage 1"),
        ("decode", None, "corrupt", "decode stage 1 has no record of the transfer"),
        ("decode", failed("peer_lost", "stage 1 is gone"), "peer_lost", "stage 1 is gone"),
        ("decode", COMMITTED | {"peer": "127.0.0.1:7500", "digest": "ff"}, "corrupt", "ends of decode stage 1 differ"),
    ],
)
async def test_one_stage_that_proves_nothing_fails_the_pair(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    role: str,
    record: dict[str, Any] | None,
    reason: str,
    said: str,
) -> None:
    monkeypatch.setattr("kvferry_runtime.router.verify.canary.RECORD_SECONDS", 0.2)
    async with staged(tmp_path) as (world, prefills, decodes):
        (prefills if role == "prefill" else decodes)[1].record = record
        pair = await world.until(lambda pair: pair.state is PairState.FAILED)
    assert pair.reason == reason and said in pair.message


async def test_a_pod_that_takes_the_place_of_a_later_stage_has_its_pair_proven_again(tmp_path: Path) -> None:
    async with staged(tmp_path) as (world, _, decodes), StubSidecar("small-decode-s1-0") as replacement:
        first = await world.until(lambda pair: pair.state is PairState.VERIFIED)
        replacement.record = decodes[1].record
        known = endpoints.load(world.routed.endpoints.read_text())
        place = (decodes[0].address, replacement.address)
        publish(
            world.routed.endpoints,
            [replace(each, sidecar_http=place) if each.role == "decode" else each for each in known],
        )
        await world.until(lambda pair: pair.transfer_id not in ("", first.transfer_id))
        assert replacement.asked


async def test_two_canaries_never_ask_the_same(tmp_path: Path) -> None:
    async with proving(tmp_path, RECOMPUTED) as world:
        [decode] = world.routed.decodes
        await until(lambda: len(decode.record.requests) >= 2)
        first, second = (body["prompt"] for body in decode.record.requests[:2])
    assert first.split()[0] != second.split()[0], "they differ from their first words on, for prefix caches"


async def test_a_failed_transfer_is_reported_with_its_reason_until_it_works_again(tmp_path: Path) -> None:
    async with proving(tmp_path, RECOMPUTED) as world:
        world.decode.record = failed("peer_unreachable", "10.0.0.1:7400: refused")
        pair = await world.until(lambda pair: pair.state is PairState.FAILED)
        assert (pair.reason, pair.message) == ("peer_unreachable", "10.0.0.1:7400: refused")
        world.decode.record, world.routed.decodes[0].script.result = dict(COMMITTED), WELL
        pair = await world.until(lambda pair: pair.state is PairState.VERIFIED)
        assert pair.reason == pair.message == ""


async def test_ends_that_recorded_different_bytes_are_no_proof(tmp_path: Path) -> None:
    async with proving(tmp_path) as world:
        world.decode.record = COMMITTED | {"digest": "ffffffffffffffff"}
        pair = await world.until(lambda pair: pair.reason == "corrupt")
        assert pair.state is PairState.FAILED and "ffffffffffffffff" in pair.message


async def test_an_engine_without_our_connector_is_named(tmp_path: Path) -> None:
    async with proving(tmp_path, None) as world:
        world.prefill.record = world.decode.record = None
        pair = await world.until(lambda pair: pair.reason == "no_connector")
        assert pair.state is PairState.FAILED and "connector" in pair.message


async def test_an_engine_that_says_nothing_but_fetched_is_proven_by_records(tmp_path: Path) -> None:
    async with proving(tmp_path, None) as world:
        await world.until(lambda pair: pair.state is PairState.VERIFIED)


async def test_a_policy_that_fails_requests_tells_the_reason_by_its_error(tmp_path: Path) -> None:
    error = {"message": "the KV cache did not arrive", "type": "transfer_failed", "code": "fingerprint_mismatch"}
    refusing = StubScript(failure=StubFailure(FailureKind.STATUS, status=502, error=error))
    async with proving(tmp_path, decodes=[refusing]) as world:
        pair = await world.until(lambda pair: pair.reason == "fingerprint_mismatch")
        assert "did not arrive" in pair.message


async def test_an_engine_that_is_away_says_nothing_of_the_pair(tmp_path: Path) -> None:
    gone = StubScript(failure=StubFailure(FailureKind.STATUS, status=503))
    async with proving(tmp_path, decodes=[gone]) as world:
        pair = await world.until(lambda pair: bool(pair.message))
        assert (pair.state, pair.reason) == (PairState.PENDING, "") and "scripted failure" in pair.message
        assert set(await world.canaries()) == {'{reason="",result="undecided"}'}


async def test_other_lanes_than_asked_for_are_reported(tmp_path: Path) -> None:
    async with proving(tmp_path, transport=TransportKind.RDMA) as world:
        pair = await world.until(lambda pair: pair.reason == "fell_back")
        assert (pair.state, pair.lanes, pair.bytes_raw) == (PairState.FAILED, ("tcp:eth0",), 4096)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_whose_kv_did_not_arrive_has_its_pair_proven_again(tmp_path: Path, stream: bool) -> None:
    async with proving(tmp_path) as world:
        await world.until(lambda pair: pair.state is PairState.VERIFIED)
        [decode] = world.routed.decodes
        decode.script.result = RECOMPUTED
        await (world.routed.stream({**PROMPT, "stream": True}) if stream else world.routed.post(PROMPT))
        await world.until(lambda pair: pair.state is PairState.FAILED)


async def test_a_restarted_sidecar_has_its_pair_proven_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvferry_runtime.router.verify.verifier.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("kvferry_runtime.router.verify.verifier.LEAST_LOOK_SECONDS", 0.05)
    async with proving(tmp_path) as world:
        first = await world.until(lambda pair: pair.state is PairState.VERIFIED)
        world.decode.state = {"boot_id": "second"}
        world.decode.record = COMMITTED | {"digest": "ffffffffffffffff"}
        await world.until(lambda pair: pair.reason == "corrupt")
        world.decode.record, world.decode.state = dict(COMMITTED), {"boot_id": "third"}
        again = await world.until(lambda pair: pair.state is PairState.VERIFIED)
        assert again.transfer_id != first.transfer_id


async def test_the_proof_of_a_sidecar_that_was_there_before_says_nothing_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvferry_runtime.router.verify.verifier.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("kvferry_runtime.router.verify.verifier.LEAST_LOOK_SECONDS", 0.05)
    async with proving(tmp_path) as world:
        await world.until(lambda pair: pair.state is PairState.VERIFIED)
        world.routed.decodes[0].script.failure = StubFailure(FailureKind.STATUS, status=503)
        world.decode.state = {"boot_id": "second"}
        pair = await world.until(lambda pair: pair.state is PairState.PENDING)
        assert pair.bytes_raw == 0
        await world.until(lambda pair: "scripted failure" in pair.message)


@pytest.mark.parametrize("settings", [{"verify_interval_seconds": 0.0}, {"disaggregation": False}])
async def test_switched_off_no_canary_is_sent_and_sidecars_are_still_told_of(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    async with proving(tmp_path, **settings) as world:
        world.decode.state |= {"fingerprint": "abcd", "memlock_bytes": 65536, "devices": ["mlx5_0"]}

        async def told() -> bool:
            return len((await world.report()).sidecars) == 2

        await until(told)
        assert (await world.pair()).state is PairState.PENDING
        assert not world.routed.prefills[0].record.requests and await world.canaries() == {}


async def test_sidecars_facts_are_those_that_they_tell(tmp_path: Path) -> None:
    async with proving(tmp_path) as world:
        totals = {"sent": 7, "bytes_raw": 100, "bytes_wire": 50, "wire_seconds": 2.0, "hidden_seconds": 1.5}
        told = {"fingerprint": "abcd", "memlock_bytes": None, "devices": ["mlx5_0"], "lanes": ["rc_mlx5:mlx5_0:1"]}
        world.prefill.state = {"boot_id": "first", **told, "totals": totals, "what comes later": 1}
        world.decode.state = {"nonsense": True}
        await world.until(lambda pair: pair.state is PairState.VERIFIED)
        known = endpoints.load(world.routed.endpoints.read_text())
        publish(world.routed.endpoints, [*known, group("127.0.0.1:9", "decode", 7)])

        async def told_of_one() -> bool:
            return [facts.sent for facts in (await world.report()).sidecars] == [7]

        await until(told_of_one)
        [facts] = (await world.report()).sidecars
        assert (facts.pod, facts.role, facts.fingerprint) == ("small-prefill-0", "prefill", "abcd")
        assert (facts.memlock_bytes, facts.devices, facts.lanes) == (None, ("mlx5_0",), ("rc_mlx5:mlx5_0:1",))
        assert (facts.bytes_raw, facts.bytes_wire, facts.wire_seconds, facts.hidden_seconds) == (100, 50, 2.0, 1.5)
        assert facts.max_relative_error is None


async def test_a_silent_sidecar_has_no_facts_and_its_pair_keeps_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvferry_runtime.router.verify.verifier.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("kvferry_runtime.router.verify.verifier.LEAST_LOOK_SECONDS", 0.05)
    async with proving(tmp_path) as world:
        await world.until(lambda pair: pair.state is PairState.VERIFIED)
        await world.decode.stop()

        async def left_out() -> bool:
            return [facts.pod for facts in (await world.report()).sidecars] == ["small-prefill-0"]

        await until(left_out)
        assert (await world.pair()).state is PairState.VERIFIED


async def test_pairs_of_groups_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    async with proving(tmp_path) as world:
        await world.until(lambda pair: pair.state is PairState.VERIFIED)
        publish(world.routed.endpoints, [])

        async def gone() -> bool:
            return (await world.report()).pairs == ()

        await until(gone)
        assert await world.series("kvferry_router_pairs") == {}
        assert (await world.report()).sidecars == ()


async def test_a_router_that_stops_withdraws_its_canary(tmp_path: Path) -> None:
    async with proving(tmp_path, decodes=[StubScript(first_delay=60.0)]) as world:
        [prefill], [decode] = world.routed.prefills, world.routed.decodes
        await until(lambda: decode.record.open)
    assert decode.record.abandoned == 1
    assert prefill.record.withdrawn == [prefill.record.requests[0][FIELD]["transfer_id"]]
