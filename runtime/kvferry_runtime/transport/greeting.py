"""Carries out a handshake on a connection."""

from __future__ import annotations

import asyncio

from kvferry_runtime.errors import ConnectFailed, FrameError, Reason, TransportError, TransportUnavailable, WireError
from kvferry_runtime.transport.base import Connection
from kvferry_runtime.wire.frames import MAX_UNAUTHENTICATED_BYTES
from kvferry_runtime.wire.handshake import Acceptor, Agreed, Dialer, Refusal, Refuse, Reply, refuse
from kvferry_runtime.wire.messages import decode, encode


class HandshakeRefused(WireError):
    """There is no session: either side refused, or the peer did not speak the protocol."""

    def __init__(self, refuse: Refuse) -> None:
        super().__init__(refuse.message)
        self.refuse = refuse


async def greet(connection: Connection, machine: Dialer | Acceptor, timeout: float) -> Agreed:
    """Shake hands and open the data way, within `timeout` seconds. The caller closes the connection on failure.

    Raises:
        HandshakeRefused: the peer was told, if it can be.
    """
    try:
        async with asyncio.timeout(timeout):
            agreed = await _exchange(connection, machine)
            await connection.open_data(agreed.data_address, timeout)
            return agreed
    except TimeoutError:
        refused = refuse(Refusal.TIMEOUT, Reason.HANDSHAKE_FAILED, f"the handshake took more than {timeout:g} s", True)
    except FrameError as error:
        refused = Refuse(Refusal.FRAME, Reason.HANDSHAKE_FAILED, str(error), None)
    except (ConnectFailed, TransportUnavailable) as error:
        refused = refuse(Refusal.DATA, Reason.PEER_UNREACHABLE, f"data way: {error}", True)
    except TransportError as error:
        refused = Refuse(Refusal.CLOSED, Reason.PEER_LOST, f"lost during the handshake: {error}", None)
    tell(connection, refused)
    raise HandshakeRefused(refused)


def tell(connection: Connection, refused: Refuse) -> None:
    """Send the REJECT, if there is one and the peer still listens."""
    if refused.tell is None:
        return
    try:
        connection.send_control(encode(refused.tell))
    except TransportError:
        return


def turn_away(connection: Connection, refusal: Refusal, reason: Reason, message: str) -> HandshakeRefused:
    """A refusal of ours that may pass. The peer has been told when this returns."""
    refused = refuse(refusal, reason, message, retriable=True)
    tell(connection, refused)
    return HandshakeRefused(refused)


async def _exchange(connection: Connection, machine: Dialer | Acceptor) -> Agreed:
    if isinstance(machine, Dialer):
        connection.send_control(encode(machine.hello))
    while True:
        message = decode(await connection.receive_control(MAX_UNAUTHENTICATED_BYTES))
        for outcome in machine.received(message):
            match outcome:
                case Reply():
                    connection.send_control(encode(outcome.message))
                case Agreed():
                    return outcome
                case Refuse():
                    tell(connection, outcome)
                    raise HandshakeRefused(outcome)
