"""Who reaches a guarded port, on real sockets."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address

import psutil
import pytest

from kvferry_runtime.transport import guarded_ports
from kvferry_runtime.transport.data_address import MAX_HOSTS
from kvferry_runtime.transport.guarded_ports import GuardedPorts, descriptors, listeners, program
from kvferry_runtime.transport.hosts import Host, host_of, is_ours

SECONDS = 10.0
MANY = [f"10.0.{number}.1" for number in range(MAX_HOSTS)]
MANY_6 = [f"fd00::{number:x}" for number in range(1, MAX_HOSTS + 1)]


@contextmanager
def listening(host: str) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        yield listener


def hosts(*texts: str) -> list[Host]:
    return [ip_address(text) for text in texts]


def reaches(source: str, listener: socket.socket) -> bool:
    """A host that is let in is answered at once; one that is not hears nothing."""
    try:
        socket.create_connection(listener.getsockname()[:2], 0.5, source_address=(source, 0)).close()
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(
    ("bound", "admitted", "source", "expected"),
    [
        ("127.0.0.1", [], "127.0.0.1", False),
        ("127.0.0.1", ["127.0.0.1"], "127.0.0.1", True),
        ("127.0.0.1", ["127.0.0.1"], "127.0.0.2", False),
        ("127.0.0.1", [*MANY, "127.0.0.2"], "127.0.0.2", True),
        ("127.0.0.1", MANY, "127.0.0.1", False),
        ("127.0.0.1", ["1.0.0.127", "::1", "127.0.0.0"], "127.0.0.1", False),
        ("::1", [], "::1", False),
        ("::1", ["::1"], "::1", True),
        ("::1", [*MANY_6, "127.0.0.1", "::1"], "::1", True),
        ("::1", [*MANY_6, "127.0.0.1", "::2", "1::1", "0:0:0:1::1", "::1:0:1"], "::1", False),
    ],
)
def test_only_hosts_that_are_admitted_reach_a_port(
    bound: str, admitted: list[str], source: str, expected: bool
) -> None:
    with listening(bound) as listener:
        GuardedPorts([listener.fileno()]).admit(hosts(*admitted))
        assert reaches(source, listener) is expected


def test_admitting_adds_and_takes_nothing_away() -> None:
    with listening("127.0.0.1") as listener, listening("127.0.0.3") as other:
        ports = GuardedPorts([listener.fileno(), other.fileno()])
        assert ports.hosts == tuple(hosts("127.0.0.1", "127.0.0.3"))
        for source in ("127.0.0.1", "127.0.0.2"):
            assert not reaches(source, listener)
            ports.admit(hosts(source))
            assert reaches(source, listener) and reaches(source, other)
        assert reaches("127.0.0.1", listener)


def test_a_connection_that_was_let_in_goes_on() -> None:
    with listening("127.0.0.1") as listener:
        ports = GuardedPorts([listener.fileno()])
        ports.admit(hosts("127.0.0.1"))
        with socket.create_connection(listener.getsockname(), SECONDS) as near:
            far, _ = listener.accept()
            with far:
                sent = bytes(range(256)) * 4096
                sender = subprocess.Popen(
                    [
                        sys.executable,
                        "-c",
                        f"import socket; socket.socket(fileno={near.fileno()}).sendall({len(sent)} * b'x')",
                    ],
                    pass_fds=[near.fileno()],
                )
                received = 0
                while received < len(sent):
                    received += len(far.recv(1 << 16))
                assert sender.wait(SECONDS) == 0


def test_only_new_listening_sockets_are_found() -> None:
    with listening("127.0.0.1"):
        before = descriptors()
        left, right = socket.socketpair()
        with listening("127.0.0.1") as one, listening("::1") as two, socket.socket(), left, right:
            assert set(listeners(since=before)) == {one.fileno(), two.fileno()}


def test_the_number_with_which_descriptors_were_listed_is_not_taken_for_an_old_one() -> None:
    """It is free again at once, and the next socket gets it."""
    before = descriptors()
    with listening("127.0.0.1") as listener:
        assert listener.fileno() not in before


def test_a_kernel_that_cannot_guard_keeps_nobody_out_and_is_told_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening("127.0.0.1") as listener:
        ports = GuardedPorts([listener.fileno()])
        assert not reaches("127.0.0.1", listener)
        monkeypatch.setattr(guarded_ports, "_SO_ATTACH_FILTER", 9999)
        ports.admit(hosts("127.0.0.1"))
        assert reaches("127.0.0.1", listener)
    assert "network policy" in caplog.text


@pytest.mark.parametrize("count", [0, 1, MAX_HOSTS])
def test_a_program_is_short_enough_for_the_kernel(count: int) -> None:
    everything = hosts(*MANY[:count], *MANY_6[:count])
    for family in (socket.AF_INET, socket.AF_INET6):
        code = program(family, everything)
        assert len(code) <= 4096 and all(jump <= 255 for _, yes, no, _ in code for jump in (yes, no))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("/run/a.sock", None),
        ("", None),
    ],
)
def test_hosts_are_read_as_sockets_name_them(text: str, expected: str | None) -> None:
    assert host_of(text) == (None if expected is None else ip_address(expected))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("203.0.113.9", False), ("2001:db8::9", False)],
)
def test_a_host_of_this_machine_is_known(text: str, expected: bool) -> None:
    assert is_ours(ip_address(text)) is expected


def test_every_address_of_an_interface_is_ours() -> None:
    found = [host_of(each.address) for addresses in psutil.net_if_addrs().values() for each in addresses]
    assert all(is_ours(host) for host in found if host is not None and not host.is_link_local)
