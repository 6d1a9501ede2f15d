"""Which layers who may bring: said when a transfer is opened, kept to when it is sealed."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_runtime.errors import Reason
from kvferry_runtime.wire.coverage import misplaced
from kvferry_runtime.wire.effects import Effect, Finished, Tell
from kvferry_runtime.wire.messages import Open, Reserve, Seal, SealLayer
from kvferry_runtime.wire.outgoing import Manifest, Offered
from kvferry_runtime.wire.receiver import IncomingTransfer, Wanted
from kvferry_runtime.wire.sender import OutgoingTransfer
from wire_world import World

ID = "ab" * 16
TOKENS = 6
HELD = range(4, 10)


@pytest.mark.parametrize(
    "stages",
    [
        [range(3)],
        [range(2), range(2, 3)],
        [range(1), range(1, 3), range(3, 4)],
        [range(5, 7), range(7, 8)],
        [range(4, 5), range(5, 6), range(6, 7), range(7, 8)],
    ],
    ids=str,
)
def test_any_stages_bring_each_layer_once(stages: list[range]) -> None:
    """Case 36: by global number, also where decode holds neither the first layer nor the last one."""
    world = World(stages)
    world.finish()
    world.check_end()
    assert world.reports == [Finished(None, "")]


@pytest.mark.parametrize(
    ("peers", "named"),
    [
        ({"p": HELD}, ""),
        ({"p": range(4, 7), "q": range(7, 10)}, ""),
        ({"q": range(7, 10), "p": range(4, 7)}, ""),
        ({"p": range(4, 7), "q": range(0)}, ""),
        ({"p": range(4, 7)}, "no peer has layers 7 to 9"),
        ({"p": range(5, 10)}, "no peer has layers 4 to 4"),
        ({"p": range(4, 6), "q": range(7, 10)}, "no peer has layers 6 to 6"),
        ({"p": range(4, 8), "q": range(7, 10)}, "p and q both have layer 7"),
        ({"p": HELD, "q": HELD}, "p and q both have layer 4"),
        ({"p": range(3, 7), "q": range(0)}, "p has layers 3 to 6, wanted are layers 4 to 9"),
        ({"p": range(4, 7), "q": range(7, 11)}, "q has layers 7 to 10, wanted are layers 4 to 9"),
    ],
)
def test_why_peers_cannot_bring_what_is_wanted(peers: Mapping[str, range], named: str) -> None:
    assert misplaced(peers, HELD) == named


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), min_size=1, max_size=4))
def test_peers_will_do_exactly_if_each_wanted_layer_is_there_once(found: list[tuple[int, int]]) -> None:
    peers = {str(number): range(start, start + count) for number, (start, count) in enumerate(found)}
    brought = sorted(layer for layers in peers.values() for layer in layers)
    assert (misplaced(peers, HELD) == "") is (brought == list(HELD))


def reserved(*peers: str) -> IncomingTransfer:
    d = IncomingTransfer(Wanted(ID, peers, HELD, 0, TOKENS, ("none",), 100.0, 0))
    d.start()
    for peer in peers:
        [message] = [effect.message for effect in d.connected(peer, 0.0) if isinstance(effect, Tell)]
        assert isinstance(message, Reserve) and message.layers == HELD
    return d


def opening(layers: range) -> Open:
    return Open(ID, 0, layers.start, len(layers), 0, "none", True)


def end(effects: list[Effect]) -> Finished | None:
    return next((effect for effect in effects if isinstance(effect, Finished)), None)


def test_a_gap_is_known_before_the_first_byte() -> None:
    d = reserved("p", "q")
    assert d.opened("p", opening(range(4, 7)), 0.0) == []
    failed = end(d.opened("q", opening(range(8, 10)), 0.0))
    assert failed is not None
    assert (failed.reason, failed.message) == (Reason.DENIED, "no peer has layers 7 to 7")


@pytest.mark.parametrize("sealed", [range(4, 8), range(5, 7), range(4, 6), range(7, 10), range(0)], ids=str)
def test_a_stage_that_seals_other_layers_than_its_own_is_refused(sealed: range) -> None:
    """Case 36."""
    d = reserved("p", "q")
    d.opened("p", opening(range(4, 7)), 0.0)
    d.opened("q", opening(range(7, 10)), 0.0)
    seal = Seal(ID, 0, len(sealed), 0, 0, 0, [SealLayer(layer, TOKENS, 1) for layer in sealed], -1)
    failed = end(d.sealed("p", seal, 0.0))
    assert failed is not None and failed.reason is Reason.CORRUPT
    assert "p: opened layers 4 to 6, sealed" in failed.message


@pytest.mark.parametrize(
    ("layers", "named"),
    [
        ([(4, TOKENS), (5, TOKENS)], ""),
        ([(4, TOKENS)], "None was sealed, (5, 6) was offered"),
        ([(4, TOKENS), (5, TOKENS), (6, TOKENS)], "(6, 6) was sealed, None was offered"),
        ([(4, TOKENS), (6, TOKENS)], "(6, 6) was sealed, (5, 6) was offered"),
        ([(4, TOKENS), (5, TOKENS - 1)], "(5, 5) was sealed, (5, 6) was offered"),
        ([(5, TOKENS), (4, TOKENS)], "(5, 6) was sealed, (4, 6) was offered"),
    ],
)
def test_an_engine_that_seals_something_else_than_it_offered_ends_its_transfer(
    layers: list[tuple[int, int]], named: str
) -> None:
    p = OutgoingTransfer(Offered(ID, range(4, 6), TOKENS, 0, True, 100.0, 0))
    p.announced(0, [1, 1], 0.0)
    failed = end(p.sealed(Manifest(2, tuple(SealLayer(layer, tokens, 1) for layer, tokens in layers), -1), 0.0))
    assert (failed is not None) is bool(named)
    if failed is not None:
        assert failed.reason is Reason.INTERNAL and named in failed.message
