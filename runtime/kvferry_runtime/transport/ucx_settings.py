"""Which UCX settings a context gets. Pure: names and values only.

They are handed to the context, not written into the environment; what a person set there as `UCX_<NAME>` wins.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvferry_contract.config import TransportKind

PREFIX = "UCX_"

COMMON = {
    # The default of 8 KiB makes one system call for each 8 KiB: 1.7 times slower with 1 MiB messages.
    # The receiver's must not be smaller than the sender's.
    "TCP_TX_SEG_SIZE": "1M",
    "TCP_RX_SEG_SIZE": "1M",
    # By default UCX waits in connect, and the event loop with it: minutes, for a peer whose port does not answer.
    "TCP_CONN_NB": "y",
    # Slots are host memory; staging buffers on a GPU would make a CUDA context in a process that needs none.
    "RNDV_FRAG_MEM_TYPES": "host",
    # Unbounded by default: registrations of freed memory pile up over days.
    "RCACHE_MAX_UNRELEASED": "1024",
}

SHARED_MEMORY = {
    # Without a peer-failure handler UCX never gives shared-memory lanes to an endpoint that wants to hear of failures.
    "MM_ERROR_HANDLING": "y",
}

BY_KIND: Mapping[TransportKind, Mapping[str, str]] = {
    TransportKind.AUTO: {**COMMON, **SHARED_MEMORY, "TLS": "^cuda"},
    TransportKind.TCP: {**COMMON, "TLS": "tcp"},
    TransportKind.SHM: {**COMMON, **SHARED_MEMORY, "TLS": "tcp,sm"},
    # Never pinned to TCP, and no shared memory: the lanes are RDMA, or visibly not.
    TransportKind.RDMA: {**COMMON, "TLS": "^cuda"},
}


def context_options(kind: TransportKind, environment: Mapping[str, str]) -> dict[str, str]:
    """Options of a UCX context for this kind of transport, without those that `environment` decides."""
    return {name: value for name, value in BY_KIND[kind].items() if PREFIX + name not in environment}
