"""What one side tells the other about its end of the data way: the hosts that it sends from, and its UCX address.

    "KVFU" 2 | blake2b-128 of all that follows | length u16 of the hosts | hosts as text, "," between | UCX address

UCX reads an address without knowing its length: a damaged one must be caught before.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address

from kvferry_runtime.errors import ConnectFailed
from kvferry_runtime.transport.hosts import Host

MAGIC = b"KVFU\x02"
DIGEST_BYTES = 16
MAX_HOSTS = 32
"""More interfaces than a pod has; a filter of as many is small enough for every kernel."""
_LENGTH = struct.Struct("!H")


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def pack(hosts: Sequence[Host], address: bytes) -> bytes:
    """hosts: what is beyond `MAX_HOSTS` is left out."""
    told = ",".join(str(host) for host in hosts[:MAX_HOSTS]).encode()
    body = _LENGTH.pack(len(told)) + told + address
    return MAGIC + digest(body) + body


def unpack(data: bytes, peer: str) -> tuple[tuple[Host, ...], bytes]:
    """The peer's hosts and its UCX address.

    Raises:
        ConnectFailed: it is damaged, or of another version.
    """
    start = len(MAGIC) + DIGEST_BYTES
    body = data[start:]
    if data.startswith(MAGIC) and digest(body) == data[len(MAGIC) : start]:
        with suppress(struct.error, ValueError):
            end = _LENGTH.size + _LENGTH.unpack_from(body)[0]
            told = body[_LENGTH.size : end].decode("ascii")
            hosts = tuple(ip_address(text) for text in told.split(",") if text)
            if len(hosts) <= MAX_HOSTS and body[end:]:
                return hosts, body[end:]
    raise ConnectFailed(f"the data address of {peer} ({len(data)} bytes) is not a UCX address of this version")
