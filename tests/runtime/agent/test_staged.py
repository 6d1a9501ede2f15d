"""One prompt for several stages of decode, as an engine sees it: one handle, one last word."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from kv_settings import Outcomes, transfer_params
from kvferry_contract.transfer import TransferParams, stage_transfer
from kvferry_runtime.agent.base import AgentState, FetchHandle, KvAgent, KvMemory, LoadResult, SendHandle
from kvferry_runtime.agent.staged import fetch_stage, offer_stages
from kvferry_runtime.codec.base import Rows
from kvferry_runtime.errors import KvferryError, LayoutError, Reason, RingUnavailable, TransferFailed
from kvferry_runtime.layout import KvLayout

ID = transfer_params("prefill").transfer_id
DECODE = [range(3), range(3, 5), range(5, 9)]
LOST = TransferFailed(Reason.PEER_LOST, "reset")
TIMED_OUT = TransferFailed(Reason.DEADLINE, "late")


class Memory:
    def rows(self, layer: int, part: int, token_start: int, token_stop: int) -> Rows:
        raise AssertionError("nobody reads it here")


@dataclass
class Offer(SendHandle):
    params: TransferParams
    layers: range | None
    done: Callable[[TransferFailed | None], None]
    said: list[object] = field(default_factory=list)

    def layer_final(self, layer: int, token_start: int, token_stop: int) -> None:
        self.said.append((layer, token_start, token_stop))

    def seal(self, first_token: int | None) -> None:
        self.said.append(first_token)

    def cancel(self, reason: str) -> None:
        self.said.append(reason)


class Fetched(FetchHandle):
    def cancel(self, reason: str) -> None:
        raise AssertionError("not asked for here")


class Agent(KvAgent):
    """Remembers what it is asked for. refused: offers from this one on are."""

    def __init__(self, refused: int = 99, error: KvferryError | None = None) -> None:
        self.offers: list[Offer] = []
        self.fetches: list[TransferParams] = []
        self._refused = refused
        self._error = error or RingUnavailable("this agent is closed")

    def start(self, layout: KvLayout, fingerprint: Mapping[str, str], engine_age: Callable[[], float]) -> None:
        raise AssertionError("not asked for here")

    def offer(
        self,
        params: TransferParams,
        memory: KvMemory,
        tokens: int,
        on_done: Callable[[TransferFailed | None], None],
        layers: range | None = None,
    ) -> SendHandle:
        if len(self.offers) >= self._refused:
            raise self._error
        self.offers.append(Offer(params, layers, on_done))
        return self.offers[-1]

    def fetch(
        self,
        params: TransferParams,
        memory: KvMemory,
        token_start: int,
        token_stop: int,
        on_done: Callable[[LoadResult | TransferFailed], None],
    ) -> FetchHandle:
        self.fetches.append(params)
        return Fetched()

    def state(self) -> AgentState:
        raise AssertionError("not asked for here")

    def close(self, timeout: float) -> None:
        raise AssertionError("not asked for here")


def offered(held: range, agent: Agent) -> tuple[SendHandle, Outcomes]:
    done = Outcomes()
    return offer_stages(agent, transfer_params("prefill"), Memory(), 20, held, DECODE, done), done


def test_each_stage_of_decode_gets_what_it_holds_under_its_own_id() -> None:
    """Case 36."""
    agent = Agent()
    offered(range(2, 7), agent)
    assert [(offer.params.transfer_id, offer.layers) for offer in agent.offers] == [
        (stage_transfer(ID, 0, 3), range(2, 3)),
        (stage_transfer(ID, 1, 3), range(3, 5)),
        (stage_transfer(ID, 2, 3), range(5, 7)),
    ]


def test_one_stage_of_decode_needs_nothing_of_this() -> None:
    agent, done = Agent(), Outcomes()
    send = offer_stages(agent, transfer_params("prefill"), Memory(), 20, range(2, 7), [range(9)], done)
    [offer] = agent.offers
    assert send is offer and (offer.params.transfer_id, offer.layers) == (ID, None)


@pytest.mark.parametrize("held", [range(8, 10), range(9, 12)])
def test_layers_that_no_stage_of_decode_holds_are_refused(held: range) -> None:
    with pytest.raises(LayoutError, match=f"layers {held.start} to {held.stop - 1}.*layers 5 to 8"):
        offered(held, Agent())


def test_a_layer_is_announced_to_the_stage_that_holds_it() -> None:
    agent = Agent()
    send, _ = offered(range(2, 7), agent)
    for start, stop in ((0, 10), (10, 20)):
        for layer in range(2, 7):
            send.layer_final(layer, start, stop)
    send.seal(5)
    for offer in agent.offers:
        assert offer.layers is not None
        assert offer.said == [(layer, *span) for span in ((0, 10), (10, 20)) for layer in offer.layers] + [5]
    with pytest.raises(LayoutError, match="layer 7 is final, offered are layers 2 to 2, layers 3 to 4, layers 5 to 6"):
        send.layer_final(7, 0, 10)


def test_the_engine_hears_once_when_every_stage_has_all() -> None:
    agent = Agent()
    _, done = offered(range(2, 7), agent)
    for offer in agent.offers:
        assert done.calls == 0
        offer.done(None)
    assert done.wait() is None and done.calls == 1


def test_the_first_failure_ends_the_others_and_is_what_the_engine_hears() -> None:
    agent = Agent()
    _, done = offered(range(2, 7), agent)
    first, second, third = agent.offers
    first.done(None)
    second.done(LOST)
    assert (third.said, done.calls) == (["reset"], 0)
    third.done(TIMED_OUT)
    assert done.wait() is LOST and done.calls == 1
    assert third.said == ["reset"]


def test_a_cancel_reaches_every_stage() -> None:
    agent = Agent()
    send, _ = offered(range(2, 7), agent)
    send.cancel("client went away")
    assert [offer.said for offer in agent.offers] == [["client went away"]] * 3


def test_an_agent_that_closes_between_two_offers_gives_the_memory_back_once() -> None:
    """What was offered before is cancelled, and only its end frees the memory."""
    agent = Agent(refused=2)
    send, done = offered(range(2, 7), agent)
    assert [offer.said for offer in agent.offers] == [["this agent is closed"]] * 2
    send.layer_final(6, 0, 20)
    agent.offers[0].done(TransferFailed(Reason.CANCELLED, "this agent is closed"))
    assert done.calls == 0
    agent.offers[1].done(TransferFailed(Reason.CANCELLED, "this agent is closed"))
    failed = done.wait()
    assert (failed.reason, done.calls) == (Reason.NO_CONNECTOR, 1)


def test_where_nothing_could_be_offered_the_engine_is_told_at_once() -> None:
    with pytest.raises(RingUnavailable):
        offered(range(2, 7), Agent(refused=0))


class Hasty(Agent):
    """Without a sidecar an offer may end before the next one is made."""

    def offer(
        self,
        params: TransferParams,
        memory: KvMemory,
        tokens: int,
        on_done: Callable[[TransferFailed | None], None],
        layers: range | None = None,
    ) -> SendHandle:
        made = super().offer(params, memory, tokens, on_done, layers)
        if len(self.offers) == 1:
            on_done(LOST)
        return made


def test_an_offer_that_ends_before_the_next_is_made() -> None:
    agent = Hasty()
    _, done = offered(range(2, 7), agent)
    assert [offer.said for offer in agent.offers[1:]] == [["reset"]] * 2
    for offer in agent.offers[1:]:
        offer.done(TransferFailed(Reason.CANCELLED, "reset"))
    assert done.wait() is LOST and done.calls == 1


PEERS = ("p0:7400", "p1:7400", "p2:7400")


@pytest.mark.parametrize(
    ("stage", "decode", "prefill", "peers"),
    [
        (0, [range(9)], [range(4), range(4, 6), range(6, 9)], PEERS),
        (0, [range(5), range(5, 9)], [range(4), range(4, 6), range(6, 9)], PEERS[:2]),
        (1, [range(5), range(5, 9)], [range(4), range(4, 6), range(6, 9)], PEERS[1:]),
        (2, [range(3), range(3, 6), range(6, 9)], [range(3), range(3, 6), range(6, 9)], PEERS[2:]),
    ],
)
def test_a_stage_of_decode_loads_from_the_stages_that_have_its_layers(
    stage: int, decode: list[range], prefill: list[range], peers: tuple[str, ...]
) -> None:
    agent = Agent()
    fetch_stage(agent, TransferParams(ID, "decode", PEERS, 1000), Memory(), 0, 20, stage, decode, prefill, Outcomes())
    assert agent.fetches == [TransferParams(stage_transfer(ID, stage, len(decode)), "decode", peers, 1000)]


@pytest.mark.parametrize("peers", [PEERS[:1], PEERS])
def test_a_router_that_knows_other_stages_is_refused_with_both_numbers(peers: tuple[str, ...]) -> None:
    prefill = [range(4), range(4, 9)]
    with pytest.raises(LayoutError, match=f"{len(peers)} peers, prefill has 2 stages"):
        fetch_stage(
            Agent(), TransferParams(ID, "decode", peers, 1000), Memory(), 0, 20, 0, [range(9)], prefill, Outcomes()
        )
