"""Hosts as sockets name them."""

from __future__ import annotations

import socket
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address

Host = IPv4Address | IPv6Address


def host_of(text: str) -> Host | None:
    """None if it is no address. A zone (`fe80::1%eth0`) is left out, and `::ffff:10.0.0.1` is 10.0.0.1."""
    with suppress(ValueError):
        address = ip_address(text.partition("%")[0])
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return mapped or address
    return None


def is_ours(host: Host) -> bool:
    """Whether it is an address of this machine, or pod: whoever is seen by it runs here, too."""
    family = socket.AF_INET if host.version == 4 else socket.AF_INET6
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((str(host), 0))
        return True
    return False
