"""Dialer and acceptor against each other, and against those who know too little."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from kvferry_runtime.wire.handshake import Acceptor, Agreed, Dialer, Party, Refusal, Refuse, Reply
from kvferry_runtime.wire.messages import AnyMessage, HelloAck, Ping, Proof, Ready, decode, encode

KEY = b"k" * 32
D = Party(b"d" * 16, "ns/d", {"model": "m", "kv.dtype": "bf16"}, ("none", "int8"), 4096, 8, True)
P = replace(D, boot_id=b"p" * 16, group="ns/p")


def dialer(party: Party = D, key: bytes = KEY) -> Dialer:
    return Dialer(party, key, b"1" * 16, lambda: b"data of d")


def acceptor(party: Party = P, key: bytes = KEY) -> Acceptor:
    return Acceptor(party, key, b"2" * 16, 77, lambda: b"data of p")


def shake(d: Dialer, p: Acceptor) -> tuple[list[Any], list[Any]]:
    """All outcomes of both sides but the replies, which are delivered through the codec."""
    ends: tuple[list[Any], list[Any]] = ([], [])
    waiting: list[tuple[int, AnyMessage]] = [(1, d.hello)]
    while waiting:
        to, message = waiting.pop(0)
        for outcome in (d, p)[to].received(decode(encode(message))):
            if isinstance(outcome, Reply):
                waiting.append((1 - to, outcome.message))
            else:
                ends[to].append(outcome)
                if isinstance(outcome, Refuse) and outcome.tell is not None:
                    waiting.append((1 - to, outcome.tell))
    return ends


def test_both_agree_on_the_same() -> None:
    (d,), (p,) = shake(dialer(), acceptor(replace(P, codecs=("int8", "fp8"), layerwise=False)))
    assert isinstance(d, Agreed) and isinstance(p, Agreed)
    assert d.session == p.session == 77
    assert d.codecs == p.codecs == ("int8",)
    assert d.layerwise is p.layerwise is False
    assert (d.group, p.group) == ("ns/p", "ns/d")
    assert (d.data_address, p.data_address) == (b"data of p", b"data of d")


@pytest.mark.parametrize(
    ("party", "refusal", "text"),
    [
        (replace(P, fingerprint={"model": "m", "kv.dtype": "fp8"}), Refusal.FINGERPRINT, "kv.dtype"),
        (replace(P, fingerprint={"model": "m"}), Refusal.FINGERPRINT, "kv.dtype"),
        (replace(P, codecs=("fp8",)), Refusal.FINGERPRINT, "codecs"),
        (replace(P, chunk_bytes=8192), Refusal.FINGERPRINT, "chunk_bytes"),
    ],
)
def test_a_difference_is_named_on_both_sides(party: Party, refusal: Refusal, text: str) -> None:
    (d,), (p,) = shake(dialer(), acceptor(party))
    assert isinstance(p, Refuse) and p.refusal is refusal and text in p.message
    assert isinstance(d, Refuse) and d.refusal is Refusal.BY_PEER and d.message == p.message and d.reason is p.reason


@pytest.mark.parametrize("side", ["dialer", "acceptor"])
def test_without_the_key_nothing_is_agreed(side: str) -> None:
    d = dialer(key=b"x" * 32) if side == "dialer" else dialer()
    p = acceptor(key=b"x" * 32) if side == "acceptor" else acceptor()
    ends = shake(d, p)
    assert not any(isinstance(end, Agreed) for both in ends for end in both)
    assert ends[0][0].refusal is Refusal.KEY


def test_a_proof_is_not_good_for_another_connection() -> None:
    """Neither replayed, nor reflected, nor after a change on the way."""
    d, p = dialer(), acceptor()
    (reply,) = p.received(d.hello)
    assert isinstance(reply, Reply) and isinstance(reply.message, HelloAck)
    (proof,) = d.received(reply.message)
    assert isinstance(proof, Reply) and isinstance(proof.message, Proof)
    other = Acceptor(P, KEY, b"3" * 16, 78, lambda: b"")
    other.received(d.hello)
    (refused,) = other.received(proof.message)
    assert isinstance(refused, Refuse) and refused.refusal is Refusal.KEY
    reflected = acceptor()
    reflected.received(d.hello)
    (refused,) = reflected.received(Proof(proof=reply.message.proof, data_address=b""))
    assert isinstance(refused, Refuse) and refused.refusal is Refusal.KEY
    (refused,) = dialer().received(msgspec.structs.replace(reply.message, session=5))
    assert isinstance(refused, Refuse) and refused.refusal is Refusal.KEY


def test_another_version_says_so() -> None:
    d = dialer()
    d.hello = msgspec.structs.replace(d.hello, version=99)
    (_,), (p,) = shake(d, acceptor())
    assert isinstance(p, Refuse) and p.refusal is Refusal.VERSION and "99" in p.message


@pytest.mark.parametrize("message", [Ping(b"b" * 16, 1, 0, 0), Proof(b"p" * 32, b""), Ready(b"")])
def test_messages_out_of_turn_end_it(message: AnyMessage) -> None:
    for machine in (dialer(), acceptor()):
        (refused,) = machine.received(message)
        assert isinstance(refused, Refuse) and refused.refusal is Refusal.PROTOCOL
        (again,) = machine.received(message)
        assert isinstance(again, Refuse)
