"""A sidecar that does what a test tells it: real ring and real socket, no network and no will of its own."""

from __future__ import annotations

import select
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from kvferry_contract import paths
from kvferry_runtime.ring import packets
from kvferry_runtime.ring.memory import RingMemory
from kvferry_runtime.ring.messages import (
    MAX_PACKET_BYTES,
    PROTOCOL_VERSION,
    Alive,
    Arrived,
    Attach,
    Attached,
    Beat,
    ChunksReady,
    Consumed,
    Fetch,
    Fill,
    Filled,
    FromAgent,
    FromSidecar,
    Loaded,
    Offer,
    SealOffer,
    Sent,
)

Message = TypeVar("Message", bound=FromAgent)
TIMEOUT_S = 120.0


class AgentGone(Exception):
    """The agent closed its socket."""


class ScriptedSidecar:
    """One run of a sidecar. Used as a context: leaving it is its death."""

    def __init__(self, directory: Path, slots: int = 4, chunk_bytes: int = 4096, boot_id: str = "boot-1") -> None:
        self.ring = RingMemory.create(directory, slots, chunk_bytes, boot_id)
        path = directory / paths.RING_SOCKET
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.settimeout(TIMEOUT_S)
        self._listener.bind(str(path))
        self._listener.listen(4)
        self._socket: socket.socket | None = None
        self._unread: list[FromAgent] = []

    def __enter__(self) -> ScriptedSidecar:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.die()

    def accept(self) -> Attach:
        """Wait for an agent and read its `Attach`, without an answer."""
        if self._socket is not None:
            self._socket.close()
        self._unread.clear()
        self._socket, _ = self._listener.accept()
        self._socket.settimeout(TIMEOUT_S)
        return self.expect(Attach)

    def attach(self) -> Attach:
        """Wait for an agent and accept it."""
        attach = self.accept()
        ring = self.ring
        self.send(Attached(PROTOCOL_VERSION, ring.boot_id, ring.slots, ring.chunk_bytes))
        return attach

    def send(self, message: FromSidecar) -> None:
        self.send_packet(packets.encode(message))

    def send_packet(self, packet: bytes) -> None:
        assert self._socket is not None
        self._socket.send(packet)

    def receive(self) -> FromAgent:
        """The next message that is no `Beat`; those are answered."""
        assert self._socket is not None
        while True:
            if not self._unread:
                packet = self._socket.recv(MAX_PACKET_BYTES + 1)
                if not packet:
                    raise AgentGone
                self._unread = packets.decode_from_agent(packet)
            message = self._unread.pop(0)
            if not isinstance(message, Beat):
                return message
            self.send(Alive())

    def expect(self, kind: type[Message]) -> Message:
        message = self.receive()
        assert isinstance(message, kind), message
        return message

    def hang_up(self) -> None:
        """Send the agent away; another one, or the same, can attach."""
        assert self._socket is not None
        self._socket.close()
        self._socket = None

    def called_within(self, seconds: float) -> bool:
        """Whether an agent connects within this time, which `accept` then accepts."""
        return bool(select.select([self._listener], [], [], seconds)[0])

    def has_agent(self) -> bool:
        """Whether the agent keeps its socket open. What it said is not read."""
        assert self._socket is not None
        poller = select.poll()
        poller.register(self._socket, 0)
        return not poller.poll(0)

    def die(self) -> None:
        """As after SIGKILL: the sockets close, the files stay."""
        if self._socket is not None:
            self._socket.close()
        self._listener.close()
        self.ring.close()


class Relay(threading.Thread):
    """Joins two scripted sidecars, each with its agent attached, and moves one transfer from one to the other."""

    def __init__(self, prefill: ScriptedSidecar, decode: ScriptedSidecar) -> None:
        super().__init__(daemon=True)
        self._prefill = prefill
        self._decode = decode
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._relay()
        except BaseException as error:
            self.error = error

    def _relay(self) -> None:
        transfer_id = self._prefill.expect(Offer).transfer_id
        assert self._decode.expect(Fetch).transfer_id == transfer_id
        waiting: list[int] = []
        filled: list[Filled] = []
        seal: SealOffer | None = None
        asked = False
        while seal is None or waiting or asked:
            if waiting and not asked:
                self._prefill.send(Fill(transfer_id, waiting[0] % self._prefill.ring.slots, waiting.pop(0), 0))
                asked = True
            message = self._prefill.receive()
            if isinstance(message, ChunksReady):
                waiting += [chunk.sequence for chunk in message.chunks]
            elif isinstance(message, Filled):
                asked = False
                filled.append(message)
                self._deliver(message)
            else:
                assert isinstance(message, SealOffer), message
                seal = message
        assert seal.chunks == len(filled)
        raw_bytes, wire_bytes = sum(item.raw_bytes for item in filled), sum(item.wire_bytes for item in filled)
        self._decode.send(Loaded(transfer_id, seal.first_token, len(filled), raw_bytes, wire_bytes))
        self._prefill.send(Sent(transfer_id, True, "", ""))

    def _deliver(self, filled: Filled) -> None:
        self._decode.ring.slot_message(filled.slot)[:] = self._prefill.ring.slot_message(filled.slot)
        self._decode.send(Arrived(filled.transfer_id, filled.slot))
        assert self._decode.expect(Consumed).ok
