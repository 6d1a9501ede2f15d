"""Ports of UCX that only the peer's hosts can reach.

For every worker UCX listens on a free TCP port of each interface, and takes whoever connects: one malformed message
of a stranger ends the process (an assertion in UCX), a well-formed one could reach a receive that is posted. UCX has no
way to ask who it is. So the kernel drops what comes to these ports from other hosts than the peer's: a classic BPF
program on the listening socket (`SO_ATTACH_FILTER`, no privilege needed), which connections that it lets in inherit.
A worker listens for some milliseconds before that: who came then is turned away before UCX reads a byte.
"""

from __future__ import annotations

import ctypes
import logging
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from kvferry_runtime.transport.hosts import Host, host_of

log = logging.getLogger(__name__)

Instruction = tuple[int, int, int, int]
"""`struct sock_filter`: code, jump if true, jump if false, k."""

_SO_ATTACH_FILTER = 26
_SO_DETACH_FILTER = 27
_LOAD_WORD = 0x20
_JUMP_IF_EQUAL = 0x15
_RETURN = 0x06
_IP_HEADER = 0xFFF00000
"""`SKF_NET_OFF`: offsets from here on count from the IP header; a filter on a TCP socket starts behind it."""
_SOURCE = {socket.AF_INET: 12, socket.AF_INET6: 8}
_WHOLE = 0xFFFFFFFF
_DESCRIPTORS = Path("/proc/self/fd")
_MOST_WAITING = 4096
"""Connections that a kernel lets wait at a listening socket, unless somebody raised `net.core.somaxconn`."""


class GuardedPorts:
    """Listening sockets of one UCX worker. Closed to everyone until `admit`."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        """descriptors: of listening sockets; they stay the owner's."""
        self._descriptors = tuple(descriptors)
        self._admitted: frozenset[Host] = frozenset()
        self.hosts = tuple(host for number in descriptors if (host := _bound_host(number)) is not None)
        """The addresses that these sockets are bound to."""
        self._guard()

    def admit(self, hosts: Iterable[Host]) -> None:
        """Let these hosts in, too."""
        admitted = self._admitted.union(hosts)
        if admitted != self._admitted:
            self._admitted = admitted
            self._guard()

    def turn_away(self, candidates: Iterable[int]) -> None:
        """End the connections that came before the ports were guarded. To be called before the worker makes progress.

        candidates: descriptors among which are the connections that UCX has taken, as it does in a thread of its own.
        """
        addresses = set()
        for number in self._descriptors:
            with _borrowed(number) as listener:
                addresses.add(listener.getsockname())
                _close_waiting(listener)
        ended = 0
        for number in candidates:
            with suppress(OSError), _borrowed(number) as taken:  # no socket, or not connected any more
                if taken.family in _SOURCE and taken.getsockname() in addresses and taken.getpeername():
                    ended += 1
                    _end(taken)
        if ended:
            log.warning("somebody reached UCX's ports before they were guarded", extra={"connections": ended})

    def _guard(self) -> None:
        for descriptor in self._descriptors:
            with _borrowed(descriptor) as listener:
                try:
                    _attach(listener, program(listener.family, self._admitted))
                except OSError as error:
                    _detach(listener)  # an older one would keep out the peer itself
                    log.warning(
                        "this kernel does not guard UCX's port against other hosts (%s): "
                        "let a network policy or a firewall do it",
                        error,
                        extra={"port": listener.getsockname()[1]},
                    )


def descriptors() -> dict[int, int]:
    """Open ones of this process, with their inodes, which tell sockets apart; empty where /proc does not say."""
    try:
        listed = [int(path.name) for path in _DESCRIPTORS.iterdir()]
    except OSError:
        return {}
    # the one with which they were listed is closed by now, and its number will be given to what is opened next
    return {number: inode for number in listed if (inode := _inode(number)) is not None}


def opened(since: Mapping[int, int]) -> list[int]:
    """Descriptors that are open now and were not in `since`, or were something else then."""
    return [number for number, inode in sorted(descriptors().items()) if since.get(number) != inode]


def listeners(since: Mapping[int, int]) -> list[int]:
    """Those of `opened` that are listening sockets."""
    return [number for number in opened(since) if _listens(number)]


def program(family: int, hosts: Iterable[Host]) -> list[Instruction]:
    """Classic BPF for a TCP socket of this family: keep segments whose source is one of `hosts`, drop all others."""
    version = 4 if family == socket.AF_INET else 6
    packed = sorted({host.packed for host in hosts if host.version == version})
    code: list[Instruction] = []
    for source in packed:
        words = struct.unpack(f"!{len(source) // 4}I", source)
        for index, word in enumerate(words):
            behind = 2 * (len(words) - index - 1) + 1
            code.append((_LOAD_WORD, 0, 0, _IP_HEADER + _SOURCE[socket.AddressFamily(family)] + 4 * index))
            code.append((_JUMP_IF_EQUAL, 0, behind, word))
        code.append((_RETURN, 0, 0, _WHOLE))
    return [*code, (_RETURN, 0, 0, 0)]


def _attach(listener: socket.socket, code: Sequence[Instruction]) -> None:
    packed = b"".join(struct.pack("=HBBI", *each) for each in code)
    memory = ctypes.create_string_buffer(packed, len(packed))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(code), ctypes.addressof(memory)))


def _detach(listener: socket.socket) -> None:
    with suppress(OSError):  # there was none
        listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def _close_waiting(listener: socket.socket) -> None:
    listener.setblocking(False)  # as UCX has it
    with suppress(OSError):  # none waits any more
        for _ in range(_MOST_WAITING):
            listener.accept()[0].close()


def _end(taken: socket.socket) -> None:
    """So that the owner of this connection reads its end, and nothing of what was sent.

    Raises:
        OSError: the other side has ended it already.
    """
    with suppress(OSError):  # a kernel that cannot guard
        _attach(taken, program(taken.family, ()))
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("@ii", 1, 0))
    with suppress(BlockingIOError):
        while taken.recv(1 << 16, socket.MSG_DONTWAIT):
            pass
    taken.shutdown(socket.SHUT_RDWR)


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Raises OSError: it is no socket."""
    borrowed = socket.socket(fileno=descriptor)
    try:
        yield borrowed
    finally:
        borrowed.detach()


def _inode(descriptor: int) -> int | None:
    """None: it is not open."""
    with suppress(OSError):
        return os.fstat(descriptor).st_ino
    return None


def _listens(descriptor: int) -> bool:
    with suppress(OSError), _borrowed(descriptor) as candidate:
        known = candidate.family in _SOURCE and candidate.type == socket.SOCK_STREAM
        return known and bool(candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    return False


def _bound_host(descriptor: int) -> Host | None:
    with _borrowed(descriptor) as listener:
        return host_of(listener.getsockname()[0])
