"""One try to reach the next stage."""

from __future__ import annotations

import secrets

from kvferry_runtime.engine import stage_hosts
from kvferry_runtime.engine.stages.settings import RingSettings
from kvferry_runtime.errors import ConnectFailed
from kvferry_runtime.transport.base import Connection, Transport
from kvferry_runtime.transport.doorway import CLOSE_SECONDS
from kvferry_runtime.transport.greeting import HandshakeRefused, greet
from kvferry_runtime.wire.handshake import TIMEOUT_SECONDS, Agreed, Dialer, Party, Refusal

CONNECT_SECONDS = 3.0


async def dial(
    settings: RingSettings, party: Party, transport: Transport, lookup: stage_hosts.Lookup
) -> tuple[Connection, Agreed]:
    """The connection to the next stage, after the handshake. The name is looked up anew: a pod may get a new address.

    Raises:
        StageUnreachable: the name has no address now.
        ConnectFailed: nobody there, or it refuses; the message says which stage and why.
    """
    host = settings.hosts[settings.next]
    address = await stage_hosts.address(host, lookup)
    connection = await transport.connect(address, settings.port, CONNECT_SECONDS)
    opened = False
    try:
        dialer = Dialer(party, settings.key, secrets.token_bytes(16), connection.data_address)
        agreed = await greet(connection, dialer, TIMEOUT_SECONDS)
        opened = True
    except HandshakeRefused as error:
        what = "refuses" if error.refuse.refusal is Refusal.BY_PEER else "is not what was expected"
        raise ConnectFailed(f"{host} at {connection.peer} {what}: {error}") from error
    finally:
        if not opened:
            await connection.close(CLOSE_SECONDS)
    return connection, agreed
